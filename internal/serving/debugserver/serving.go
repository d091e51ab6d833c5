package debugserver

import (
	"cmp"
	"context"
	"net"
	"strconv"

	"github.com/spf13/pflag"
)

// SecurePortFlags contains the values of the flags for the secure port (--secure-port,
// --bind-address, …) of a component that runs as a separate process.
type SecurePortFlags struct {
	address                                           string
	port                                              int
	certFile, keyFile, clientCAFile                   string
	authenticationKubeconfig, authorizationKubeconfig string
	profiling                                         bool
}

// AddFlags adds upstream's flags for the secure port to f. port is the default of --secure-port.
func (s *SecurePortFlags) AddFlags(f *pflag.FlagSet, port int) {
	f.StringVar(&s.authenticationKubeconfig, "authentication-kubeconfig", "", "Path to the kubeconfig file used to review the tokens of requests to this server.")
	f.StringVar(&s.authorizationKubeconfig, "authorization-kubeconfig", "", "Path to the kubeconfig file used to review the permissions of requests to this server.")
	f.StringVar(&s.address, "bind-address", "0.0.0.0", "The IP address on which to listen for the --secure-port port.")
	f.IntVar(&s.port, "secure-port", port, "The port on which to serve HTTPS with health checks and metrics. If 0, don't serve HTTPS at all.")
	f.StringVar(&s.certFile, "tls-cert-file", "", "File containing the serving certificate. If empty, a self-signed certificate is generated.")
	f.StringVar(&s.keyFile, "tls-private-key-file", "", "File containing the private key of --tls-cert-file.")
	f.StringVar(&s.clientCAFile, "client-ca-file", "", "File containing the certificate authorities that sign client certificates.")
	f.BoolVar(&s.profiling, "profiling", true, "Enable profiling and changing the log verbosity via the web interface for authorized clients.")
}

// ReviewKubeconfig returns the path of the kubeconfig file for Config.Reviews: --authorization-kubeconfig, or else
// --authentication-kubeconfig. It is empty if neither is set, or if the port is not served.
func (s *SecurePortFlags) ReviewKubeconfig() string {
	if s.port == 0 {
		return ""
	}
	return cmp.Or(s.authorizationKubeconfig, s.authenticationKubeconfig)
}

// RunWith serves the secure port as configured by cfg and the flags while work runs. The context of work is canceled
// when ctx is done or the server fails; the server stops when work returns. RunWith waits for both and returns the
// error of the server or, if that is nil, of work. If --secure-port is 0, it only runs work.
func (s *SecurePortFlags) RunWith(ctx context.Context, cfg Config, work func(context.Context) error) error {
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

// server returns the server for cfg, with the address, certificates, client CAs and profiling that the flags specify.
func (s *SecurePortFlags) server(cfg Config) (*Server, error) {
	cfg.Addr = net.JoinHostPort(s.address, strconv.Itoa(s.port))
	cfg.CertFile, cfg.KeyFile, cfg.ClientCAFile, cfg.NoProfiling = s.certFile, s.keyFile, s.clientCAFile, !s.profiling
	return New(cfg)
}
