// Package leaderelection implements leader election: it runs a function while this process holds a Lease.
//
// https://kubernetes.io/docs/concepts/architecture/leases/#leader-election
package leaderelection

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

// Election configures the leader election. WithDefaults replaces zero durations and empty names by upstream's
// defaults.
type Election struct {
	// LeaseDuration is the time that candidates wait for a leader that does not renew. Default: 15
	// s.
	LeaseDuration time.Duration
	// RenewDeadline is the time after which a leader that cannot renew gives up. Default: 10 s.
	RenewDeadline time.Duration
	// RetryPeriod is the time between attempts. Default: 2 s.
	RetryPeriod time.Duration
	// Namespace and Name identify the Lease. The default namespace is kube-system.
	Namespace, Name string
	// Health, unless nil, then checks whether this election's lease is renewed.
	Health *Health
}

// AddFlags adds upstream's --leader-elect-… flags to f, which set the fields of e. *elect is set to
// the value of --leader-elect. component is the default name of the Lease.
func (e *Election) AddFlags(f *pflag.FlagSet, elect *bool, component string) {
	f.BoolVar(elect, "leader-elect", true, "Start a leader election client and gain leadership before executing the main loop.")
	f.DurationVar(&e.LeaseDuration, "leader-elect-lease-duration", 15*time.Second, "The duration that non-leader candidates will wait after observing a leadership renewal until attempting to acquire leadership.")
	f.DurationVar(&e.RenewDeadline, "leader-elect-renew-deadline", 10*time.Second, "The interval between attempts by the acting leader to renew a leadership slot before it stops leading.")
	f.DurationVar(&e.RetryPeriod, "leader-elect-retry-period", 2*time.Second, "The duration the clients should wait between attempting acquisition and renewal of a leadership.")
	f.StringVar(&e.Name, "leader-elect-resource-name", component, "The name of the lease used for leader election.")
	f.StringVar(&e.Namespace, "leader-elect-resource-namespace", metav1.NamespaceSystem, "The namespace of the lease used for leader election.")
}

// WithDefaults returns e with upstream's defaults for unset fields. name is the default name of the
// Lease.
func (e Election) WithDefaults(name string) Election {
	e.LeaseDuration = cmp.Or(e.LeaseDuration, 15*time.Second)
	e.RenewDeadline = cmp.Or(e.RenewDeadline, 10*time.Second)
	e.RetryPeriod = cmp.Or(e.RetryPeriod, 2*time.Second)
	e.Namespace = cmp.Or(e.Namespace, "kube-system")
	e.Name = cmp.Or(e.Name, name)
	return e
}

// Run waits until it holds the lease of e, which must have its defaults, then calls f, and releases the lease when f
// has returned. The context of f is canceled when ctx is done or the lease is lost. Run returns after f has returned:
// with the error of f, or nil if f returned nil before its context was canceled. Otherwise it returns nil if ctx is
// done, and an error if the lease was lost. recorder receives the LeaderElection events; it may be nil.
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
	c := &candidate{f: f}
	// The election continues after ctx is done until f has returned, so that no other process
	// becomes the leader before.
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
	// Do not use ReleaseOnCancel of the library: after a failed renewal it releases the lease
	// before f has been asked to stop.
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

// release releases the lease if lock still holds it. If that fails, it logs this, and other candidates wait until the
// lease expires. It is done even if ctx is canceled, within the RenewDeadline of e.
func release(ctx context.Context, e Election, lock resourcelock.Interface) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.RenewDeadline)
	defer cancel()
	// An interrupted renewal may still be written and cause a conflict.
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
		slog.WarnContext(ctx, "releasing leader election lease at shutdown failed; another instance takes over only when the lease expires, no action is needed", "lease", lock.Describe(), "err", err)
	}
}

// candidate is the state of one call of Run, which tries to become the leader and then runs f.
type candidate struct {
	f       func(context.Context) error
	running sync.WaitGroup

	mu sync.Mutex
	// started is set when f was called, withdrawn when it must not be called anymore. Guarded by mu.
	started, withdrawn bool

	// err is the error of f. finished is set if f returned without being asked to stop. Both may be
	// read after running.Wait.
	err      error
	finished bool
}

// withdraw prevents lead from calling f in the future. It reports whether f has already been
// called.
func (c *candidate) withdraw() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.withdrawn = true
	return c.started
}

// lead runs f until it returns, and stores its error. It does nothing if the candidate has withdrawn. The context of
// f is canceled when stopping (the process stops) or leading (the lease is held) is done. The leader election library
// calls lead in a goroutine and does not wait for it.
func (c *candidate) lead(stopping, leading context.Context) {
	c.mu.Lock()
	if c.withdrawn {
		c.mu.Unlock()
		return
	}
	c.started = true
	c.running.Add(1)
	c.mu.Unlock()
	defer c.running.Done()
	ctx, cancel := context.WithCancel(leading)
	defer cancel()
	defer context.AfterFunc(stopping, cancel)()
	c.err = c.f(ctx)
	c.finished = ctx.Err() == nil
}
