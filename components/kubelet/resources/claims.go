package resources

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"hyperkube/components/kubelet/resources/dra"
	"hyperkube/internal/base/backoff"
)

// Bounds of the back-off for unpreparing claims of pods that were deleted while the kubelet was not
// running. Their drivers may not have registered yet.
const (
	minReconcileBackoff = time.Second
	maxReconcileBackoff = 5 * time.Minute
)

// Claims returns the manager of ResourceClaims, which prepares the claims of pods and is the handler of DRA
// drivers' registrations.
func (m *Manager) Claims() *dra.Manager { return m.claims }

// ReconcileClaims unprepares the claims of pods that no longer exist, until it succeeds or ctx is done.
// All pods of the node must be known.
func (m *Manager) ReconcileClaims(ctx context.Context) {
	exists := func(uid types.UID) bool {
		select {
		case <-m.pods.Cleaned(uid):
			return false
		default:
			return true
		}
	}
	retry := backoff.Backoff{First: minReconcileBackoff, Max: maxReconcileBackoff}
	for {
		err := m.claims.Reconcile(ctx, exists)
		if err == nil || ctx.Err() != nil {
			return
		}
		m.log.Warn("unpreparing ResourceClaims of deleted pods failed, will retry", "err", err)
		if !retry.Pause(ctx) {
			return
		}
	}
}
