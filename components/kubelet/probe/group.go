package probe

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/podstate"
)

// Group probes one container while it runs: the startup probe first, the
// others once that has succeeded.
type Group struct {
	cancel   context.CancelFunc
	wait     sync.WaitGroup
	stopSoft context.CancelFunc

	mu     sync.Mutex // guards health
	health podstate.Health

	prober  *Prober
	target  Target
	started time.Time
	changed func()
	event   func(warning bool, reason, message string)
}

// Options of a Group.
type Options struct {
	Target Target
	// Started is when the container was started.
	Started time.Time
	// KnownStarted and KnownReady are what was known of this very container
	// before the kubelet restarted.
	KnownStarted, KnownReady bool
	// Changed is called, from any goroutine, after Health has changed. It must
	// not block.
	Changed func()
	// Event reports what users should know.
	Event func(warning bool, reason, message string)
}

// Start begins to probe; nil when the container has no probes.
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

// Health returns what was found last.
func (g *Group) Health() podstate.Health {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.health
}

// StopStartupAndLiveness ends the probes that could restart the container;
// readiness goes on while the pod ends.
func (g *Group) StopStartupAndLiveness() { g.stopSoft() }

// Stop ends all probes and returns when they have ended.
func (g *Group) Stop() {
	g.cancel()
	g.stopSoft()
	g.wait.Wait()
	g.prober.Metrics.forget(&g.target)
}

// firstEarly is how soon a container that has just started is asked again.
const firstEarly = 20 * time.Millisecond

// loop probes until ctx ends or nothing more is to be found out: a startup
// probe that succeeded (true), or a startup or liveness probe that failed for
// good. It may begin at from: when the container was started, or its startup
// probe has succeeded.
func (g *Group) loop(ctx context.Context, name string, spec *v1.Probe, from time.Time, field func(*podstate.Health) *podstate.Result) bool {
	period := time.Duration(max(spec.PeriodSeconds, 1)) * time.Second
	if spec.PeriodSeconds == 0 {
		period = 10 * time.Second
	}
	first := g.started.Add(time.Duration(spec.InitialDelaySeconds) * time.Second)
	// What counts begins a period after the start. A container that has just
	// started is mostly not there yet; asking whether it is, soon and again,
	// without counting it, makes it ready when it is and not a period later.
	early := time.Duration(0)
	if spec.InitialDelaySeconds == 0 {
		first = from.Add(period)
		if name != "Liveness" && time.Since(from) < period {
			first, early = from, firstEarly
		}
	}
	delay := time.Until(first)
	if delay <= 0 && time.Since(from) > period {
		// After a restart of the kubelet its containers are not all probed at once.
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
			g.prober.Metrics.note(name, &g.target, answer, time.Since(began))
		}
		if early > 0 && answer != Success {
			left := period - time.Since(from)
			if spec.Exec != nil || early >= left {
				// A command is not run more often than it was asked for.
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
			// Nothing was learnt.
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

// attempt tries again at once when the attempt itself went wrong.
func (g *Group) attempt(ctx context.Context, spec *v1.Probe) (answer Answer, text string, err error) {
	for range 3 {
		answer, text, err = g.prober.Probe(ctx, g.target, spec)
		if err == nil || ctx.Err() != nil {
			return answer, text, err
		}
	}
	return Unknown, text, err
}

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
