package debugserver

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
)

// Validate reports an invalid address or port.
func (s *SecurePortFlags) Validate() error {
	if _, err := netip.ParseAddr(s.address); err != nil {
		return fmt.Errorf("--bind-address: %w", err)
	}
	if s.port < 0 || s.port > 65535 {
		return fmt.Errorf("--secure-port: %d is not a valid port", s.port)
	}
	return nil
}

// Apply applies the flags that changed reports as set to the configuration of a server in the process of another program, which
// determines the certificates. It returns false if the port is not served.
func (s *SecurePortFlags) Apply(changed func(flag string) bool, cfg *Config) bool {
	host, port, err := net.SplitHostPort(cfg.Addr)
	if err != nil || changed("bind-address") {
		host = s.address
	}
	if err != nil || changed("secure-port") {
		port = strconv.Itoa(s.port)
	}
	cfg.Addr, cfg.NoProfiling = net.JoinHostPort(host, port), !s.profiling
	return s.port != 0
}
