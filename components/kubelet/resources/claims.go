package resources

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"hyperkube/components/kubelet/resources/dra"
	"hyperkube/internal/base/backoff"
)

// minReconcileBackoff and maxReconcileBackoff bound the delay before unpreparing the claims of pods that were
// deleted while the kubelet was not running is retried. Their drivers may not have registered yet.
const (
	minReconcileBackoff = time.Second
	maxReconcileBackoff = 5 * time.Minute
)

// Claims returns the manager of ResourceClaims, which prepares the devices of pods' claims and is the
// pluginwatch.Handler of DRA drivers.
func (m *Manager) Claims() *dra.Manager { return m.claims }

// ReconcileClaims unprepares the claims of pods that were deleted while the kubelet was not running. It
// retries until it succeeds or ctx is done. It must not be called before all sources have delivered their
// pods.
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
		m.log.Warn("unpreparing ResourceClaims of deleted pods failed; their devices remain prepared on this node until a retry succeeds, retrying with back-off", "err", err)
		if !retry.Pause(ctx) {
			return
		}
	}
}
