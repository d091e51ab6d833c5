package trust

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

// longestFile bounds what is taken for a file of discovery, in bytes.
const longestFile = 1 << 20

// LoadFile takes from a kubeconfig, a path or a URL of https, where the cluster is and how it
// is verified, with what it is entered by if the file says so. Who gave the file is believed:
// it needs neither a token nor a hash.
//
// https://kubernetes.io/docs/reference/setup-tools/kubeadm/kubeadm-join/#file-or-https-based-discovery
func (d *Discovery) LoadFile(ctx context.Context, from string) error {
	data, dir, err := readDiscovery(ctx, from)
	if err != nil {
		return err
	}
	config, err := clientcmd.Load(data)
	if err != nil {
		return fmt.Errorf("%s is no kubeconfig: %w", from, err)
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
	cluster, auth := chosen(config)
	if cluster == nil || cluster.Server == "" {
		return fmt.Errorf("%s names no cluster: give one by current-context, or only one", from)
	}
	at, err := url.Parse(cluster.Server)
	if err != nil || at.Scheme != "https" || at.Host == "" {
		return fmt.Errorf("%s: the cluster's server %q is no URL of https", from, cluster.Server)
	}
	if cluster.InsecureSkipTLSVerify {
		return fmt.Errorf("%s: insecure-skip-tls-verify is set, and whoever answers would be believed", from)
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

// EntersByFile tells whether the file has credentials to enter the cluster with.
func (d *Discovery) EntersByFile() bool { return d.file != nil && d.file.Auth != nil }

// readDiscovery reads a file of discovery, and tells the folder that its paths are of.
func readDiscovery(ctx context.Context, from string) (data []byte, dir string, err error) {
	if !strings.HasPrefix(from, "https://") {
		if strings.HasPrefix(from, "http://") {
			return nil, "", fmt.Errorf("%s: %w", from, errUnverified)
		}
		data, err := os.ReadFile(from)
		if err != nil {
			return nil, "", fmt.Errorf("reading where the cluster is: %w", err)
		}
		dir, err := filepath.Abs(filepath.Dir(from))
		return data, dir, err
	}
	data, err = fetch(ctx, *http.DefaultClient, from)
	return data, "/", err
}

// fetch reads a file of discovery from a URL of https, and goes from there to none but such:
// whoever answers over any other would be believed.
func fetch(ctx context.Context, client http.Client, from string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	client.CheckRedirect = func(next *http.Request, via []*http.Request) error {
		if next.URL.Scheme != "https" {
			return errUnverified
		}
		if len(via) >= mostRedirects {
			return errRedirects
		}
		return nil
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, fmt.Errorf("asking where the cluster is: %w", err)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("asking where the cluster is: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("asking %s where the cluster is: %s", from, response.Status)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, longestFile))
	if err != nil {
		return nil, fmt.Errorf("asking where the cluster is: %w", err)
	}
	return data, nil
}

// mostRedirects is how often fetch is sent elsewhere, as most clients.
const mostRedirects = 10

var (
	errUnverified = errors.New("whoever answers would be believed: give a file, or a URL of https")
	errRedirects  = errors.New("it is told to ask elsewhere too often")
)

// chosen are cluster and user of the current context, else the only cluster that there is.
func chosen(config *clientcmdapi.Config) (*clientcmdapi.Cluster, *clientcmdapi.AuthInfo) {
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

// embedToken takes the token out of its file, for what is told of is kept elsewhere.
func embedToken(auth *clientcmdapi.AuthInfo) error {
	if auth.TokenFile == "" {
		return nil
	}
	data, err := os.ReadFile(auth.TokenFile)
	if err != nil {
		return fmt.Errorf("reading the token: %w", err)
	}
	auth.Token, auth.TokenFile = strings.TrimSpace(string(data)), ""
	return nil
}

// hasCredentials tells whether somebody can be known by auth.
func hasCredentials(auth *clientcmdapi.AuthInfo) bool {
	return auth.Token != "" || len(auth.ClientCertificateData) > 0 || auth.Username != "" || auth.Exec != nil || auth.AuthProvider != nil
}

// Entry is a kubeconfig that enters the cluster with the token or, where that is none, with
// the credentials of the file that told of the cluster.
func (c *Cluster) Entry(token Token) *clientcmdapi.Config {
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

// REST is Entry as clients take it.
func (c *Cluster) REST(token Token) (*rest.Config, error) {
	config, err := clientcmd.NewDefaultClientConfig(*c.Entry(token), nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading how the cluster is entered: %w", err)
	}
	return config, nil
}

// findByFile looks whether the cluster of the file answers, and by what authority it is
// verified if the file leaves that to the machine's own.
func (d *Discovery) findByFile(ctx context.Context) (*Cluster, error) {
	c := *d.file
	config, err := c.REST(Token{})
	if err != nil {
		return nil, err
	}
	config.Timeout = 10 * time.Second
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return clock{next, &c.Ahead} })
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	info, err := kube.CoreV1().ConfigMaps(metav1.NamespacePublic).Get(ctx, infoName, metav1.GetOptions{})
	switch {
	case (apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)) && len(c.CA) > 0:
		// Who verifies it is the cluster, and the cluster tells nobody of itself.
	case err != nil:
		return nil, readError(err, time.Now())
	case len(c.CA) == 0:
		said, err := parseInfo(info.Data[kubeconfigKey])
		if err != nil {
			return nil, err
		}
		c.CA = said.CA
	}
	if err := d.inTime(c.Ahead); err != nil {
		return nil, err
	}
	return &c, nil
}
