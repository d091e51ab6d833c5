// Package kubeletcerts requests the certificates of the kubelet with CertificateSigningRequests and
// renews them while it runs.
//
// https://kubernetes.io/docs/reference/access-authn-authz/kubelet-tls-bootstrapping/
package kubeletcerts

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/certificate"

	"hyperkube/internal/host/atomicfile"
)

// Config configures the Manager of a certificate of the kubelet: for which node it is issued, and in which files
// the certificate and the kubeconfigs are.
type Config struct {
	// NodeName is the name of the node.
	NodeName string
	// Dir is the directory of the certificates. The file names are those of upstream's kubelet.
	Dir string
	// Kubeconfig is the path of the kubelet's kubeconfig, which is used to renew certificates. The Manager of
	// the client certificate writes it when it has the first certificate; it refers to the newest one.
	Kubeconfig string
	// Bootstrap is the kubeconfig that is used to request the first client certificate. If it is
	// empty or the file does not exist, a client certificate must exist already.
	Bootstrap string
}

// clientName is the file name prefix of client certificates.
const clientName = "kubelet-client"

// Manager requests one certificate of the kubelet from the API server and renews it. It is created with
// NewClient or NewServing.
type Manager struct {
	cfg     Config
	store   certificate.FileStore
	manager certificate.Manager
	ready   chan struct{}
	once    sync.Once
	// first is called with the first certificate, before ready is closed.
	first func() error
	// err receives the error of first, which fails Run.
	err chan error
	// writeMu is held while files are written. It guards stopped.
	writeMu sync.Mutex
	// stopped is set when Run has returned. No file is written after that.
	stopped bool
	// ttl, failures and lifetime are the metrics of the certificate.
	ttl      prometheus.GaugeFunc
	failures prometheus.Counter
	lifetime prometheus.Histogram // nil for the client certificate
}

// lifetimeBuckets are the histogram buckets of certificate lifetimes in seconds, from a minute to four years.
var lifetimeBuckets = []float64{60, 3600, 14400, 86400, 604800, 2592000, 7776000, 15552000, 31104000, 124416000}

// initMetrics creates the metrics of the certificate with upstream's names. kind is "client" or "server", and
// failures the name of the metric of failed renewals.
func (k *Manager) initMetrics(kind, failures string) {
	k.ttl = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kubelet_certificate_manager_" + kind + "_ttl_seconds",
		Help: "[ALPHA] Gauge of the TTL (time-to-live) of the Kubelet's " + kind + " certificate. The value is in seconds until certificate expiry (negative if already expired). If " + kind + " certificate is invalid or unused, the value will be +INF.",
	}, func() float64 {
		if c := k.manager.Current(); c != nil && c.Leaf != nil {
			return math.Trunc(time.Until(c.Leaf.NotAfter).Seconds())
		}
		return math.Inf(1)
	})
	k.failures = prometheus.NewCounter(prometheus.CounterOpts{Name: failures, Help: "[ALPHA] Counter of certificate renewal errors."})
}

// Describe sends the descriptions of the metrics to ch.
func (k *Manager) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(k, ch) }

// Collect sends the metrics to ch: the remaining validity of the certificate, the number of failed renewals
// and, for the serving certificate, the ages at which certificates were replaced.
func (k *Manager) Collect(ch chan<- prometheus.Metric) {
	k.ttl.Collect(ch)
	k.failures.Collect(ch)
	if k.lifetime != nil {
		k.lifetime.Collect(ch)
	}
}

// NewClient returns the Manager of the client certificate, with which the kubelet authenticates to the API
// server. It requests nothing before Run. It returns an error if cfg is incomplete or the directory cannot be
// used.
func NewClient(cfg Config) (*Manager, error) {
	k, err := newManager(cfg, clientName)
	if err != nil {
		return nil, err
	}
	k.first = k.writeKubeconfig
	k.initMetrics("client", "kubelet_certificate_manager_client_expiration_renew_errors")
	return k, k.manage(&certificate.Config{
		CertificateRenewFailure: k.failures,
		SignerName:              certificatesv1.KubeAPIServerClientKubeletSignerName,
		Usages:                  usages(certificatesv1.UsageClientAuth),
		Template:                &x509.CertificateRequest{Subject: subject(cfg.NodeName)},
	})
}

// NewServing returns the Manager of the certificate that the kubelet's server presents to its clients. As
// upstream, a cluster administrator or controller must approve its requests. addresses returns the node's
// names and IP addresses and is called for each request; while it returns none, nothing is requested.
func NewServing(cfg Config, addresses func() []string) (*Manager, error) {
	k, err := newManager(cfg, "kubelet-server")
	if err != nil {
		return nil, err
	}
	template := func() *x509.CertificateRequest {
		request := &x509.CertificateRequest{Subject: subject(cfg.NodeName)}
		for _, a := range addresses() {
			if ip := net.ParseIP(a); ip != nil {
				request.IPAddresses = append(request.IPAddresses, ip)
			} else {
				request.DNSNames = append(request.DNSNames, a)
			}
		}
		if len(request.IPAddresses) == 0 && len(request.DNSNames) == 0 {
			return nil
		}
		return request
	}
	k.initMetrics("server", "kubelet_server_expiration_renew_errors")
	k.lifetime = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "kubelet_certificate_manager_server_rotation_seconds", Help: "[ALPHA] Histogram of the number of seconds the previous certificate lived before being rotated.", Buckets: lifetimeBuckets,
	})
	return k, k.manage(&certificate.Config{
		CertificateRenewFailure: k.failures, CertificateRotation: k.lifetime,
		SignerName:  certificatesv1.KubeletServingSignerName,
		Usages:      usages(certificatesv1.UsageServerAuth),
		GetTemplate: template,
	})
}

// usages returns the key usages of a certificate with the extended usage u. Key encipherment is omitted
// because the keys are elliptic curve keys.
func usages(u certificatesv1.KeyUsage) []certificatesv1.KeyUsage {
	return []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, u}
}

// subject returns the subject of the certificates of a node, which identifies the node to the API server: the
// common name system:node:NAME and the organization system:nodes.
func subject(node string) pkix.Name {
	return pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}
}

// newManager returns a Manager that stores its certificates in files with the prefix name. manage must be
// called before it is used as a Manager.
func newManager(cfg Config, name string) (*Manager, error) {
	if cfg.NodeName == "" || cfg.Dir == "" || cfg.Kubeconfig == "" {
		return nil, errors.New("a kubelet certificate requires a node name, a directory and a kubeconfig")
	}
	if err := os.MkdirAll(cfg.Dir, 0o750); err != nil {
		return nil, fmt.Errorf("creating the directory of kubelet certificates: %w", err)
	}
	store, err := certificate.NewFileStoreWithLogger(logr.Discard(), name, cfg.Dir, cfg.Dir, "", "")
	if err != nil {
		return nil, fmt.Errorf("opening the store of kubelet certificates: %w", err)
	}
	return &Manager{cfg: cfg, store: store, ready: make(chan struct{}), err: make(chan error, 1)}, nil
}

// manage creates the certificate manager with cfg, and closes ready if a valid certificate is already stored.
func (k *Manager) manage(cfg *certificate.Config) error {
	cfg.ClientsetFn = k.newClient
	cfg.CertificateStore = notifyingStore{k.store, k}
	var err error
	if k.manager, err = certificate.NewManager(cfg); err != nil {
		return fmt.Errorf("creating the manager of kubelet certificates: %w", err)
	}
	if err := k.validate(); err == nil {
		k.markReady()
	}
	return nil
}

// errStopped is returned to the certificate manager for certificates that it stores after Run has returned.
var errStopped = errors.New("the manager of the kubelet certificate has stopped")

// notifyingStore is a store that notifies the Manager of new certificates until the Manager is stopped.
// certificate.Manager can call Update after its Stop, because Stop does not wait.
type notifyingStore struct {
	certificate.Store
	manager *Manager
}

// Update stores a certificate and its key, and closes the Manager's ready channel. It returns errStopped
// after the Manager's Run has returned.
func (t notifyingStore) Update(cert, key []byte) (*tls.Certificate, error) {
	t.manager.writeMu.Lock()
	defer t.manager.writeMu.Unlock()
	if t.manager.stopped {
		return nil, errStopped
	}
	c, err := t.Store.Update(cert, key)
	if err == nil {
		t.manager.markReady()
	}
	return c, err
}

// markReady records that a valid certificate is stored. On the first call it runs k.first, which writes the
// kubeconfig if that is required, and closes the channel ready. If k.first fails, ready remains open and Run
// returns the error. Later calls have no effect.
func (k *Manager) markReady() {
	k.once.Do(func() {
		if k.first != nil {
			if err := k.first(); err != nil {
				k.err <- err
				return
			}
		}
		close(k.ready)
	})
}

// errExpired is wrapped by the error of validate for an expired certificate.
var errExpired = errors.New("the kubelet certificate has expired")

// validate returns an error if there is no stored certificate, or if it has expired or was issued to another
// node.
func (k *Manager) validate() error {
	c, err := k.store.Current()
	if err != nil {
		return err
	}
	leaf := c.Leaf
	if leaf == nil {
		if leaf, err = x509.ParseCertificate(c.Certificate[0]); err != nil {
			return fmt.Errorf("parsing the kubelet certificate: %w", err)
		}
	}
	switch {
	case time.Now().After(leaf.NotAfter):
		return fmt.Errorf("%w on %s", errExpired, leaf.NotAfter.Format(time.DateOnly))
	case leaf.Subject.CommonName != "system:node:"+k.cfg.NodeName || !slices.Contains(leaf.Subject.Organization, "system:nodes"):
		return fmt.Errorf("the kubelet certificate was issued to %s", leaf.Subject)
	}
	return nil
}

// newClient returns an API client that uses the kubelet's kubeconfig. For the client certificate it uses the
// bootstrap kubeconfig if current, the certificate in use, is nil or has expired. It returns an error if
// there is none.
func (k *Manager) newClient(current *tls.Certificate) (kubernetes.Interface, error) {
	path := k.cfg.Kubeconfig
	if k.first != nil && (current == nil || time.Now().After(current.Leaf.NotAfter)) {
		if path = k.cfg.Bootstrap; path == "" {
			return nil, errors.New("there is neither a valid kubelet client certificate nor a bootstrap kubeconfig: join the node again")
		}
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig %s: %w", path, err)
	}
	config.UserAgent = "kubelet"
	return kubernetes.NewForConfig(config)
}

// writeKubeconfig writes the kubelet's kubeconfig unless it exists: the bootstrap kubeconfig with the
// certificate file instead of the token.
func (k *Manager) writeKubeconfig() error {
	if _, err := os.Stat(k.cfg.Kubeconfig); err == nil || k.cfg.Bootstrap == "" {
		return nil
	}
	from, err := clientcmd.BuildConfigFromFlags("", k.cfg.Bootstrap)
	if err != nil {
		return fmt.Errorf("reading the bootstrap kubeconfig: %w", err)
	}
	if err := rest.LoadTLSFiles(from); err != nil {
		return fmt.Errorf("reading the bootstrap kubeconfig: %w", err)
	}
	return writeKubeconfig(k.cfg.Kubeconfig, from.Host, from.CAData, k.store.CurrentPath())
}

// Install stores the client certificate certPEM with its key keyPEM, which was signed elsewhere, such as on a
// control plane node, unless a valid certificate is stored. It also writes the kubeconfig that refers to it. server
// and ca are the API server's URL and CA certificate.
func Install(cfg Config, server string, ca, certPEM, keyPEM []byte) error {
	k, err := newManager(cfg, clientName)
	if err != nil {
		return err
	}
	if err := k.validate(); err != nil {
		if _, err := k.store.Update(certPEM, keyPEM); err != nil {
			return fmt.Errorf("storing the kubelet certificate: %w", err)
		}
	}
	return writeKubeconfig(cfg.Kubeconfig, server, ca, k.store.CurrentPath())
}

// ReplaceExpired replaces an expired client certificate by the one that sign returns: a certificate and its
// key in PEM. With an expired certificate the kubelet cannot request a new one, but a machine that has the CA
// key can sign one itself. It reports whether the certificate was replaced; a valid or missing certificate is
// not.
func ReplaceExpired(cfg Config, sign func() (certPEM, keyPEM []byte, err error)) (bool, error) {
	k, err := newManager(cfg, clientName)
	if err != nil {
		return false, err
	}
	if err := k.validate(); !errors.Is(err, errExpired) {
		return false, nil
	}
	certPEM, keyPEM, err := sign()
	if err != nil {
		return false, err
	}
	if _, err := k.store.Update(certPEM, keyPEM); err != nil {
		return false, fmt.Errorf("storing the kubelet certificate: %w", err)
	}
	return true, nil
}

// writeKubeconfig writes a kubeconfig for the API server at the URL server with the CA certificate ca to path. Its
// user authenticates with the certificate and key in the file certificate.
func writeKubeconfig(path, server string, ca []byte, certificate string) error {
	const name = "default-cluster"
	config := clientcmdapi.NewConfig()
	cluster, user, context := clientcmdapi.NewCluster(), clientcmdapi.NewAuthInfo(), clientcmdapi.NewContext()
	cluster.Server, cluster.CertificateAuthorityData = server, ca
	user.ClientCertificate, user.ClientKey = certificate, certificate
	context.Cluster, context.AuthInfo = name, "default-auth"
	config.Clusters[name], config.AuthInfos[context.AuthInfo], config.Contexts["default-context"] = cluster, user, context
	config.CurrentContext = "default-context"
	data, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("encoding the kubelet's kubeconfig: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("creating the directory of the kubelet's kubeconfig: %w", err)
	}
	return atomicfile.Write(atomicfile.File{Path: path, Data: data, Mode: 0o600})
}

// Certificate returns the newest certificate, for use in tls.Config. It returns an error while there is none,
// because its request is not approved.
func (k *Manager) Certificate() (*tls.Certificate, error) {
	if c := k.manager.Current(); c != nil {
		return c, nil
	}
	return nil, errors.New("the node has no certificate yet: its CertificateSigningRequest is not approved")
}

// Ready returns a channel that is closed when a valid certificate, and the kubeconfig that refers
// to it, exist.
func (k *Manager) Ready() <-chan struct{} { return k.ready }

// Run requests a first certificate if there is none, and renews it before it expires, until ctx is done. It
// returns an error if the kubeconfig cannot be written. No file is written after Run has returned.
func (k *Manager) Run(ctx context.Context) error {
	k.manager.Start()
	defer func() {
		k.manager.Stop()
		k.writeMu.Lock()
		defer k.writeMu.Unlock()
		k.stopped = true
	}()
	select {
	case <-ctx.Done():
		return nil
	case err := <-k.err:
		return err
	}
}
