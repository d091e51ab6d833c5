package kubeletcerts

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/certificate"

	"hyperkube/internal/credentials/kubeconfig"
	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/testing/testwait"
)

// cluster is an API server that signs every request immediately and counts them.
func cluster(t *testing.T, ca *pki.CA, requests chan<- *x509.CertificateRequest) *httptest.Server {
	t.Helper()
	var last certificatesv1.CertificateSigningRequest
	mux := http.NewServeMux()
	path := "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = runtime.DecodeInto(scheme.Codecs.UniversalDeserializer(), body, &last)
		}
		if err != nil {
			t.Error(err)
			return
		}
		block, _ := pem.Decode(last.Spec.Request)
		csr, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			t.Error(err)
			return
		}
		spec := pki.Client(csr.Subject.CommonName, csr.Subject.Organization...)
		if last.Spec.SignerName == certificatesv1.KubeletServingSignerName {
			spec = pki.KubeletServer("n")
		}
		cert, err := ca.Sign(csr.PublicKey, spec)
		if err != nil {
			t.Error(err)
			return
		}
		last.Name, last.UID = "csr-1", "u"
		last.TypeMeta = metav1.TypeMeta{Kind: "CertificateSigningRequest", APIVersion: "certificates.k8s.io/v1"}
		last.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: "True"}}
		last.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
		requests <- csr
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(last)
	})
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("sendInitialEvents") != "" {
			// This server does not support streaming lists, so the client falls back to a plain
			// list.
			w.WriteHeader(http.StatusUnprocessableEntity)
			_ = json.NewEncoder(w).Encode(metav1.Status{
				TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
				Status:   metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity,
			})
			return
		}
		if r.URL.Query().Get("watch") != "" {
			_ = json.NewEncoder(w).Encode(map[string]any{"type": "ADDED", "object": last})
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		_ = json.NewEncoder(w).Encode(certificatesv1.CertificateSigningRequestList{
			TypeMeta: metav1.TypeMeta{Kind: "CertificateSigningRequestList", APIVersion: "certificates.k8s.io/v1"},
			ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []certificatesv1.CertificateSigningRequest{last},
		})
	})
	s := httptest.NewTLSServer(mux)
	t.Cleanup(s.Close)
	return s
}

func setUp(t *testing.T) (Config, *pki.Set, chan *x509.CertificateRequest) {
	t.Helper()
	dir := t.TempDir()
	set, err := pki.Ensure(filepath.Join(dir, "cluster"), pki.Config{NodeName: "m"})
	if err != nil {
		t.Fatal(err)
	}
	requests := make(chan *x509.CertificateRequest, 10)
	server := cluster(t, set.CA, requests)
	cfg := Config{
		NodeName: "n", Dir: filepath.Join(dir, "pki"),
		Kubeconfig: filepath.Join(dir, "kubelet.conf"), Bootstrap: filepath.Join(dir, "bootstrap.conf"),
	}
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := kubeconfig.Write(cfg.Bootstrap, kubeconfig.Config{Server: server.URL, CA: authority, Token: "abcdef.0123456789abcdef"}); err != nil {
		t.Fatal(err)
	}
	return cfg, set, requests
}

func run(t *testing.T, k *Manager) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-k.Ready():
	case <-time.After(2 * time.Minute):
		t.Fatal("no certificate")
	}
}

func TestFirstClientCertificate(t *testing.T) {
	cfg, set, requests := setUp(t)
	k, err := NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-k.Ready():
		t.Fatal("ready without a certificate")
	default:
	}
	run(t, k)
	if csr := <-requests; csr.Subject.CommonName != "system:node:n" || csr.Subject.Organization[0] != "system:nodes" {
		t.Errorf("requested %s", csr.Subject)
	}
	config, err := clientcmd.BuildConfigFromFlags("", cfg.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(config.CertFile, config.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: set.CA.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}
	if config.BearerToken != "" {
		t.Error("the token is in the kubelet's kubeconfig")
	}

	// After a restart no request is needed.
	again, err := NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-again.Ready():
	default:
		t.Error("not ready with a certificate")
	}
}

// TestRenewed checks that a certificate near its expiry is renewed with the current certificate,
// and that the kubeconfig refers to the new one.
func TestRenewed(t *testing.T) {
	cfg, set, requests := setUp(t)
	bootstrap, err := clientcmd.BuildConfigFromFlags("", cfg.Bootstrap)
	if err != nil {
		t.Fatal(err)
	}
	spec := pki.Node("n")
	spec.Validity = 25 * time.Second // certificates are backdated by five minutes
	old, err := set.CA.NewPair(spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := Install(cfg, bootstrap.Host, bootstrap.CAData, old.CertPEM, old.KeyPEM); err != nil {
		t.Fatal(err)
	}
	cfg.Bootstrap = "" // it authenticates with the existing certificate
	k, err := NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	run(t, k)
	select {
	case csr := <-requests:
		if csr.Subject.CommonName != "system:node:n" {
			t.Errorf("requested %s", csr.Subject)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("no second certificate is requested")
	}
	config, err := clientcmd.BuildConfigFromFlags("", cfg.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	testwait.Succeed(t, "the new certificate", func() error {
		pair, err := tls.LoadX509KeyPair(config.CertFile, config.KeyFile)
		if err != nil {
			return err
		}
		if !pair.Leaf.NotAfter.After(old.Cert.NotAfter) {
			return errors.New("it is the old one")
		}
		return nil
	})
}

// late is a certificate manager that is still storing a certificate when it is stopped.
type late struct {
	certificate.Manager
	stopped chan struct{}
}

func (l late) Start() {}
func (l late) Stop()  { close(l.stopped) }

// slow is a store whose write starts when its manager is stopped.
type slow struct {
	certificate.Store
	entered, stopped chan struct{}
	written          atomic.Bool
}

func (s *slow) Update(cert, key []byte) (*tls.Certificate, error) {
	close(s.entered)
	<-s.stopped
	c, err := s.Store.Update(cert, key)
	s.written.Store(true)
	return c, err
}

// TestStateRemoved checks that the directory can be removed after Run has returned.
func TestStateRemoved(t *testing.T) {
	cfg, set, _ := setUp(t)
	k, err := NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := set.CA.NewPair(pki.Node("n"))
	if err != nil {
		t.Fatal(err)
	}
	stopped := make(chan struct{})
	store := &slow{Store: k.store, entered: make(chan struct{}), stopped: stopped}
	k.manager = late{k.manager, stopped}
	ctx, cancel := context.WithCancel(t.Context())
	updated := make(chan error, 1)
	go func() {
		_, err := notifyingStore{store, k}.Update(pair.CertPEM, pair.KeyPEM)
		updated <- err
	}()
	<-store.entered
	cancel()
	if err := k.Run(ctx); err != nil {
		t.Error(err)
	}
	if !store.written.Load() {
		t.Error("stopped before a certificate was saved")
	}
	if err := <-updated; err != nil {
		t.Error(err)
	}
	if _, err := (notifyingStore{k.store, k}).Update(pair.CertPEM, pair.KeyPEM); !errors.Is(err, errStopped) {
		t.Errorf("a certificate was saved after the stop: %v", err)
	}
}

func TestServingCertificate(t *testing.T) {
	cfg, _, requests := setUp(t)
	cfg.Kubeconfig = cfg.Bootstrap
	k, err := NewServing(cfg, func() []string { return []string{"n", "192.0.2.1"} })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Certificate(); err == nil {
		t.Error("a certificate before the first")
	}
	run(t, k)
	if csr := <-requests; len(csr.DNSNames) != 1 || len(csr.IPAddresses) != 1 {
		t.Errorf("requested %v %v", csr.DNSNames, csr.IPAddresses)
	}
}

func TestOfAnother(t *testing.T) {
	cfg, set, _ := setUp(t)
	k, err := NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := set.CA.NewPair(pki.Node("other"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.store.Update(pair.CertPEM, pair.KeyPEM); err != nil {
		t.Fatal(err)
	}
	if err := k.validate(); err == nil {
		t.Error("accepted the certificate of another node")
	}
	cfg.Dir = ""
	if _, err := NewClient(cfg); err == nil {
		t.Error("directory was not created")
	}
	cfg.Dir, cfg.Bootstrap = t.TempDir(), ""
	bare, err := NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bare.newClient(nil); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("clients without a certificate: %v", err)
	}
}
