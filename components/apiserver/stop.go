package apiserver

import "time"

// graceTime is the maximum time that requests in progress, other than watches, get at shutdown before their
// connections are closed.
const graceTime = 5 * time.Second

// StopTimeout implements lifecycle.StopTimeouter: it returns how long Run may need after its
// context is canceled. It is the sum of the configured delay, the grace period for requests, and
// the time that the stores and custom resources may need.
func (s *Server) StopTimeout() time.Duration {
	return s.cfg.Limits.ShutdownDelay + graceTime + 25*time.Second
}
