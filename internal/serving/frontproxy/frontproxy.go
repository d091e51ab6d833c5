// Package frontproxy authenticates requests that an API server has proxied to an aggregated API server.
package frontproxy

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
)

// Authenticator authenticates requests that an API server has proxied to this server, by the
// client certificate of its front proxy. The API server has already authorized them. It is safe for concurrent use.
//
// https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/
type Authenticator struct {
	kube kubernetes.Interface

	mu       sync.Mutex // guards the fields below
	roots    *x509.CertPool
	names    []string
	lastRead time.Time
}

// New returns an Authenticator. kube may read the ConfigMap kube-system/extension-apiserver-authentication.
func New(kube kubernetes.Interface) *Authenticator { return &Authenticator{kube: kube} }

// reloadInterval is the minimum interval between reads of the ConfigMap with the front proxy CA. It
// is read again for a client certificate that the present CA has not signed, because the CA may
// have changed.
const reloadInterval = 10 * time.Second

// Check returns an error if req does not come from an API server. It reads the ConfigMap
// kube-system/extension-apiserver-authentication if the client certificate is not valid with what was read
// last, but at most every reloadInterval.
func (t *Authenticator) Check(req *http.Request) error {
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return errors.New("no client certificate of an API server")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	err := errors.New("the front proxy CA has not been read")
	if t.roots != nil {
		if err = t.verify(req.TLS.PeerCertificates); err == nil {
			return nil
		}
	}
	if time.Since(t.lastRead) < reloadInterval {
		return err
	}
	if readErr := t.load(req.Context()); readErr != nil {
		return readErr
	}
	return t.verify(req.TLS.PeerCertificates)
}

func (t *Authenticator) verify(chain []*x509.Certificate) error {
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: t.roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return err
	}
	if len(t.names) > 0 && !slices.Contains(t.names, chain[0].Subject.CommonName) {
		return fmt.Errorf("%q is not an allowed front proxy", chain[0].Subject.CommonName)
	}
	return nil
}

func (t *Authenticator) load(ctx context.Context) error {
	t.lastRead = time.Now()
	cm, err := t.kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading front proxy configuration: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(cm.Data["requestheader-client-ca-file"])) {
		return errors.New("the cluster has no front proxy CA")
	}
	var names []string
	if text := cm.Data["requestheader-allowed-names"]; text != "" {
		if err := json.Unmarshal([]byte(text), &names); err != nil {
			return fmt.Errorf("parsing allowed front proxy names: %w", err)
		}
	}
	t.roots, t.names = roots, names
	return nil
}

// User returns the user of a request that Check has accepted, as the API server has authenticated it. It returns nil if the request names no user.
func User(req *http.Request) user.Info {
	name := req.Header.Get("X-Remote-User")
	if name == "" {
		return nil
	}
	info := &user.DefaultInfo{Name: name, UID: req.Header.Get("X-Remote-Uid"), Groups: req.Header.Values("X-Remote-Group")}
	for key, values := range req.Header {
		if encoded, ok := strings.CutPrefix(key, "X-Remote-Extra-"); ok {
			name, err := url.PathUnescape(strings.ToLower(encoded))
			if err != nil {
				name = strings.ToLower(encoded)
			}
			if info.Extra == nil {
				info.Extra = map[string][]string{}
			}
			info.Extra[name] = values
		}
	}
	return info
}
