package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"hyperkube/components/scheduler/framework"
)

// claimBinder writes the allocations of resource claims to the API server while a pod is being bound. It is safe for
// concurrent use.
type claimBinder struct {
	kube    kubernetes.Interface
	log     *slog.Logger
	inbox   *inbox
	devices *devices // only lister and changed, which all goroutines may use
}

// bind writes the allocations of a reservation, adds the pod to the consumers of the claims, and waits until the
// drivers have prepared the devices. It calls waits before it waits. If the devices are not ready within
// r.DevicesTimeout or fail, it removes the allocation and returns an error. The caller must call release after an
// error.
func (b *claimBinder) bind(ctx context.Context, r *framework.Reservation, waits func()) error {
	var unready []*resourcev1.ResourceClaim
	for i := range r.Claims {
		c := &r.Claims[i]
		claim, err := b.makeClaim(ctx, c)
		if err == nil {
			claim, err = b.writeClaim(ctx, *c, claim)
		}
		if err != nil {
			return fmt.Errorf("claim %s/%s: %w", c.Claim.Namespace, c.Claim.Name, err)
		}
		if c.Made != nil {
			b.inbox.put(message{devices: &devicesMessage{written: c.Claim, made: claim, version: claim.ResourceVersion}})
			if err := b.setExtendedStatus(ctx, c); err != nil {
				return err
			}
		} else if c.Allocation != nil {
			b.inbox.put(message{devices: &devicesMessage{written: c.Claim, version: claim.ResourceVersion}})
		}
		ready, err := deviceConditions(claim)
		if err != nil {
			return err
		}
		if !ready {
			unready = append(unready, claim)
		}
	}
	if len(unready) == 0 {
		return nil
	}
	waits()
	late := errors.New("device binding timeout")
	waiting, cancel := context.WithTimeoutCause(ctx, r.DevicesTimeout, late)
	defer cancel()
	for _, claim := range unready {
		err := b.awaitDevices(waiting, claim)
		if errors.Is(err, late) {
			err = fmt.Errorf("%w: claim=%s", late, claim.Name)
		}
		if err != nil && ctx.Err() == nil {
			// The next attempt may choose devices that become ready.
			err = errors.Join(err, b.deallocate(ctx, claim))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// release removes the pod of a reservation from the consumers of its claims after the pod could not be bound. Devices
// whose allocation was not written become available again. Failures are logged.
func (b *claimBinder) release(ctx context.Context, r *framework.Reservation) {
	for _, c := range r.Claims {
		if len(c.Requests) > 0 {
			b.releaseExtended(ctx, c)
			continue
		}
		if err := b.unreserve(ctx, c); err != nil && ctx.Err() == nil {
			b.log.Warn("removing pod that could not be bound from status.reservedFor of ResourceClaim failed; the claim stays reserved for the pod until the pod is scheduled or deleted", "pod", name(c.Pod), "resourceClaim", c.Claim.Namespace+"/"+c.Claim.Name, "err", err)
		}
		if c.Allocation == nil {
			continue
		}
		version, err := b.versionOf(ctx, c.Claim)
		if err != nil {
			return // ctx is canceled
		}
		b.inbox.put(message{devices: &devicesMessage{written: c.Claim, version: version}})
	}
}

// versionOf returns the current resource version of a claim from the API server, or "" if the claim was deleted. After
// a failed write it is unknown whether the allocation was written and thus whether its devices are free, so versionOf
// retries until the API server responds or ctx is done.
func (b *claimBinder) versionOf(ctx context.Context, claim *resourcev1.ResourceClaim) (version string, err error) {
	again := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: math.MaxInt32, Cap: 10 * time.Second}
	err = wait.ExponentialBackoffWithContext(ctx, again, func(ctx context.Context) (bool, error) {
		now, err := b.kube.ResourceV1().ResourceClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
		switch {
		case err == nil && now.UID == claim.UID:
			version = now.ResourceVersion
		case err != nil && !apierrors.IsNotFound(err):
			return false, nil
		}
		return true, nil
	})
	return version, err
}

// writeClaim writes the allocation in c to the claim, if there is one, and adds the pod to the consumers of the claim.
// claim is the cached version. It returns the written version. It returns an error if the claim was deleted, or
// allocated or deallocated by another client.
func (b *claimBinder) writeClaim(ctx context.Context, c framework.Claimed, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	claims := b.kube.ResourceV1().ResourceClaims(claim.Namespace)
	name, uid := claim.Name, claim.UID
	first := true
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		var err error
		if !first {
			if claim, err = claims.Get(ctx, name, metav1.GetOptions{}); err != nil {
				return err
			}
		}
		first = false
		switch {
		case claim.UID != uid:
			return errors.New("claim was recreated")
		case claim.DeletionTimestamp != nil:
			return errors.New("claim is being deleted")
		case c.Allocation == nil && claim.Status.Allocation == nil:
			return errors.New("claim was deallocated")
		case c.Allocation != nil && claim.Status.Allocation != nil:
			return errors.New("claim was allocated by another scheduler")
		}
		// Add the finalizer first, so that an allocated claim cannot be deleted.
		if c.Allocation != nil && !slices.Contains(claim.Finalizers, resourcev1.Finalizer) {
			next := claim.DeepCopy()
			next.Finalizers = append(next.Finalizers, resourcev1.Finalizer)
			if claim, err = claims.Update(ctx, next, metav1.UpdateOptions{}); err != nil {
				return err
			}
		}
		reserved := slices.ContainsFunc(claim.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID == c.Pod.UID })
		if c.Allocation == nil && reserved {
			return nil
		}
		next := claim.DeepCopy()
		if c.Allocation != nil {
			next.Status.Allocation = c.Allocation.DeepCopy()
			now := metav1.Now()
			next.Status.Allocation.AllocationTimestamp = &now
		}
		if !reserved {
			next.Status.ReservedFor = append(next.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: c.Pod.Name, UID: c.Pod.UID})
		}
		claim, err = claims.UpdateStatus(ctx, next, metav1.UpdateOptions{})
		return err
	})
	return claim, err
}

// awaitDevices waits until the drivers have prepared the devices of a claim. claim is the version that writeClaim has
// returned. It returns an error if preparation fails, the claim is deleted or ctx is done.
func (b *claimBinder) awaitDevices(ctx context.Context, claim *resourcev1.ResourceClaim) error {
	for {
		changed := b.devices.changed.Next()
		now, err := b.devices.lister.ResourceClaims(claim.Namespace).Get(claim.Name)
		switch {
		case apierrors.IsNotFound(err):
			return fmt.Errorf("claim %s/%s was deleted", claim.Namespace, claim.Name)
		case err != nil:
			return err
		case now.UID != claim.UID:
			return fmt.Errorf("claim %s/%s was recreated", claim.Namespace, claim.Name)
		}
		order, err := resourceversion.CompareResourceVersion(now.ResourceVersion, claim.ResourceVersion)
		if err != nil {
			return err
		}
		if order >= 0 { // otherwise the cache is stale
			if ready, err := deviceConditions(now); ready || err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// unreserve removes the pod from the consumers of the claim in c, after the pod could not be bound. The claim stays
// allocated; the next attempt to schedule the pod uses the allocation or removes it. It is not an error if the claim
// was deleted.
func (b *claimBinder) unreserve(ctx context.Context, c framework.Claimed) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": c.Claim.UID},
		"status":   map[string]any{"reservedFor": []any{map[string]any{"$patch": "delete", "uid": c.Pod.UID}}},
	})
	if err != nil {
		return err
	}
	_, err = b.kube.ResourceV1().ResourceClaims(c.Claim.Namespace).Patch(ctx, c.Claim.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // another claim with that name
	}
	return err
}

// deallocate removes the allocation of a claim, unless more than one pod uses it. It is not an error if the claim was
// deleted.
func (b *claimBinder) deallocate(ctx context.Context, claim *resourcev1.ResourceClaim) error {
	claims := b.kube.ResourceV1().ResourceClaims(claim.Namespace)
	uid := claim.UID
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		now, err := claims.Get(ctx, claim.Name, metav1.GetOptions{})
		if err != nil || now.UID != uid || now.Status.Allocation == nil || len(now.Status.ReservedFor) > 1 {
			return err
		}
		now.Status.Allocation, now.Status.ReservedFor, now.Status.Devices = nil, nil, nil
		_, err = claims.UpdateStatus(ctx, now, metav1.UpdateOptions{})
		return err
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
