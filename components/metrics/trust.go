package metrics

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// trust knows API servers by the client certificates of front proxies. What
// they pass on they have authorized already.
//
// https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/
type trust struct {
	kube kubernetes.Interface

	mu    sync.Mutex // guards what follows
	roots *x509.CertPool
	names []string
	read  time.Time
}

// again is how soon the ConfigMap is read again after a certificate that it
// does not vouch for.
const again = 10 * time.Second

// check says why req is not from an API server.
func (t *trust) check(req *http.Request) error {
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return errors.New("no client certificate of an API server")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	err := errors.New("it is not known whom to trust")
	if t.roots != nil {
		if err = t.verify(req.TLS.PeerCertificates); err == nil {
			return nil
		}
	}
	if time.Since(t.read) < again {
		return err
	}
	if readErr := t.load(req.Context()); readErr != nil {
		return readErr
	}
	return t.verify(req.TLS.PeerCertificates)
}

func (t *trust) verify(chain []*x509.Certificate) error {
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: t.roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return err
	}
	if len(t.names) > 0 && !slices.Contains(t.names, chain[0].Subject.CommonName) {
		return fmt.Errorf("%q is no front proxy", chain[0].Subject.CommonName)
	}
	return nil
}

func (t *trust) load(ctx context.Context) error {
	t.read = time.Now()
	cm, err := t.kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading whom to trust: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(cm.Data["requestheader-client-ca-file"])) {
		return errors.New("the cluster has no authority of front proxies")
	}
	var names []string
	if text := cm.Data["requestheader-allowed-names"]; text != "" {
		if err := json.Unmarshal([]byte(text), &names); err != nil {
			return fmt.Errorf("reading whom to trust: %w", err)
		}
	}
	t.roots, t.names = roots, names
	return nil
}
