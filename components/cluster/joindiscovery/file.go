package joindiscovery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// maxFileSize is the maximum size of a discovery file, in bytes.
const maxFileSize = 1 << 20

// LoadFile reads the address and CA of the cluster, and credentials if there are any, from a
// kubeconfig. from is a path or an https URL. The file is trusted: it needs neither a token nor a
// hash.
//
// https://kubernetes.io/docs/reference/setup-tools/kubeadm/kubeadm-join/#file-or-https-based-discovery
func (d *Discovery) LoadFile(ctx context.Context, from string) error {
	data, dir, err := readDiscovery(ctx, from)
	if err != nil {
		return err
	}
	config, err := clientcmd.Load(data)
	if err != nil {
		return fmt.Errorf("%s is not a valid kubeconfig: %w", from, err)
	}
	for _, c := range config.Clusters {
		c.LocationOfOrigin = filepath.Join(dir, "kubeconfig")
	}
	for _, a := range config.AuthInfos {
		a.LocationOfOrigin = filepath.Join(dir, "kubeconfig")
	}
	if err := errors.Join(clientcmd.ResolveLocalPaths(config), clientcmdapi.FlattenConfig(config)); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	cluster, auth := currentCluster(config)
	if cluster == nil || cluster.Server == "" {
		return fmt.Errorf("%s: no cluster found: the file must have a current-context or exactly one cluster", from)
	}
	at, err := url.Parse(cluster.Server)
	if err != nil || at.Scheme != "https" || at.Host == "" {
		return fmt.Errorf("%s: the server %q of the cluster is not an https URL", from, cluster.Server)
	}
	if cluster.InsecureSkipTLSVerify {
		return fmt.Errorf("%s: insecure-skip-tls-verify is set, so the server cannot be verified", from)
	}
	if auth != nil {
		if err := embedToken(auth); err != nil {
			return fmt.Errorf("%s: %w", from, err)
		}
		if !hasCredentials(auth) {
			auth = nil
		}
	}
	d.Endpoint = at.Host
	d.file = &Cluster{Server: cluster.Server, CA: cluster.CertificateAuthorityData, Auth: auth}
	return nil
}

// HasFileCredentials reports whether the discovery file contains credentials.
func (d *Discovery) HasFileCredentials() bool { return d.file != nil && d.file.Auth != nil }

// readDiscovery reads a discovery file, whose place from is a path or an https URL. dir is the directory to which
// relative paths in the file refer. It returns an error for an http URL, which is not secure.
func readDiscovery(ctx context.Context, from string) (data []byte, dir string, err error) {
	if !strings.HasPrefix(from, "https://") {
		if strings.HasPrefix(from, "http://") {
			return nil, "", fmt.Errorf("%s: %w", from, errInsecureURL)
		}
		data, err := os.ReadFile(from)
		if err != nil {
			return nil, "", fmt.Errorf("reading discovery file: %w", err)
		}
		dir, err := filepath.Abs(filepath.Dir(from))
		return data, dir, err
	}
	data, err = fetch(ctx, *http.DefaultClient, from)
	return data, "/", err
}

// fetch downloads at most maxFileSize bytes of a discovery file from an https URL. It follows redirects only to https
// URLs, because the content is trusted.
func fetch(ctx context.Context, client http.Client, from string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	client.CheckRedirect = func(next *http.Request, via []*http.Request) error {
		if next.URL.Scheme != "https" {
			return errInsecureURL
		}
		if len(via) >= maxRedirects {
			return errRedirects
		}
		return nil
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, fmt.Errorf("downloading discovery file: %w", err)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("downloading discovery file: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("downloading discovery file %s: %s", from, response.Status)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, maxFileSize))
	if err != nil {
		return nil, fmt.Errorf("downloading discovery file: %w", err)
	}
	return data, nil
}

// maxRedirects is the maximum number of redirects that fetch follows. It is the default of
// net/http.
const maxRedirects = 10

var (
	errInsecureURL = errors.New("the server cannot be verified: use a file or an https URL")
	errRedirects   = errors.New("too many redirects")
)

// currentCluster returns the cluster and user of the current context, or the only cluster. It returns nil if there is
// neither. The user may be nil.
func currentCluster(config *clientcmdapi.Config) (*clientcmdapi.Cluster, *clientcmdapi.AuthInfo) {
	if current := config.Contexts[config.CurrentContext]; current != nil {
		return config.Clusters[current.Cluster], config.AuthInfos[current.AuthInfo]
	}
	if len(config.Clusters) == 1 {
		for _, c := range config.Clusters {
			return c, nil
		}
	}
	return nil, nil
}

// embedToken replaces the path of a token file by its content, because the result is stored in
// another kubeconfig.
func embedToken(auth *clientcmdapi.AuthInfo) error {
	if auth.TokenFile == "" {
		return nil
	}
	data, err := os.ReadFile(auth.TokenFile)
	if err != nil {
		return fmt.Errorf("reading token file: %w", err)
	}
	auth.Token, auth.TokenFile = strings.TrimSpace(string(data)), ""
	return nil
}

// hasCredentials reports whether auth contains credentials.
func hasCredentials(auth *clientcmdapi.AuthInfo) bool {
	return auth.Token != "" || len(auth.ClientCertificateData) > 0 || auth.Username != "" || auth.Exec != nil || auth.AuthProvider != nil
}

// Kubeconfig returns a kubeconfig that authenticates with the token. If the token is empty, it uses the
// credentials of the discovery file.
func (c *Cluster) Kubeconfig(token Token) *clientcmdapi.Config {
	const name, user = "kubernetes", "tls-bootstrap-token-user"
	config := clientcmdapi.NewConfig()
	cluster := clientcmdapi.NewCluster()
	cluster.Server, cluster.CertificateAuthorityData = c.Server, c.CA
	config.Clusters[name] = cluster
	auth := clientcmdapi.NewAuthInfo()
	if token != (Token{}) {
		auth.Token = token.String()
	} else if c.Auth != nil {
		auth = c.Auth
	}
	config.AuthInfos[user] = auth
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: user}
	config.CurrentContext = name
	return config
}

// RESTConfig returns a client configuration for the cluster that authenticates with the token or, if the token is
// empty, with the credentials of the discovery file.
func (c *Cluster) RESTConfig(token Token) (*rest.Config, error) {
	config, err := clientcmd.NewDefaultClientConfig(*c.Kubeconfig(token), nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading bootstrap kubeconfig: %w", err)
	}
	return config, nil
}

// findByFile checks that the cluster of the discovery file responds. If the file has no CA, the connection is verified
// with the CAs of the machine, and the CA is taken from the cluster information. Otherwise the user of the file need
// not be permitted to read that.
func (d *Discovery) findByFile(ctx context.Context) (*Cluster, error) {
	c := *d.file
	config, err := c.RESTConfig(Token{})
	if err != nil {
		return nil, err
	}
	config.Timeout = 10 * time.Second
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return clockTransport{next, &c.ClockOffset} })
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	info, err := kube.CoreV1().ConfigMaps(metav1.NamespacePublic).Get(ctx, infoName, metav1.GetOptions{})
	switch {
	case (apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)) && len(c.CA) > 0:
		// The connection is verified with the CA; the cluster information is not needed.
	case err != nil:
		return nil, readError(err, time.Now())
	case len(c.CA) == 0:
		discovered, err := parseInfo(info.Data[kubeconfigKey])
		if err != nil {
			return nil, err
		}
		c.CA = discovered.CA
	}
	if err := d.checkSkew(c.ClockOffset); err != nil {
		return nil, err
	}
	return &c, nil
}
