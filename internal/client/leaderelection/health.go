package leaderelection

import (
	"time"

	"k8s.io/client-go/tools/leaderelection"
)

// HealthName is the name of the leader election check in health endpoints, as in upstream.
const HealthName = "leaderElection"

// expiryTolerance is how long after the expiry of an unrenewed lease the check still succeeds,
// because a leader normally gives up before that.
const expiryTolerance = 20 * time.Second

// Health is a health check that fails if this process is the leader but has not renewed its lease in time. It always
// succeeds in processes that are not the leader, or before the Election that it belongs to runs. Its methods are safe
// for concurrent use.
type Health struct {
	adaptor *leaderelection.HealthzAdaptor
}

// NewHealth creates a Health, which the caller sets in the Election that it checks.
func NewHealth() *Health { return &Health{leaderelection.NewLeaderHealthzAdaptor(expiryTolerance)} }

// Check returns an error if this process is the leader and its lease expired more than 20 seconds
// ago.
func (h *Health) Check() error { return h.adaptor.Check(nil) }

// watch returns the library's health check, which the election updates, or nil for a nil Health.
func (h *Health) watch() *leaderelection.HealthzAdaptor {
	if h == nil {
		return nil
	}
	return h.adaptor
}
