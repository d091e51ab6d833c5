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
	"hyperkube/internal/lifecycle"
	"hyperkube/internal/store"
)

// trustName is the ConfigMap in kube-system by which aggregated servers learn
// whom to trust: the authorities of client certificates and of front proxies,
// and the headers in which these tell who sends a request.
const trustName = "extension-apiserver-authentication"

// TrustConfig of a Trust.
type TrustConfig struct {
	Registry *registry.Registry
	// Kube is a superuser's client.
	Kube kubernetes.Interface
	// Bundles returns the present authorities; either may be nil. Changed is
	// received from when they may be others.
	Bundles func() (client, frontProxy []byte)
	Changed <-chan struct{}
	// FrontProxy tells the headers and who may send them.
	FrontProxy authn.FrontProxy
	Log        *slog.Logger
}

// Trust keeps the ConfigMap. What other API servers have written there stays.
type Trust struct {
	cfg        TrustConfig
	configMaps *registry.Resource
}

// NewTrust validates cfg.
func NewTrust(cfg TrustConfig) (*Trust, error) {
	if cfg.Registry == nil || cfg.Kube == nil || cfg.Bundles == nil || cfg.Log == nil {
		return nil, errors.New("keeping the trust of aggregated servers takes a registry, a client, authorities and a log")
	}
	t := &Trust{cfg: cfg, configMaps: cfg.Registry.Lookup(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"})}
	if t.configMaps == nil {
		return nil, errors.New("keeping the trust of aggregated servers takes ConfigMaps")
	}
	return t, nil
}

// Run writes the ConfigMap, and again when somebody changed it or the
// authorities are others, until ctx ends.
func (t *Trust) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := t.keep(ctx)
		if ctx.Err() != nil {
			break
		}
		if !errors.Is(err, store.ErrTooOld) && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			t.cfg.Log.ErrorContext(ctx, "the trust of aggregated servers could not be kept", "error", err)
		}
		lifecycle.Pause(ctx, pause)
	}
	return nil
}

func (t *Trust) keep(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := t.configMaps.Collection.Watch(ctx, store.WatchOptions{Key: metav1.NamespaceSystem + "/" + trustName})
	if err != nil {
		return fmt.Errorf("watching a ConfigMap: %w", err)
	}
	defer w.Close()
	changed, done := make(chan error), make(chan struct{})
	defer func() { cancel(); <-done }()
	go func() {
		defer close(done)
		w.Tell(ctx, changed)
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

func (t *Trust) write(ctx context.Context) error {
	api := t.cfg.Kube.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	has, err := api.Get(ctx, trustName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: trustName}}
		if cm.Data, err = t.wanted(nil); err != nil {
			return err
		}
		_, err = api.Create(ctx, cm, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	data, err := t.wanted(has.Data)
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

// wanted returns the data with this server's part of it added.
func (t *Trust) wanted(has map[string]string) (map[string]string, error) {
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
				return nil, fmt.Errorf("reading %s of the ConfigMap %s: %w", key, trustName, err)
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
			return nil, fmt.Errorf("writing %s: %w", key, err)
		}
		out[key] = string(data)
	}
	return out, nil
}

// joinCertificates returns the certificates of all bundles, each once, without
// those that have expired.
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
			// It is written to memory.
			_ = pem.Encode(&out, &pem.Block{Type: block.Type, Bytes: block.Bytes})
		}
	}
	return out.Bytes()
}
