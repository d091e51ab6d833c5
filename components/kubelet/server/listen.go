package server

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"hyperkube/internal/serving/plainhttp"
)

// Listeners are the open listeners of the kubelet's HTTPS, read-only and health check servers.
type Listeners struct {
	// HTTPS and ReadOnly are those of Config. ReadOnly is nil if that server is disabled.
	HTTPS, ReadOnly net.Listener
	// health is nil if the health check server is disabled.
	health *plainhttp.Server
}

// Addresses are the listen addresses of the kubelet's HTTPS, read-only and health check servers.
type Addresses struct {
	// Address and Port are those of the HTTPS server.
	Address string
	Port    int
	// ReadOnlyPort is the port of the read-only server, and zero if it is disabled.
	ReadOnlyPort int
	// HealthzAddress and HealthzPort are those of the health check server. A negative port disables it.
	HealthzAddress string
	HealthzPort    int
}

// Listen opens the listeners and starts the health check server, which serves /healthz with the result of
// healthy. It returns an error, and closes all listeners, if an address cannot be used.
func Listen(a Addresses, healthy func() error) (l Listeners, err error) {
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	if l.HTTPS, err = net.Listen("tcp", net.JoinHostPort(a.Address, strconv.Itoa(a.Port))); err != nil {
		return l, fmt.Errorf("listening: %w", err)
	}
	if a.ReadOnlyPort > 0 {
		if l.ReadOnly, err = net.Listen("tcp", net.JoinHostPort(a.Address, strconv.Itoa(a.ReadOnlyPort))); err != nil {
			return l, fmt.Errorf("listening on the read-only port: %w", err)
		}
	}
	if a.HealthzPort < 0 {
		return l, nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", Healthz(healthy))
	if l.health, err = plainhttp.Serve(net.JoinHostPort(a.HealthzAddress, strconv.Itoa(a.HealthzPort)), mux); err != nil {
		return l, fmt.Errorf("starting the health check server: %w", err)
	}
	return l, nil
}

// Close closes the listeners and stops the health check server.
func (l Listeners) Close() {
	for _, one := range []net.Listener{l.HTTPS, l.ReadOnly} {
		if one != nil {
			one.Close()
		}
	}
	if l.health != nil {
		l.health.Close()
	}
}

// Serve serves requests to s on the HTTPS and read-only listeners until ctx is done, and then stops the
// health check server.
func (l Listeners) Serve(ctx context.Context, s *Server) error {
	if l.health != nil {
		stop := context.AfterFunc(ctx, l.health.Close)
		defer stop()
		defer l.health.Close()
	}
	return s.Serve(ctx)
}
