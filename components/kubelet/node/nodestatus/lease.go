package nodestatus

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/internal/base/backoff"
	"hyperkube/internal/base/lifecycle"
)

// renewLease creates and renews the node's lease until ctx is done. The control plane considers the node
// healthy as long as the lease is renewed. Failures are retried with a back-off.
func (k *Manager) renewLease(ctx context.Context) {
	var lease *coordinationv1.Lease
	retry := backoff.Backoff{First: 50 * time.Millisecond, Max: k.cfg.Periods.Renew}
	for {
		next := k.cfg.Periods.Renew
		fresh, err := k.renew(ctx, lease)
		if err != nil {
			if ctx.Err() == nil {
				k.cfg.Log.Debug("renewing node lease failed; the control plane marks the node as unreachable if no retry succeeds within its node-monitor-grace-period, retrying with back-off", "err", err)
			}
			lease, next = nil, retry.Next()
		} else {
			lease = fresh
			retry.Reset()
		}
		if !lifecycle.Pause(ctx, next) {
			return
		}
	}
}

// renew renews the lease and returns the result. last is the lease as last written; if it is nil, the lease
// is read, or created if it does not exist.
func (k *Manager) renew(ctx context.Context, last *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	leases := k.cfg.Kube.CoordinationV1().Leases(v1.NamespaceNodeLease)
	if last == nil {
		found, err := leases.Get(ctx, k.cfg.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return leases.Create(ctx, k.lease(nil), metav1.CreateOptions{})
		case err != nil:
			return nil, err
		}
		last = found
	}
	return leases.Update(ctx, k.lease(last), metav1.UpdateOptions{})
}

// lease returns the lease to write, derived from last, which may be nil.
func (k *Manager) lease(last *coordinationv1.Lease) *coordinationv1.Lease {
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: k.cfg.Name, Namespace: v1.NamespaceNodeLease}}
	if last != nil {
		l = last.DeepCopy()
	}
	name, seconds, now := k.cfg.Name, int32(k.cfg.Periods.Lease/time.Second), metav1.NewMicroTime(time.Now())
	l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds, l.Spec.RenewTime = &name, &seconds, &now
	if node := k.Node(); node != nil && len(l.OwnerReferences) == 0 {
		l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
	}
	return l
}
