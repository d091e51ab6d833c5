package admission

import (
	"context"

	"hyperkube/internal/api/podrefs"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
)

// find returns a pod from the informer or cache of the plugin, or from the API if that does not have it.
func (p *nodeRestriction) find(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	if pod, ok := p.pods.Pod(namespace, name); ok {
		return pod, nil
	}
	return p.kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
}

// pod rejects a kubelet's write of a pod unless it creates a permitted mirror pod or deletes a pod that is assigned
// to its node. Updates are always rejected; the status is a separate request.
func (p *nodeRestriction) pod(ctx context.Context, node string, a admission.Attributes) error {
	switch op := a.GetOperation(); op {
	case admission.Create:
		return p.newPod(ctx, node, a)
	case admission.Delete:
		pod, err := p.find(ctx, a.GetNamespace(), a.GetName())
		if apierrors.IsNotFound(err) {
			return err
		}
		if err != nil {
			return admission.NewForbidden(a, err)
		}
		if pod.Spec.NodeName != node {
			return forbid(a, "node %q can only delete pods with spec.nodeName set to itself", node)
		}
		return nil
	default:
		return forbid(a, "unexpected operation %q, node %q can only create and delete mirror pods", op, node)
	}
}

// newPod rejects a kubelet's new pod unless it is a mirror pod that is assigned to the node, has the node as its only
// owner and controller, and refers to no other objects of the API, such as Secrets or claims.
func (p *nodeRestriction) newPod(ctx context.Context, node string, a admission.Attributes) error {
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok {
		return unexpectedType(a, nil)
	}
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; !mirror {
		return forbid(a, "pod does not have %q annotation, node %q can only create mirror pods", corev1.MirrorPodAnnotationKey, node)
	}
	if pod.Spec.NodeName != node {
		return forbid(a, "node %q can only create pods with spec.nodeName set to itself", node)
	}
	switch {
	case len(pod.OwnerReferences) > 1:
		return forbid(a, "node %q can only create pods with a single owner reference set to itself", node)
	case len(pod.OwnerReferences) == 0:
		return forbid(a, "node %q can only create pods with an owner reference set to itself", node)
	}
	owner := &pod.OwnerReferences[0]
	switch {
	case owner.APIVersion != "v1" || owner.Kind != "Node" || owner.Name != node:
		return forbid(a, "node %q can only create pods with an owner reference set to itself", node)
	case owner.Controller == nil || !*owner.Controller:
		return forbid(a, "node %q can only create pods with a controller owner reference set to itself", node)
	case owner.BlockOwnerDeletion != nil && *owner.BlockOwnerDeletion:
		return forbid(a, "node %q must not set blockOwnerDeletion on an owner reference", node)
	}
	n, err := p.kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return err
	}
	if err != nil {
		return forbid(a, "error looking up node %s to verify uid: %w", node, err)
	}
	if owner.UID != n.UID {
		return forbid(a, "node %s UID mismatch: expected %s got %s", owner.Name, owner.UID, n.UID)
	}
	if what := podrefs.FirstAPIReference(pod); what != "" {
		return forbid(a, "node %q can not create pods that reference %s", node, what)
	}
	return nil
}

// podStatus rejects a kubelet's update of a pod's status if the pod is not assigned to its node, or if the update
// changes labels or the statuses of resource claims, which controllers and the scheduler set.
func podStatus(node string, a admission.Attributes) error {
	if op := a.GetOperation(); op != admission.Update {
		return forbid(a, "unexpected operation %q", op)
	}
	old, ok := a.GetOldObject().(*corev1.Pod)
	if !ok {
		return unexpectedType(a, a.GetOldObject())
	}
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok {
		return unexpectedType(a, nil)
	}
	if old.Spec.NodeName != node {
		return forbid(a, "node %q can only update pod status for pods with spec.nodeName set to itself", node)
	}
	if !equality.Semantic.DeepEqual(old.Labels, pod.Labels) {
		return forbid(a, "node %q cannot update labels through pod status", node)
	}
	if !equality.Semantic.DeepEqual(old.Status.ResourceClaimStatuses, pod.Status.ResourceClaimStatuses) {
		return forbid(a, "node %q cannot update resource claim statues", node)
	}
	if !equality.Semantic.DeepEqual(old.Status.ExtendedResourceClaimStatus, pod.Status.ExtendedResourceClaimStatus) {
		return forbid(a, "node %q cannot update extended resource claim status", node)
	}
	if !equality.Semantic.DeepEqual(old.Status.NodeAllocatableResourceClaimStatuses, pod.Status.NodeAllocatableResourceClaimStatuses) {
		return forbid(a, "node %q cannot update node allocatable resource claim statuses", node)
	}
	return nil
}

// eviction rejects a kubelet's eviction of a pod that is not assigned to its node or does not exist.
func (p *nodeRestriction) eviction(ctx context.Context, node string, a admission.Attributes) error {
	if op := a.GetOperation(); op != admission.Create {
		return forbid(a, "unexpected operation %s", op)
	}
	name := a.GetName()
	if name == "" {
		meta, ok := a.GetObject().(metav1.Object)
		if !ok {
			return unexpectedType(a, nil)
		}
		if name = meta.GetName(); name == "" {
			return forbid(a, "could not determine pod from request data")
		}
	}
	pod, err := p.find(ctx, a.GetNamespace(), name)
	if apierrors.IsNotFound(err) {
		return err
	}
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	if pod.Spec.NodeName != node {
		return forbid(a, "node %s can only evict pods with spec.nodeName set to itself", node)
	}
	return nil
}
