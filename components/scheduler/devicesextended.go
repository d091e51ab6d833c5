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

// Devices that a pod asks for as extended resources are in a claim that the
// scheduler makes once it has chosen a node. Until that is written, and has come
// back, what it is to have is accounted for under framework.PlannedClaim.
// https://kep.k8s.io/5004

// extendedOwner is the pod whose extended resources a claim is for; "": it is not
// for such.
func extendedOwner(claim *resourcev1.ResourceClaim) types.UID {
	if claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] != "true" {
		return ""
	}
	if owner := metav1.GetControllerOf(claim); owner != nil && owner.Kind == "Pod" {
		return owner.UID
	}
	return ""
}

// ExtendedClaim as framework.Devices.
func (d *devices) ExtendedClaim(pod types.UID) *resourcev1.ResourceClaim { return d.extended[pod] }

// Class as framework.Devices. Of several classes that say they are the resource it
// is the newest one, or the first by name.
func (d *devices) Class(resource corev1.ResourceName) *resourcev1.DeviceClass {
	if d.byResource == nil {
		d.byResource = map[corev1.ResourceName]*resourcev1.DeviceClass{}
		all, _ := d.classes.List() // from memory, which does not fail
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

// noteExtended keeps the claims of pods' extended resources.
func (d *devices) noteExtended(claim *resourcev1.ResourceClaim, gone bool) {
	owner := extendedOwner(claim)
	switch was := d.extended[owner]; {
	case owner == "":
	case !gone:
		d.extended[owner] = claim
	case was != nil && was.UID == claim.UID:
		delete(d.extended, owner)
	}
}

// handOver has the claim that was made have what was planned for it.
func (d *devices) handOver(m *devicesMessage) bool {
	delete(d.pending, m.written.UID)
	d.account(m.written.UID, nil)
	d.pending[m.made.UID] = m.version
	d.account(m.made.UID, m.made.Status.Allocation)
	if now := d.claims[m.made.Namespace+"/"+m.made.Name]; now != nil && now.UID == m.made.UID {
		return d.settle(now)
	}
	return false
}

// makeClaim makes the claim of a reservation that has none yet, and returns it; or
// the one that there is.
func (s *Scheduler) makeClaim(ctx context.Context, c *framework.Claimed) (*resourcev1.ResourceClaim, error) {
	if len(c.Requests) == 0 {
		return c.Claim, nil
	}
	next := c.Claim.DeepCopy()
	next.Name, next.UID = "", ""
	made, err := s.cfg.Clients.Kube.ResourceV1().ResourceClaims(next.Namespace).Create(ctx, next, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create claim for extended resources %s/%s: %w", c.Claim.Namespace, c.Claim.Name, err)
	}
	c.Made = made
	return made, nil
}

// tellExtended writes to a pod's status which requests of which claim stand for its
// extended resources.
func (s *Scheduler) tellExtended(ctx context.Context, c *framework.Claimed) error {
	err := s.patchStatus(ctx, c.Pod, map[string]any{"extendedResourceClaimStatus": corev1.PodExtendedResourceClaimStatus{
		ResourceClaimName: c.Made.Name, RequestMappings: c.Requests,
	}})
	if err != nil {
		return fmt.Errorf("update pod %s/%s ExtendedResourceClaimStatus: %w", c.Pod.Namespace, c.Pod.Name, err)
	}
	return nil
}

// releaseExtended takes back the claim of a pod that is not bound after all.
func (s *Scheduler) releaseExtended(ctx context.Context, c framework.Claimed) {
	s.inbox.put(message{devices: &devicesMessage{written: c.Claim}})
	if c.Made == nil {
		return
	}
	if err := s.deleteExtended(ctx, c.Made); err != nil {
		if ctx.Err() == nil {
			s.cfg.Log.Warn("deleting a claim for extended resources failed", "claim", c.Made.Namespace+"/"+c.Made.Name, "err", err)
		}
		return
	}
	s.inbox.put(message{devices: &devicesMessage{written: c.Made}})
}

// free gives the devices of a claim back. One for extended resources is of no more
// use then.
func (s *Scheduler) free(ctx context.Context, claim *resourcev1.ResourceClaim) error {
	if extendedOwner(claim) != "" {
		return s.deleteExtended(ctx, claim)
	}
	return s.deallocate(ctx, claim)
}

// deleteExtended deletes a claim for extended resources that nobody uses.
func (s *Scheduler) deleteExtended(ctx context.Context, claim *resourcev1.ResourceClaim) error {
	claims := s.cfg.Clients.Kube.ResourceV1().ResourceClaims(claim.Namespace)
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
		return nil // another claim of that name
	}
	return err
}
