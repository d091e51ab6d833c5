package aggregation

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"hyperkube/components/apiserver/authn"
	"hyperkube/components/apiserver/registry"
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/store"
)

// authConfigMap is the ConfigMap in kube-system from which aggregated servers read their authentication
// configuration: the CAs of client certificates and of front proxies, and the headers in which
// front proxies send the user.
const authConfigMap = "extension-apiserver-authentication"

// AuthConfigPublisherConfig contains the client, the CA bundles and the front proxy settings of an
// AuthConfigPublisher.
type AuthConfigPublisherConfig struct {
	Registry *registry.Registry
	// Kube is a client with superuser permissions.
	Kube kubernetes.Interface
	// Bundles returns the current CA bundles of client certificates and of front proxies, in PEM.
	// Either may be nil. A receive from Changed signals that they may have changed.
	Bundles func() (client, frontProxy []byte)
	Changed <-chan struct{}
	// FrontProxy configures the headers and the allowed names of front proxies.
	FrontProxy authn.FrontProxy
	Log        *slog.Logger
}

// AuthConfigPublisher writes this server's CAs and front proxy settings to the ConfigMap
// extension-apiserver-authentication. It preserves those of other API servers in it, until their CAs expire.
type AuthConfigPublisher struct {
	cfg        AuthConfigPublisherConfig
	configMaps *registry.Resource
}

// NewAuthConfigPublisher validates cfg and returns an AuthConfigPublisher. Run writes the
// ConfigMap.
func NewAuthConfigPublisher(cfg AuthConfigPublisherConfig) (*AuthConfigPublisher, error) {
	if cfg.Registry == nil || cfg.Kube == nil || cfg.Bundles == nil || cfg.Log == nil {
		return nil, errors.New("publishing the authentication configuration requires a registry, a client, CA bundles and a logger")
	}
	t := &AuthConfigPublisher{cfg: cfg, configMaps: cfg.Registry.Lookup(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"})}
	if t.configMaps == nil {
		return nil, errors.New("publishing the authentication configuration requires ConfigMaps")
	}
	return t, nil
}

// Run writes the ConfigMap now and whenever the ConfigMap or the CA bundles change, until ctx is canceled. It retries
// a second after an error.
func (t *AuthConfigPublisher) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := t.reconcile(ctx)
		if ctx.Err() != nil {
			break
		}
		if !errors.Is(err, store.ErrTooOld) && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			t.cfg.Log.WarnContext(ctx, "updating ConfigMap with the CAs that aggregated API servers trust failed; if it is missing or a CA has changed, they reject requests that this API server forwards, retrying in a second", "namespace", metav1.NamespaceSystem, "name", authConfigMap, "err", err)
		}
		lifecycle.Pause(ctx, retryDelay)
	}
	return nil
}

// reconcile writes the ConfigMap after each change until ctx is canceled or an error occurs.
func (t *AuthConfigPublisher) reconcile(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := t.configMaps.Collection.Watch(ctx, store.WatchOptions{Key: metav1.NamespaceSystem + "/" + authConfigMap})
	if err != nil {
		return fmt.Errorf("watching a ConfigMap: %w", err)
	}
	defer w.Close()
	changed, done := make(chan error), make(chan struct{})
	defer func() { cancel(); <-done }()
	go func() {
		defer close(done)
		w.Notify(ctx, changed)
	}()
	for {
		if err := t.write(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.cfg.Changed:
		case err := <-changed:
			if err != nil {
				return fmt.Errorf("watching a ConfigMap: %w", err)
			}
		}
	}
}

// write creates or updates the ConfigMap if its data is not the desired one.
func (t *AuthConfigPublisher) write(ctx context.Context) error {
	api := t.cfg.Kube.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	has, err := api.Get(ctx, authConfigMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: authConfigMap}}
		if cm.Data, err = t.desired(nil); err != nil {
			return err
		}
		_, err = api.Create(ctx, cm, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	data, err := t.desired(has.Data)
	if err != nil {
		return err
	}
	if maps.Equal(data, has.Data) {
		return nil
	}
	changed := has.DeepCopy()
	changed.Data = data
	_, err = api.Update(ctx, changed, metav1.UpdateOptions{})
	return err
}

// desired returns the data that the ConfigMap should have: the CAs and headers in its current data, has, which may be
// of other API servers, with those of this server added. Without CAs of front proxies it contains no front proxy
// settings. It returns an error if a list in has is invalid JSON.
func (t *AuthConfigPublisher) desired(has map[string]string) (map[string]string, error) {
	out := map[string]string{}
	clientCA, proxyCA := t.cfg.Bundles()
	if pem := joinCertificates([]byte(has["client-ca-file"]), clientCA); len(pem) > 0 {
		out["client-ca-file"] = string(pem)
	}
	proxyPEM := joinCertificates([]byte(has["requestheader-client-ca-file"]), proxyCA)
	if len(proxyPEM) == 0 {
		return out, nil
	}
	out["requestheader-client-ca-file"] = string(proxyPEM)
	proxy := t.cfg.FrontProxy.Defaulted()
	for key, own := range map[string][]string{
		"requestheader-username-headers":     proxy.UsernameHeaders,
		"requestheader-uid-headers":          proxy.UIDHeaders,
		"requestheader-group-headers":        proxy.GroupHeaders,
		"requestheader-extra-headers-prefix": proxy.ExtraHeaderPrefixes,
		"requestheader-allowed-names":        proxy.AllowedNames,
	} {
		var list []string
		if has[key] != "" {
			if err := json.Unmarshal([]byte(has[key]), &list); err != nil {
				return nil, fmt.Errorf("decoding %s of ConfigMap %s: %w", key, authConfigMap, err)
			}
		}
		for _, s := range own {
			if !slices.Contains(list, s) {
				list = append(list, s)
			}
		}
		if list == nil {
			list = []string{}
		}
		data, err := json.Marshal(list)
		if err != nil {
			return nil, fmt.Errorf("encoding %s: %w", key, err)
		}
		out[key] = string(data)
	}
	return out, nil
}

// joinCertificates returns the certificates of all PEM bundles in one bundle. It omits duplicates, blocks that are
// not valid certificates, and certificates that expired more than five minutes ago.
func joinCertificates(bundles ...[]byte) []byte {
	var out bytes.Buffer
	seen := map[string]bool{}
	for _, data := range bundles {
		for {
			var block *pem.Block
			block, data = pem.Decode(data)
			if block == nil {
				break
			}
			if block.Type != "CERTIFICATE" || seen[string(block.Bytes)] {
				continue
			}
			seen[string(block.Bytes)] = true
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil || cert.NotAfter.Before(time.Now().Add(-5*time.Minute)) {
				continue
			}
			// Writing to a buffer does not fail.
			_ = pem.Encode(&out, &pem.Block{Type: block.Type, Bytes: block.Bytes})
		}
	}
	return out.Bytes()
}
