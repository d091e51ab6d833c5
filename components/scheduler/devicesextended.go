package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"hyperkube/components/scheduler/framework"
)

// Devices that a pod requests as extended resources are allocated with a claim that the scheduler
// creates after it has chosen a node. Until the created claim is in the cache, its allocation is
// recorded under framework.PlannedClaim.
// https://kep.k8s.io/5004

// extendedOwner returns the pod whose extended resources a claim is for, or "" if it is a normal
// claim.
func extendedOwner(claim *resourcev1.ResourceClaim) types.UID {
	if claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] != "true" {
		return ""
	}
	if owner := metav1.GetControllerOf(claim); owner != nil && owner.Kind == "Pod" {
		return owner.UID
	}
	return ""
}

// ExtendedClaim implements framework.Devices.
func (d *devices) ExtendedClaim(pod types.UID) *resourcev1.ResourceClaim { return d.extended[pod] }

// Class implements framework.Devices. If several classes have the same extended resource name, it
// returns the newest one, or the first by name.
func (d *devices) Class(resource corev1.ResourceName) *resourcev1.DeviceClass {
	if d.byResource == nil {
		d.byResource = map[corev1.ResourceName]*resourcev1.DeviceClass{}
		all, _ := d.classes.List() // reads from the cache and does not fail
		all = slices.Clone(all)
		slices.SortFunc(all, func(a, b *resourcev1.DeviceClass) int {
			return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(b.Name, a.Name))
		})
		for _, class := range all {
			if name := class.Spec.ExtendedResourceName; name != nil {
				d.byResource[corev1.ResourceName(*name)] = class
			}
		}
		for _, class := range all {
			d.byResource[corev1.ResourceName(resourcev1.ResourceDeviceClassPrefix+class.Name)] = class
		}
	}
	return d.byResource[resource]
}

// updateExtended updates the claims for pods' extended resources.
func (d *devices) updateExtended(claim *resourcev1.ResourceClaim, gone bool) {
	owner := extendedOwner(claim)
	switch was := d.extended[owner]; {
	case owner == "":
	case !gone:
		d.extended[owner] = claim
	case was != nil && was.UID == claim.UID:
		delete(d.extended, owner)
	}
}

// movePlanned moves a planned allocation to the claim that was created for it.
func (d *devices) movePlanned(m *devicesMessage) bool {
	delete(d.pending, m.written.UID)
	d.account(m.written.UID, nil)
	d.pending[m.made.UID] = m.version
	d.account(m.made.UID, m.made.Status.Allocation)
	if now := d.claims[m.made.Namespace+"/"+m.made.Name]; now != nil && now.UID == m.made.UID {
		return d.updateAllocated(now)
	}
	return false
}

// makeClaim creates the claim of a reservation for extended resources. It returns the created
// claim, or the existing one.
func (b *claimBinder) makeClaim(ctx context.Context, c *framework.Claimed) (*resourcev1.ResourceClaim, error) {
	if len(c.Requests) == 0 {
		return c.Claim, nil
	}
	next := c.Claim.DeepCopy()
	next.Name, next.UID = "", ""
	made, err := b.kube.ResourceV1().ResourceClaims(next.Namespace).Create(ctx, next, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("creating claim for extended resources %s/%s: %w", c.Claim.Namespace, c.Claim.Name, err)
	}
	c.Made = made
	return made, nil
}

// setExtendedStatus sets the status of a pod that maps its extended resources to the requests of a
// claim.
func (b *claimBinder) setExtendedStatus(ctx context.Context, c *framework.Claimed) error {
	err := patchStatus(ctx, b.kube, c.Pod, map[string]any{"extendedResourceClaimStatus": corev1.PodExtendedResourceClaimStatus{
		ResourceClaimName: c.Made.Name, RequestMappings: c.Requests,
	}})
	if err != nil {
		return fmt.Errorf("updating ExtendedResourceClaimStatus of pod %s/%s: %w", c.Pod.Namespace, c.Pod.Name, err)
	}
	return nil
}

// releaseExtended deletes the claim for extended resources of a pod that could not be bound.
func (b *claimBinder) releaseExtended(ctx context.Context, c framework.Claimed) {
	b.inbox.put(message{devices: &devicesMessage{written: c.Claim}})
	if c.Made == nil {
		return
	}
	if err := b.deleteExtended(ctx, c.Made); err != nil {
		if ctx.Err() == nil {
			b.log.Warn("deleting ResourceClaim for extended resources of a pod failed", "resourceClaim", c.Made.Namespace+"/"+c.Made.Name, "err", err)
		}
		return
	}
	b.inbox.put(message{devices: &devicesMessage{written: c.Made}})
}

// free deallocates a claim. A claim for extended resources is deleted, because it is not needed any
// more.
func (b *claimBinder) free(ctx context.Context, claim *resourcev1.ResourceClaim) error {
	if extendedOwner(claim) != "" {
		return b.deleteExtended(ctx, claim)
	}
	return b.deallocate(ctx, claim)
}

// deleteExtended deletes an unused claim for extended resources.
func (b *claimBinder) deleteExtended(ctx context.Context, claim *resourcev1.ResourceClaim) error {
	claims := b.kube.ResourceV1().ResourceClaims(claim.Namespace)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		now, err := claims.Get(ctx, claim.Name, metav1.GetOptions{})
		if err != nil || now.UID != claim.UID || !slices.Contains(now.Finalizers, resourcev1.Finalizer) {
			return err
		}
		now.Finalizers = slices.DeleteFunc(now.Finalizers, func(f string) bool { return f == resourcev1.Finalizer })
		_, err = claims.Update(ctx, now, metav1.UpdateOptions{})
		return err
	})
	if err == nil {
		err = claims.Delete(ctx, claim.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(claim.UID))})
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // another claim with that name
	}
	return err
}
