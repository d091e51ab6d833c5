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

// syncPod makes the claims of a pod and, if the pod came to its node past the
// scheduler, reserves them for it.
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
		if err := c.ensure(ctx, p, &p.Spec.ResourceClaims[i], made); err != nil {
			c.env.Events.Event(p, corev1.EventTypeWarning, "FailedResourceClaimCreation", fmt.Sprintf("PodResourceClaim %s: %v", p.Spec.ResourceClaims[i].Name, err))
			return fmt.Errorf("pod %s/%s, claim %s: %w", namespace, name, p.Spec.ResourceClaims[i].Name, err)
		}
	}
	if len(made) > 0 {
		// The change of the status brings the pod back here.
		return c.tell(ctx, p, made)
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

// ensure makes the claim of an entry, unless it is there, and notes its name in
// made if the pod's status does not tell it yet.
func (c *Controller) ensure(ctx context.Context, p *corev1.Pod, entry *corev1.PodResourceClaim, made map[string]string) error {
	name, owned, err := resourceclaim.Name(p, entry)
	if err == nil && name == nil {
		return nil // none is needed
	}
	if err == nil {
		claim, err := c.claims.ResourceClaims(p.Namespace).Get(*name)
		switch {
		case err == nil && !owned:
			return nil
		case err == nil && resourceclaim.IsForPod(p, claim, false) == nil:
			return nil
		case err == nil:
			// Another's by now: the pod gets a claim of its own.
		case !apierrors.IsNotFound(err):
			return err
		case !owned:
			return nil // somebody else makes it
		}
	}
	if entry.ResourceClaimTemplateName == nil {
		return nil
	}
	there, err := c.made(p, entry.Name)
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

func (c *Controller) create(ctx context.Context, p *corev1.Pod, entry *corev1.PodResourceClaim) (*resourcev1.ResourceClaim, error) {
	template, err := c.templates.ResourceClaimTemplates(p.Namespace).Get(*entry.ResourceClaimTemplateName)
	if err != nil {
		return nil, fmt.Errorf("resource claim template %q: %w", *entry.ResourceClaimTemplateName, err)
	}
	// A claim that was made a moment ago may not be in the cache yet: two
	// claims for one entry would be one too many.
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
		return nil, fmt.Errorf("creating the claim: %w", err)
	}
	return claim, nil
}

// claimPrefix is what the name of the claim for an entry of a pod begins with.
// Long names are both shortened, so that something is left of each.
func claimPrefix(pod, entry string) string {
	const most = 57 // with five random letters, and a hyphen, it is a label
	prefix := pod + "-" + entry + "-"
	if n := len(prefix); n > most {
		return pod[:len(pod)*most/n] + "-" + entry[:len(entry)*most/n] + "-"
	}
	return prefix
}

// tell writes the names of claims into the pod's status.
func (c *Controller) tell(ctx context.Context, p *corev1.Pod, made map[string]string) error {
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
		return ignoreGone(fmt.Errorf("update pod %s/%s ResourceClaimStatuses: %w", p.Namespace, p.Name, err))
	}
	return nil
}

// reserve enters a pod that has a node among those that use a claim.
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
