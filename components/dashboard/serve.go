package dashboard

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"

	"hyperkube/internal/base/logging"
)

// serveOptions are the flags of `hyperkube dashboard serve`.
type serveOptions struct {
	address     string
	server, ca  string
	certificate string
	key         string
	format      logging.Format
}

// newServe returns the `hyperkube dashboard serve` command.
func newServe() *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve the dashboard to users who log in with a token",
		Long: `Serve the dashboard over HTTPS to users who log in with a token of the cluster.

It runs in pods of the built-in image. To install it, run "hyperkube addon enable dashboard". It needs no
permissions, because each request has the token of the user.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.address, "address", ":8443", "Address to serve HTTPS on.")
	f.StringVar(&o.server, "server", "", "URL of the API server. If empty, the address in the environment of pods is used.")
	f.StringVar(&o.ca, "certificate-authority", "", "File with the certificates that verify the API server. If empty, those of the system are used.")
	f.StringVar(&o.certificate, "tls-cert-file", "", "File with the serving certificate. If empty, a self-signed certificate is created.")
	f.StringVar(&o.key, "tls-private-key-file", "", "File with the private key of the serving certificate.")
	o.format.Flag(f)
	return cmd
}

// run serves the dashboard until the context of cmd is canceled.
func (o *serveOptions) run(cmd *cobra.Command) error {
	log := o.format.New(os.Stderr, slog.LevelInfo)
	logging.SetDefault(log)
	if o.server == "" {
		host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
		if host == "" || port == "" {
			return errors.New("this process does not run in a pod: set the URL of the API server with --server")
		}
		o.server = "https://" + net.JoinHostPort(host, port)
	}
	certificate, err := o.serving()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", o.address)
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	defer listener.Close()
	s, err := New(Config{
		Listener: listener, Certificate: certificate, Login: true, Context: "cluster", Log: log,
		REST: &rest.Config{Host: o.server, TLSClientConfig: rest.TLSClientConfig{CAFile: o.ca}, UserAgent: "hyperkube-dashboard"},
	})
	if err != nil {
		return err
	}
	log.Info("dashboard started", "address", listener.Addr(), "server", o.server)
	return s.Run(cmd.Context())
}

// serving returns the serving certificate.
func (o *serveOptions) serving() (*tls.Certificate, error) {
	if o.certificate != "" || o.key != "" {
		pair, err := tls.LoadX509KeyPair(o.certificate, o.key)
		if err != nil {
			return nil, fmt.Errorf("reading the serving certificate: %w", err)
		}
		return &pair, nil
	}
	certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey("hyperkube-dashboard", nil, []string{"localhost", "hyperkube-dashboard.kube-system.svc"})
	if err != nil {
		return nil, fmt.Errorf("creating a self-signed certificate: %w", err)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("creating a self-signed certificate: %w", err)
	}
	return &pair, nil
}
