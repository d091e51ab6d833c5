// Package leader runs something while a Lease is held.
//
// https://kubernetes.io/docs/concepts/architecture/leases/#leader-election
package leader

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/retry"
)

// Election is over a Lease. Zero durations are upstream's defaults.
type Election struct {
	// LeaseDuration is how long others wait for a silent leader; 15 s.
	LeaseDuration time.Duration
	// RenewDeadline is when a leader that cannot renew gives up; 10 s.
	RenewDeadline time.Duration
	// RetryPeriod is the time between tries; 2 s.
	RetryPeriod time.Duration
	// Namespace and Name of the Lease; the namespace is kube-system unless
	// set.
	Namespace, Name string
	// Health tells others whether the lease is renewed; it may be nil.
	Health *Health
}

// AddFlags adds upstream's flags of the election of a component; elect is whether there
// is one.
func (e *Election) AddFlags(f *pflag.FlagSet, elect *bool, component string) {
	f.BoolVar(elect, "leader-elect", true, "Work only while holding the lease of the leader.")
	f.DurationVar(&e.LeaseDuration, "leader-elect-lease-duration", 15*time.Second, "How long a leader that is not heard of is waited for.")
	f.DurationVar(&e.RenewDeadline, "leader-elect-renew-deadline", 10*time.Second, "How long a leader tries to renew before it gives up.")
	f.DurationVar(&e.RetryPeriod, "leader-elect-retry-period", 2*time.Second, "How long between two tries.")
	f.StringVar(&e.Name, "leader-elect-resource-name", component, "Name of the lease.")
	f.StringVar(&e.Namespace, "leader-elect-resource-namespace", metav1.NamespaceSystem, "Namespace of the lease.")
}

// Defaulted is e with name, if it has none, and the defaults of the rest.
func (e Election) Defaulted(name string) Election {
	e.LeaseDuration = cmp.Or(e.LeaseDuration, 15*time.Second)
	e.RenewDeadline = cmp.Or(e.RenewDeadline, 10*time.Second)
	e.RetryPeriod = cmp.Or(e.RetryPeriod, 2*time.Second)
	e.Namespace = cmp.Or(e.Namespace, "kube-system")
	e.Name = cmp.Or(e.Name, name)
	return e
}

// Run waits until it holds the lease of e, which has its defaults, runs f, and
// gives the lease back when f has returned. The context of f ends with ctx or
// with the leadership. Run returns f's error, or one that says that the lease
// was lost; it is nil when ctx has ended. Recorder, which may be nil, gets the
// LeaderElection events.
func Run(ctx context.Context, e Election, kube kubernetes.Interface, recorder resourcelock.EventRecorder, f func(context.Context) error) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, e.Namespace, e.Name, nil, kube.CoordinationV1(),
		resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID()), EventRecorder: recorder})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	c := &candidacy{f: f}
	// The election outlives ctx until f has returned, so that nobody else
	// begins before.
	electing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: e.LeaseDuration, RenewDeadline: e.RenewDeadline, RetryPeriod: e.RetryPeriod,
		Name: e.Name, WatchDog: e.Health.watch(),
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				c.lead(ctx, leading)
				stop()
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	unhook := context.AfterFunc(ctx, func() {
		if !c.withdraw() {
			stop()
		}
	})
	defer unhook()
	elector.Run(electing)
	begun := c.withdraw()
	c.running.Wait()
	// Not by the library's ReleaseOnCancel: that would be before f is asked to
	// return when a renewal has failed.
	if elector.IsLeader() {
		release(ctx, e, lock)
	}
	if begun {
		if c.err != nil || c.finished {
			return c.err
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("leader election lost: %s/%s", e.Namespace, e.Name)
}

// release gives up the lease, if lock still holds it. Where that fails, others
// wait until it has expired.
func release(ctx context.Context, e Election, lock resourcelock.Interface) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.RenewDeadline)
	defer cancel()
	// A renewal that was broken off can be written still, and conflict.
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		record, _, err := lock.Get(ctx)
		if err != nil || record.HolderIdentity != lock.Identity() {
			return err
		}
		now := metav1.Now()
		return lock.Update(ctx, resourcelock.LeaderElectionRecord{
			LeaderTransitions: record.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: now, AcquireTime: now,
		})
	})
	if err != nil {
		slog.WarnContext(ctx, "the lease is not given back", "lease", lock.Describe(), "error", err)
	}
}

// candidacy is one run for the lease.
type candidacy struct {
	f       func(context.Context) error
	running sync.WaitGroup

	mu sync.Mutex
	// begun says that f was called, withdrawn that it may not be any more.
	// Guarded by mu.
	begun, withdrawn bool

	// How f ended; finished is by itself. For who has waited for running.
	err      error
	finished bool
}

// withdraw keeps f from beginning; it returns whether f has begun already.
func (c *candidacy) withdraw() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.withdrawn = true
	return c.begun
}

// lead runs f until it returns; f is asked to when asked or leading ends. The
// library calls it in a goroutine that it does not wait for.
func (c *candidacy) lead(asked, leading context.Context) {
	c.mu.Lock()
	if c.withdrawn {
		c.mu.Unlock()
		return
	}
	c.begun = true
	c.running.Add(1)
	c.mu.Unlock()
	defer c.running.Done()
	ctx, cancel := context.WithCancel(leading)
	defer cancel()
	defer context.AfterFunc(asked, cancel)()
	c.err = c.f(ctx)
	c.finished = ctx.Err() == nil
}
