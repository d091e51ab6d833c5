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

// extendedOwner returns the UID of the pod for whose extended resources the scheduler has created the claim. It returns
// "" for all other claims.
func extendedOwner(claim *resourcev1.ResourceClaim) types.UID {
	if claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] != "true" {
		return ""
	}
	if owner := metav1.GetControllerOf(claim); owner != nil && owner.Kind == "Pod" {
		return owner.UID
	}
	return ""
}

// ExtendedClaim returns the claim that the scheduler has created for a pod's extended resources, or nil.
func (d *devices) ExtendedClaim(pod types.UID) *resourcev1.ResourceClaim { return d.extended[pod] }

// Class returns the DeviceClass whose devices satisfy requests of an extended resource, or nil if there is none. If
// several classes have the same extended resource name, it returns the newest one, or of equally old ones the first by
// name.
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

// updateExtended updates d.extended with a claim that was changed, or deleted if gone is true. Claims that are not for
// extended resources are ignored.
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

// movePlanned moves the allocation that was recorded under framework.PlannedClaim to the claim that was created for it.
// It reports whether devices became available.
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

// makeClaim creates the claim in the API server if c is for extended resources, and stores it in c.Made. It returns the
// created claim, or for other claims the existing one.
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

// setExtendedStatus writes to the status of the pod which request of the claim satisfies which extended resource of
// which container. The kubelet needs this mapping.
func (b *claimBinder) setExtendedStatus(ctx context.Context, c *framework.Claimed) error {
	err := patchStatus(ctx, b.kube, c.Pod, map[string]any{"extendedResourceClaimStatus": corev1.PodExtendedResourceClaimStatus{
		ResourceClaimName: c.Made.Name, RequestMappings: c.Requests,
	}})
	if err != nil {
		return fmt.Errorf("updating ExtendedResourceClaimStatus of pod %s/%s: %w", c.Pod.Namespace, c.Pod.Name, err)
	}
	return nil
}

// releaseExtended deletes the claim for the extended resources of a pod that could not be bound, and makes its devices
// available again. If the deletion fails, the next attempt to schedule the pod deletes it.
func (b *claimBinder) releaseExtended(ctx context.Context, c framework.Claimed) {
	b.inbox.put(message{devices: &devicesMessage{written: c.Claim}})
	if c.Made == nil {
		return
	}
	if err := b.deleteExtended(ctx, c.Made); err != nil {
		if ctx.Err() == nil {
			b.log.Warn("deleting ResourceClaim that was created for the extended resources of a pod failed after the pod could not be bound; the claim remains, retrying at the next scheduling attempt of the pod", "pod", name(c.Pod), "resourceClaim", c.Made.Namespace+"/"+c.Made.Name, "err", err)
		}
		return
	}
	b.inbox.put(message{devices: &devicesMessage{written: c.Made}})
}

// free removes the allocation of a claim, so that the next attempt to schedule its pod can allocate other devices. A
// claim for extended resources is deleted, because the next attempt creates a new one.
func (b *claimBinder) free(ctx context.Context, claim *resourcev1.ResourceClaim) error {
	if extendedOwner(claim) != "" {
		return b.deleteExtended(ctx, claim)
	}
	return b.deallocate(ctx, claim)
}

// deleteExtended removes the finalizer of a claim for extended resources and deletes the claim. It is not an error if
// the claim was deleted.
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
