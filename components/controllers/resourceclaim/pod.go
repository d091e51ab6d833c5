package resourceclaim

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"hyperkube/components/controllers/internal/control"
)

// syncPod creates the missing claims of a pod and adds their names to its status. If the pod was bound to its node
// without the scheduler, it also reserves the claims for the pod. It stops at the first error, and emits an event if a
// claim cannot be created.
func (c *Controller) syncPod(ctx context.Context, namespace, name string) error {
	p, err := c.pods.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if p.DeletionTimestamp != nil || isDone(p) {
		return nil
	}
	made := map[string]string{}
	for i := range p.Spec.ResourceClaims {
		if err := c.ensureClaim(ctx, p, &p.Spec.ResourceClaims[i], made); err != nil {
			c.env.Events.Event(p, corev1.EventTypeWarning, "FailedResourceClaimCreation", fmt.Sprintf("PodResourceClaim %s: %v", p.Spec.ResourceClaims[i].Name, err))
			return fmt.Errorf("pod %s/%s, claim %s: %w", namespace, name, p.Spec.ResourceClaims[i].Name, err)
		}
	}
	if len(made) > 0 {
		// The status update triggers another sync of the pod.
		return c.updateClaimStatuses(ctx, p, made)
	}
	if p.Spec.NodeName == "" {
		return nil
	}
	for i := range p.Spec.ResourceClaims {
		if err := c.reserve(ctx, p, &p.Spec.ResourceClaims[i]); err != nil {
			return err
		}
	}
	return nil
}

// ensureClaim creates the claim of an entry of p if the entry has a template and the claim does not exist. If the pod's
// status does not contain the claim's name, ensureClaim adds the name to made, by the name of the entry.
func (c *Controller) ensureClaim(ctx context.Context, p *corev1.Pod, entry *corev1.PodResourceClaim, made map[string]string) error {
	name, owned, err := resourceclaim.Name(p, entry)
	if err == nil && name == nil {
		return nil // no claim is needed
	}
	if err == nil {
		claim, err := c.claims.ResourceClaims(p.Namespace).Get(*name)
		switch {
		case err == nil && !owned:
			return nil
		case err == nil && resourceclaim.IsForPod(p, claim, false) == nil:
			return nil
		case err == nil:
			// The claim belongs to another owner: create a new one.
		case !apierrors.IsNotFound(err):
			return err
		case !owned:
			return nil // a user creates the claim
		}
	}
	if entry.ResourceClaimTemplateName == nil {
		return nil
	}
	there, err := c.findOwned(p, entry.Name)
	if err != nil {
		return err
	}
	if there == nil {
		if there, err = c.create(ctx, p, entry); err != nil {
			return err
		}
	}
	if name == nil || *name != there.Name {
		made[entry.Name] = there.Name
	}
	return nil
}

// create creates and returns a claim from the template of an entry of p. If the API server already has a claim for the
// entry, it returns that one.
func (c *Controller) create(ctx context.Context, p *corev1.Pod, entry *corev1.PodResourceClaim) (*resourcev1.ResourceClaim, error) {
	template, err := c.templates.ResourceClaimTemplates(p.Namespace).Get(*entry.ResourceClaimTemplateName)
	if err != nil {
		return nil, fmt.Errorf("resource claim template %q: %w", *entry.ResourceClaimTemplateName, err)
	}
	// Check with the API server, because a claim that was just created may be missing in the cache,
	// and an entry must not get two claims.
	all, err := c.env.Kube.ResourceV1().ResourceClaims(p.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range all.Items {
		if r := &all.Items[i]; metav1.IsControlledBy(r, p) && r.Annotations[claimNameKey] == entry.Name && r.DeletionTimestamp == nil {
			return r, nil
		}
	}
	annotations := maps.Clone(template.Spec.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[claimNameKey] = entry.Name
	controls := true
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID, Controller: &controls}
	claim, err := c.env.Kube.ResourceV1().ResourceClaims(p.Namespace).Create(ctx, &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName:    claimPrefix(p.Name, entry.Name),
			OwnerReferences: []metav1.OwnerReference{owner},
			Annotations:     annotations,
			Labels:          template.Spec.Labels,
		},
		Spec: template.Spec.Spec,
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("creating claim: %w", err)
	}
	return claim, nil
}

// claimPrefix returns the prefix of the generated name of a claim. If the name is too long, it truncates the names of
// both the pod and the entry proportionally.
func claimPrefix(pod, entry string) string {
	const most = 57 // 63 characters of a label, minus five random characters and a hyphen
	prefix := pod + "-" + entry + "-"
	if n := len(prefix); n > most {
		return pod[:len(pod)*most/n] + "-" + entry[:len(entry)*most/n] + "-"
	}
	return prefix
}

// updateClaimStatuses adds the names of claims to the status of p. made contains them by the names of their entries.
func (c *Controller) updateClaimStatuses(ctx context.Context, p *corev1.Pod, made map[string]string) error {
	names := map[string]*string{}
	for _, s := range p.Status.ResourceClaimStatuses {
		names[s.Name] = s.ResourceClaimName
	}
	for entry, name := range made {
		names[entry] = &name
	}
	status := applycorev1.PodStatus()
	for _, entry := range slices.Sorted(maps.Keys(names)) {
		s := applycorev1.PodResourceClaimStatus().WithName(entry)
		if n := names[entry]; n != nil {
			s.WithResourceClaimName(*n)
		}
		status.WithResourceClaimStatuses(s)
	}
	apply := applycorev1.Pod(p.Name, p.Namespace).WithUID(p.UID).WithStatus(status)
	_, err := c.env.Kube.CoreV1().Pods(p.Namespace).ApplyStatus(ctx, apply, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	if err != nil {
		return ignoreGone(fmt.Errorf("updating ResourceClaimStatuses of pod %s/%s: %w", p.Namespace, p.Name, err))
	}
	return nil
}

// reserve reserves the claim of an entry for p, which is bound to a node. It does nothing if the claim is not
// allocated, is being deleted or cannot be reserved. It returns control.ErrStale if the claim has changed in the
// meantime.
func (c *Controller) reserve(ctx context.Context, p *corev1.Pod, entry *corev1.PodResourceClaim) error {
	name, owned, err := resourceclaim.Name(p, entry)
	if err != nil || name == nil {
		return err
	}
	claim, err := c.claims.ResourceClaims(p.Namespace).Get(*name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if owned {
		if err := resourceclaim.IsForPod(p, claim, false); err != nil {
			return err
		}
	}
	if claim.Status.Allocation == nil || claim.DeletionTimestamp != nil || resourceclaim.IsReservedForPod(p, claim, false) || !resourceclaim.CanBeReserved(claim) {
		return nil
	}
	next := claim.DeepCopy()
	next.Status.ReservedFor = append(next.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: p.Name, UID: p.UID})
	if _, err := c.env.Kube.ResourceV1().ResourceClaims(p.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil {
		if apierrors.IsConflict(err) {
			return control.ErrStale
		}
		return ignoreGone(err)
	}
	return nil
}
