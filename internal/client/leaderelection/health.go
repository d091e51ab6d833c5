package leaderelection

import (
	"time"

	"k8s.io/client-go/tools/leaderelection"
)

// HealthName is the upstream name of the health check.
const HealthName = "leaderElection"

// expiryTolerance is the time after the expiry of a lease that was not renewed during which the check still
// succeeds.
const expiryTolerance = 20 * time.Second

// Health checks whether a leader renews its lease. It always succeeds for processes that do not
// lead. Its methods are safe for concurrent use.
type Health struct {
	adaptor *leaderelection.HealthzAdaptor
}

// NewHealth creates a Health for one Election.
func NewHealth() *Health { return &Health{leaderelection.NewLeaderHealthzAdaptor(expiryTolerance)} }

// Check returns an error if the lease has not been renewed.
func (h *Health) Check() error { return h.adaptor.Check(nil) }

func (h *Health) watch() *leaderelection.HealthzAdaptor {
	if h == nil {
		return nil
	}
	return h.adaptor
}
