package apiserver

import "time"

// graceTime is the grace period for requests in progress at shutdown.
const graceTime = 5 * time.Second

// StopTimeout implements lifecycle.StopTimeouter. It is the sum of the configured delay, the grace period
// for requests, and the time that the stores and custom resources may need.
func (s *Server) StopTimeout() time.Duration {
	return s.cfg.Limits.ShutdownDelay + graceTime + 25*time.Second
}
