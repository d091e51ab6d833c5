// Package certificates gets the certificates of a node's kubelet from the
// cluster, by certificate signing requests, and renews them while it runs.
//
// https://kubernetes.io/docs/reference/access-authn-authz/kubelet-tls-bootstrapping/
package certificates

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

	"hyperkube/internal/atomicfile"
)

// Config of a certificate of a node.
type Config struct {
	// NodeName is the node's.
	NodeName string
	// Dir is where certificates are kept, as upstream's kubelet names them.
	Dir string
	// Kubeconfig is the kubelet's own, with which certificates are renewed.
	// The client's is written when there is a first certificate, and refers to
	// the newest.
	Kubeconfig string
	// Bootstrap is the kubeconfig with which the first client certificate is
	// asked for; empty, or a file that is not there: there must be one.
	Bootstrap string
}

// clientName begins the names of the files of client certificates.
const clientName = "kubelet-client"

// Keeper keeps one certificate. Make it with NewClient or NewServing.
type Keeper struct {
	cfg     Config
	store   certificate.FileStore
	manager certificate.Manager
	ready   chan struct{}
	once    sync.Once
	// first is called with the first certificate, before ready.
	first func() error
	err   chan error
	// keeping is held by who writes files, and guards ended.
	keeping sync.Mutex
	// ended is whether Run has returned: no file is written from then on.
	ended bool
	// what is told of the certificate
	ttl      prometheus.GaugeFunc
	failures prometheus.Counter
	lived    prometheus.Histogram // nil of the client's
}

// lives are the buckets of how long certificates lived: from a minute to four years.
var lives = []float64{60, 3600, 14400, 86400, 604800, 2592000, 7776000, 15552000, 31104000, 124416000}

// measure makes what is told of the certificate, under the names that it has
// upstream.
func (k *Keeper) measure(kind, failures string) {
	k.ttl = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kubelet_certificate_manager_" + kind + "_ttl_seconds",
		Help: "[ALPHA] For how many seconds the kubelet's " + kind + " certificate is good; negative when it has expired, +Inf when there is none.",
	}, func() float64 {
		if c := k.manager.Current(); c != nil && c.Leaf != nil {
			return math.Trunc(time.Until(c.Leaf.NotAfter).Seconds())
		}
		return math.Inf(1)
	})
	k.failures = prometheus.NewCounter(prometheus.CounterOpts{Name: failures, Help: "[ALPHA] Counter of certificate renewal errors."})
}

// Describe implements prometheus.Collector.
func (k *Keeper) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(k, ch) }

// Collect implements prometheus.Collector: how long the certificate is good, how
// often it could not be renewed, and how long those before it were in use.
func (k *Keeper) Collect(ch chan<- prometheus.Metric) {
	k.ttl.Collect(ch)
	k.failures.Collect(ch)
	if k.lived != nil {
		k.lived.Collect(ch)
	}
}

// NewClient makes the keeper of the certificate with which the kubelet enters
// the API server.
func NewClient(cfg Config) (*Keeper, error) {
	k, err := newKeeper(cfg, clientName)
	if err != nil {
		return nil, err
	}
	k.first = k.writeKubeconfig
	k.measure("client", "kubelet_certificate_manager_client_expiration_renew_errors")
	return k, k.manage(&certificate.Config{
		CertificateRenewFailure: k.failures,
		SignerName:              certificatesv1.KubeAPIServerClientKubeletSignerName,
		Usages:                  usages(certificatesv1.UsageClientAuth),
		Template:                &x509.CertificateRequest{Subject: subject(cfg.NodeName)},
	})
}

// NewServing makes the keeper of the certificate that the kubelet shows to who
// calls it. Somebody must approve its requests, as upstream. addresses is asked
// for the names and addresses of the node each time; without any, nothing is
// requested.
func NewServing(cfg Config, addresses func() []string) (*Keeper, error) {
	k, err := newKeeper(cfg, "kubelet-server")
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
	k.measure("server", "kubelet_server_expiration_renew_errors")
	k.lived = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "kubelet_certificate_manager_server_rotation_seconds", Help: "[ALPHA] For how many seconds certificates were used before the next one came.", Buckets: lives,
	})
	return k, k.manage(&certificate.Config{
		CertificateRenewFailure: k.failures, CertificateRotation: k.lived,
		SignerName:  certificatesv1.KubeletServingSignerName,
		Usages:      usages(certificatesv1.UsageServerAuth),
		GetTemplate: template,
	})
}

// usages are those of one kind of certificate. Keys are of elliptic curves,
// which encipher nothing.
func usages(u certificatesv1.KeyUsage) []certificatesv1.KeyUsage {
	return []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, u}
}

func subject(node string) pkix.Name {
	return pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}
}

func newKeeper(cfg Config, name string) (*Keeper, error) {
	if cfg.NodeName == "" || cfg.Dir == "" || cfg.Kubeconfig == "" {
		return nil, errors.New("a node's certificate needs the node's name, a directory and a kubeconfig")
	}
	if err := os.MkdirAll(cfg.Dir, 0o750); err != nil {
		return nil, fmt.Errorf("making the directory of the node's certificates: %w", err)
	}
	store, err := certificate.NewFileStoreWithLogger(logr.Discard(), name, cfg.Dir, cfg.Dir, "", "")
	if err != nil {
		return nil, fmt.Errorf("the store of the node's certificates: %w", err)
	}
	return &Keeper{cfg: cfg, store: store, ready: make(chan struct{}), err: make(chan error, 1)}, nil
}

func (k *Keeper) manage(cfg *certificate.Config) error {
	cfg.ClientsetFn = k.clients
	cfg.CertificateStore = told{k.store, k}
	var err error
	if k.manager, err = certificate.NewManager(cfg); err != nil {
		return fmt.Errorf("the node's certificates: %w", err)
	}
	if err := k.check(); err == nil {
		k.has()
	}
	return nil
}

var errEnded = errors.New("the node's certificates are not kept any more")

// told tells the keeper of new certificates, as long as that runs: the manager,
// which is not waited for when it is stopped, may come with another one later.
type told struct {
	certificate.Store
	keeper *Keeper
}

// Update keeps a certificate.
func (t told) Update(cert, key []byte) (*tls.Certificate, error) {
	t.keeper.keeping.Lock()
	defer t.keeper.keeping.Unlock()
	if t.keeper.ended {
		return nil, errEnded
	}
	c, err := t.Store.Update(cert, key)
	if err == nil {
		t.keeper.has()
	}
	return c, err
}

// has is called when there is a certificate.
func (k *Keeper) has() {
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

var errExpired = errors.New("the node's certificate expired")

// check looks whether the certificate that is kept is valid, and this node's.
func (k *Keeper) check() error {
	c, err := k.store.Current()
	if err != nil {
		return err
	}
	leaf := c.Leaf
	if leaf == nil {
		if leaf, err = x509.ParseCertificate(c.Certificate[0]); err != nil {
			return fmt.Errorf("reading the node's certificate: %w", err)
		}
	}
	switch {
	case time.Now().After(leaf.NotAfter):
		return fmt.Errorf("%w on %s", errExpired, leaf.NotAfter.Format(time.DateOnly))
	case leaf.Subject.CommonName != "system:node:"+k.cfg.NodeName || !slices.Contains(leaf.Subject.Organization, "system:nodes"):
		return fmt.Errorf("the node's certificate is that of %s", leaf.Subject)
	}
	return nil
}

// clients reaches the API server: as the node with the certificate that there
// is, or with what the bootstrap kubeconfig says.
func (k *Keeper) clients(current *tls.Certificate) (kubernetes.Interface, error) {
	path := k.cfg.Kubeconfig
	if k.first != nil && (current == nil || time.Now().After(current.Leaf.NotAfter)) {
		if path = k.cfg.Bootstrap; path == "" {
			return nil, errors.New("there is neither a valid certificate of the node nor a bootstrap kubeconfig: join again")
		}
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig %s: %w", path, err)
	}
	config.UserAgent = "kubelet"
	return kubernetes.NewForConfig(config)
}

// writeKubeconfig makes the kubelet's kubeconfig of the one for bootstrap, with
// the certificate's file in place of the token.
func (k *Keeper) writeKubeconfig() error {
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

// Put makes a certificate that was signed elsewhere, as on a master, the
// newest of a node, and writes the kubeconfig that refers to it.
func Put(cfg Config, server string, ca, certPEM, keyPEM []byte) error {
	k, err := newKeeper(cfg, clientName)
	if err != nil {
		return err
	}
	if err := k.check(); err != nil {
		if _, err := k.store.Update(certPEM, keyPEM); err != nil {
			return fmt.Errorf("keeping the node's certificate: %w", err)
		}
	}
	return writeKubeconfig(cfg.Kubeconfig, server, ca, k.store.CurrentPath())
}

// Mend puts what sign returns, a certificate and its key in PEM, in the place of a
// node's that has expired: with that the node could not ask for another one, and a
// machine that has the authority's key need not ask. It tells whether it did.
func Mend(cfg Config, sign func() (certPEM, keyPEM []byte, err error)) (bool, error) {
	k, err := newKeeper(cfg, clientName)
	if err != nil {
		return false, err
	}
	if err := k.check(); !errors.Is(err, errExpired) {
		return false, nil
	}
	certPEM, keyPEM, err := sign()
	if err != nil {
		return false, err
	}
	if _, err := k.store.Update(certPEM, keyPEM); err != nil {
		return false, fmt.Errorf("keeping the node's certificate: %w", err)
	}
	return true, nil
}

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
		return fmt.Errorf("making the directory of the kubelet's kubeconfig: %w", err)
	}
	return atomicfile.Write(atomicfile.File{Path: path, Data: data, Mode: 0o600})
}

// Certificate is the newest certificate, for tls.Config; nil before there is
// one.
func (k *Keeper) Certificate() (*tls.Certificate, error) {
	if c := k.manager.Current(); c != nil {
		return c, nil
	}
	return nil, errors.New("the node has no certificate yet: its request waits to be approved")
}

// Ready is closed once there is a valid certificate, and the kubeconfig that
// refers to it.
func (k *Keeper) Ready() <-chan struct{} { return k.ready }

// Run asks for a first certificate, if there is none, and for others before
// they expire, until ctx ends. Once it has returned no file is written any more.
func (k *Keeper) Run(ctx context.Context) error {
	k.manager.Start()
	defer func() {
		k.manager.Stop()
		k.keeping.Lock()
		defer k.keeping.Unlock()
		k.ended = true
	}()
	select {
	case <-ctx.Done():
		return nil
	case err := <-k.err:
		return err
	}
}
