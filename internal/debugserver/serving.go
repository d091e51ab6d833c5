package debugserver

import (
	"cmp"
	"context"
	"net"
	"strconv"

	"github.com/spf13/pflag"

	"hyperkube/internal/client"
)

// Serving is what the flags of a component that is a process of its own say of its
// secure port.
type Serving struct {
	address                                           string
	port                                              int
	certFile, keyFile, clientCAFile                   string
	authenticationKubeconfig, authorizationKubeconfig string
	profiling                                         bool
}

// AddFlags adds upstream's flags; port is the default.
func (s *Serving) AddFlags(f *pflag.FlagSet, port int) {
	f.StringVar(&s.authenticationKubeconfig, "authentication-kubeconfig", "", "Path of the kubeconfig with which to review tokens of requests to this server.")
	f.StringVar(&s.authorizationKubeconfig, "authorization-kubeconfig", "", "Path of the kubeconfig with which to review permissions of requests to this server.")
	f.StringVar(&s.address, "bind-address", "0.0.0.0", "Address on which to serve the secure port.")
	f.IntVar(&s.port, "secure-port", port, "Port of HTTPS with health and metrics; 0 serves none.")
	f.StringVar(&s.certFile, "tls-cert-file", "", "Path of the serving certificate. Without one, a self-signed one is made.")
	f.StringVar(&s.keyFile, "tls-private-key-file", "", "Path of the key of --tls-cert-file.")
	f.StringVar(&s.clientCAFile, "client-ca-file", "", "Path of the CAs of client certificates.")
	f.BoolVar(&s.profiling, "profiling", true, "Serve profiles, and the level of logs, to those who may.")
}

// Beside serves, as cfg and the flags say, while work runs. The context of work ends with
// ctx or with the port: Beside returns the error of whichever ended first, once both have.
func (s *Serving) Beside(ctx context.Context, cfg Config, work func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if s.port == 0 {
		return work(ctx)
	}
	server, err := s.server(cfg)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() {
		err := server.Run(ctx)
		if err != nil {
			cancel()
		}
		served <- err
	}()
	err = work(ctx)
	cancel()
	return cmp.Or(<-served, err)
}

func (s *Serving) server(cfg Config) (*Server, error) {
	cfg.Addr = net.JoinHostPort(s.address, strconv.Itoa(s.port))
	cfg.CertFile, cfg.KeyFile, cfg.ClientCAFile, cfg.NoProfiling = s.certFile, s.keyFile, s.clientCAFile, !s.profiling
	if reviewer := cmp.Or(s.authorizationKubeconfig, s.authenticationKubeconfig); reviewer != "" {
		clients, err := client.FromKubeconfig(reviewer, cfg.Component)
		if err != nil {
			return nil, err
		}
		cfg.Reviews = clients.Kube
	}
	return New(cfg)
}
