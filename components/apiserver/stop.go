package apiserver

import "time"

// graceTime is for requests that are being answered when the server ends.
const graceTime = 5 * time.Second

// StopTimeout is as of lifecycle.Patient: the delay that is configured, the grace
// for requests, and what the stores and custom resources may need.
func (s *Server) StopTimeout() time.Duration {
	return s.cfg.Limits.ShutdownDelay + graceTime + 25*time.Second
}
