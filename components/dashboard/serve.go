package dashboard

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"

	"hyperkube/components/dashboard/oidclogin"
	"hyperkube/internal/base/logging"
)

// serveOptions are the flags of `hyperkube dashboard serve`.
type serveOptions struct {
	address     string
	server, ca  string
	certificate string
	key         string
	issuer      string
	issuerCA    string
	clientID    string
	secretFile  string
	scopes      []string
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
	f.StringVar(&o.issuer, "oidc-issuer-url", "", "URL of the OpenID Connect provider at which users can log in. It must be one of the API server's issuers.")
	f.StringVar(&o.clientID, "oidc-client-id", "", "Client ID of the dashboard at the provider. The API server must accept it as an audience of tokens. The provider must permit the redirect URL https://HOST"+callbackPath+".")
	f.StringVar(&o.secretFile, "oidc-client-secret-file", "", "File with the client secret. If empty, the dashboard is a public client.")
	f.StringVar(&o.issuerCA, "oidc-ca-file", "", "File with the certificates that verify the provider. If empty, those of the system are used.")
	f.StringSliceVar(&o.scopes, "oidc-scopes", []string{"profile", "email"}, "Scopes to request besides openid, for the claims that the API server uses.")
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
	logins, err := o.oidc()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", o.address)
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	defer listener.Close()
	s, err := New(Config{
		Listener: listener, Certificate: certificate, Login: true, OIDC: logins, Context: "cluster", Log: log,
		REST: &rest.Config{Host: o.server, TLSClientConfig: rest.TLSClientConfig{CAFile: o.ca}, UserAgent: "hyperkube-dashboard"},
	})
	if err != nil {
		return err
	}
	log.Info("dashboard started", "address", listener.Addr(), "server", o.server)
	return s.Run(cmd.Context())
}

// oidc returns the logins at the OpenID Connect provider, or nil if none is configured.
func (o *serveOptions) oidc() (*oidclogin.Logins, error) {
	if o.issuer == "" {
		if o.clientID != "" || o.secretFile != "" || o.issuerCA != "" {
			return nil, errors.New("flags of OpenID Connect have no effect without --oidc-issuer-url")
		}
		return nil, nil
	}
	cfg := oidclogin.Config{Issuer: o.issuer, ClientID: o.clientID, Scopes: o.scopes}
	if o.secretFile != "" {
		data, err := os.ReadFile(o.secretFile)
		if err != nil {
			return nil, fmt.Errorf("--oidc-client-secret-file: %w", err)
		}
		cfg.ClientSecret = strings.TrimSpace(string(data))
	}
	if o.issuerCA != "" {
		pool, err := cert.NewPool(o.issuerCA)
		if err != nil {
			return nil, fmt.Errorf("--oidc-ca-file: %w", err)
		}
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
		cfg.Client = &http.Client{Transport: transport}
	}
	logins, err := oidclogin.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("OpenID Connect: %w", err)
	}
	return logins, nil
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
