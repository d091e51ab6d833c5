package leader

import (
	"time"

	"k8s.io/client-go/tools/leaderelection"
)

// HealthName is what upstream calls the health check.
const HealthName = "leaderElection"

// expired is for how long after its end a lease that is not renewed is put up
// with.
const expired = 20 * time.Second

// Health tells whether a leader renews its lease. Whoever does not lead is well.
// Its methods are safe for several goroutines.
type Health struct {
	adaptor *leaderelection.HealthzAdaptor
}

// NewHealth makes a Health for one Election.
func NewHealth() *Health { return &Health{leaderelection.NewLeaderHealthzAdaptor(expired)} }

// Check is an error if the lease has not been renewed.
func (h *Health) Check() error { return h.adaptor.Check(nil) }

func (h *Health) watch() *leaderelection.HealthzAdaptor {
	if h == nil {
		return nil
	}
	return h.adaptor
}
