package telemetry

import "github.com/prometheus/client_golang/prometheus"

// Hooks has the metrics of exceptional cases of lifecycle hooks of containers. Its methods are safe for
// concurrent use. On a nil receiver they do nothing.
type Hooks struct{ fellBack, sleepCut prometheus.Counter }

func (m *Hooks) fill(s *set) {
	m.fellBack = s.counter(prefix+"lifecycle_handler_http_fallbacks_total", "[ALPHA] The number of times lifecycle handlers successfully fell back to http from https.")
	m.sleepCut = s.counter(prefix+"sleep_action_terminated_early_total", "[ALPHA] The number of times lifecycle sleep handler got terminated before it finishes")
}

// HookFallback counts an HTTPS hook that was successfully called with HTTP, because the server does not use
// TLS.
func (m *Hooks) HookFallback() {
	if m != nil {
		m.fellBack.Inc()
	}
}

// SleepTerminatedEarly counts a sleep hook that was cancelled before its duration had passed.
func (m *Hooks) SleepTerminatedEarly() {
	if m != nil {
		m.sleepCut.Inc()
	}
}
