package probe

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/pod/podstate"
)

// Group is the set of probes of one running container. They run in goroutines: first the startup probe and, after
// it has succeeded, the liveness and readiness probes.
type Group struct {
	cancel context.CancelFunc
	wait   sync.WaitGroup
	// stopSoft stops the startup and liveness probes.
	stopSoft context.CancelFunc

	mu     sync.Mutex // guards health
	health podstate.Health

	prober  *Prober
	target  Target
	started time.Time
	changed func()
	event   func(warning bool, reason, message string)
}

// Options are the options of Prober.Start: the container to probe and the functions that are called when the
// results change.
type Options struct {
	Target Target
	// Started is when the container was started. Probe delays are relative to it.
	Started time.Time
	// KnownStarted and KnownReady are the status of this container before the kubelet's restart. They are the
	// initial results, so that a restart of the kubelet does not make pods unready.
	KnownStarted, KnownReady bool
	// Changed is called from any goroutine after Health has changed. It must not block.
	Changed func()
	// Event emits an event for the container.
	Event func(warning bool, reason, message string)
}

// Start starts the probes of a container. The liveness and readiness probes start when the startup probe has
// succeeded, which is not run again for a container that is known to have started. It returns nil if the
// container has none. The caller must call Stop.
func (p *Prober) Start(o Options) *Group {
	c := o.Target.Container
	if c.StartupProbe == nil && c.LivenessProbe == nil && c.ReadinessProbe == nil {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	soft, stopSoft := context.WithCancel(ctx)
	g := &Group{
		cancel: cancel, stopSoft: stopSoft, prober: p, target: o.Target, started: o.Started, changed: o.Changed, event: o.Event,
	}
	startup := c.StartupProbe
	if startup != nil {
		g.health.Startup = podstate.Pending
		if o.KnownStarted {
			g.health.Startup = podstate.Success
			startup = nil
		}
	}
	if c.LivenessProbe != nil {
		g.health.Liveness = podstate.Success
	}
	if c.ReadinessProbe != nil {
		g.health.Readiness = podstate.Pending
		if o.KnownReady {
			g.health.Readiness = podstate.Success
		}
	}
	g.wait.Go(func() {
		from := g.started
		if startup != nil {
			if !g.loop(soft, "Startup", startup, from, func(h *podstate.Health) *podstate.Result { return &h.Startup }) {
				return
			}
			from = time.Now()
		}
		if c.LivenessProbe != nil && c.ReadinessProbe != nil {
			g.wait.Go(func() {
				g.loop(soft, "Liveness", c.LivenessProbe, from, func(h *podstate.Health) *podstate.Result { return &h.Liveness })
			})
		} else if c.LivenessProbe != nil {
			g.loop(soft, "Liveness", c.LivenessProbe, from, func(h *podstate.Health) *podstate.Result { return &h.Liveness })
			return
		}
		if c.ReadinessProbe != nil {
			g.loop(ctx, "Readiness", c.ReadinessProbe, from, func(h *podstate.Health) *podstate.Result { return &h.Readiness })
		}
	})
	return g
}

// Health returns the latest results of the probes.
func (g *Group) Health() podstate.Health {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.health
}

// StopStartupAndLiveness stops the probes that could restart the container. Readiness probes
// continue while the pod terminates.
func (g *Group) StopStartupAndLiveness() { g.stopSoft() }

// Stop stops all probes, waits until they have returned, and removes their metrics.
func (g *Group) Stop() {
	g.cancel()
	g.stopSoft()
	g.wait.Wait()
	g.prober.Metrics.remove(&g.target)
}

// minEarlyInterval is the initial interval of the probes in the first period after a container has started. Their
// failures do not count; they detect early that the container is ready.
const minEarlyInterval = 20 * time.Millisecond

// loop runs the probe spec periodically and stores the results in field, until ctx is done or the result is final:
// a startup probe has succeeded, or a startup or liveness probe has failed. It returns true in the first of these
// cases. name is Startup, Liveness or Readiness. from is when the container was started or its startup probe
// succeeded; the probe does not run earlier.
func (g *Group) loop(ctx context.Context, name string, spec *v1.Probe, from time.Time, field func(*podstate.Health) *podstate.Result) bool {
	period := time.Duration(max(spec.PeriodSeconds, 1)) * time.Second
	if spec.PeriodSeconds == 0 {
		period = 10 * time.Second
	}
	first := g.started.Add(time.Duration(spec.InitialDelaySeconds) * time.Second)
	// The first probe that counts is one period after the start. Early probes in shorter intervals,
	// whose failures do not count, detect that a container is ready without waiting for a period,
	// because most containers are not ready immediately.
	early := time.Duration(0)
	if spec.InitialDelaySeconds == 0 {
		first = from.Add(period)
		if name != "Liveness" && time.Since(from) < period {
			first, early = from, minEarlyInterval
		}
	}
	delay := time.Until(first)
	if delay <= 0 && time.Since(from) > period {
		// Spread the first probes after a restart of the kubelet.
		delay = rand.N(period)
	}
	timer := time.NewTimer(max(delay, 0))
	defer timer.Stop()
	var last Answer
	run := int32(0)
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
		}
		next := time.Now().Add(period)
		began := time.Now()
		answer, text, err := g.attempt(ctx, spec)
		if ctx.Err() != nil {
			return false
		}
		if answer == Warning {
			g.event(true, "ProbeWarning", fmt.Sprintf("%s probe warning: %s", name, text))
			answer = Success
		}
		if early == 0 || answer == Success {
			g.prober.Metrics.record(name, &g.target, answer, time.Since(began))
		}
		if early > 0 && answer != Success {
			left := period - time.Since(from)
			if spec.Exec != nil || early >= left {
				// Do not run commands more often than specified.
				early = left
			}
			timer.Reset(early)
			if early *= 2; early >= 2*left {
				early = 0
			}
			continue
		}
		early = 0
		switch {
		case err != nil:
			g.event(true, "Unhealthy", fmt.Sprintf("%s probe errored and resulted in unknown state: %v", name, err))
		case answer == Failure:
			g.event(true, "Unhealthy", fmt.Sprintf("%s probe failed: %s", name, text))
		}
		if answer == Unknown {
			// There is no result.
			timer.Reset(time.Until(next))
			continue
		}
		if answer != last {
			last, run = answer, 0
		}
		run++
		switch {
		case answer == Failure && run >= max(spec.FailureThreshold, 1):
			g.set(field, podstate.Failure)
			if name != "Readiness" {
				return false
			}
		case answer == Success && run >= max(spec.SuccessThreshold, 1):
			g.set(field, podstate.Success)
			if name == "Startup" {
				return true
			}
		}
		timer.Reset(time.Until(next))
	}
}

// attempt runs the probe once, and up to two more times if it could not be run. The answer is Unknown then.
func (g *Group) attempt(ctx context.Context, spec *v1.Probe) (answer Answer, text string, err error) {
	for range 3 {
		answer, text, err = g.prober.Probe(ctx, g.target, spec)
		if err == nil || ctx.Err() != nil {
			return answer, text, err
		}
	}
	return Unknown, text, err
}

// set stores the result r in the field of the probe results, and calls changed if it differs from the previous
// result, so that the worker of the pod acts on it.
func (g *Group) set(field func(*podstate.Health) *podstate.Result, r podstate.Result) {
	g.mu.Lock()
	f := field(&g.health)
	changed := *f != r
	*f = r
	g.mu.Unlock()
	if changed {
		g.changed()
	}
}
