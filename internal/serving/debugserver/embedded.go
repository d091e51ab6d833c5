package debugserver

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
)

// Validate returns an error if --bind-address is not an IP address or --secure-port is not a valid port.
func (s *SecurePortFlags) Validate() error {
	if _, err := netip.ParseAddr(s.address); err != nil {
		return fmt.Errorf("--bind-address: %w", err)
	}
	if s.port < 0 || s.port > 65535 {
		return fmt.Errorf("--secure-port: %d is not a valid port", s.port)
	}
	return nil
}

// Apply applies the flags to the configuration of a server in the process of another program, which determines the
// certificates. changed reports whether a flag was set. --bind-address and --secure-port replace their part of
// cfg.Addr only if they were set, or both if cfg.Addr is not HOST:PORT. --profiling always applies. Apply returns
// false if --secure-port is 0, so that the port must not be served.
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
