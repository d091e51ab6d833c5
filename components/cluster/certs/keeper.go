package certs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"hyperkube/components/cluster/identity"
	"hyperkube/components/kubelet/certificates"
	"hyperkube/internal/atomicfile"
	"hyperkube/internal/layout"
	"hyperkube/internal/pki"
	"hyperkube/manifests"
)

// OfMachine are those of this machine's control plane, made by init or up.
func OfMachine(l layout.Node) Master {
	if !identity.HasJoined(l) {
		return Master{PKI: l.PKI(), Further: map[string]string{
			"admin": filepath.Join(l.PKI(), "admin"), "kubelet-server": filepath.Join(l.PKI(), "kubelet"),
		}}
	}
	keys := filepath.Join(l.Data, "kubeconfig-keys")
	return Master{
		PKI: filepath.Join(l.Etc, "pki"), Etc: l.Etc, Keys: keys,
		Further: map[string]string{"kube-proxy": filepath.Join(keys, "proxy"), "kubelet-server": filepath.Join(l.Kubelet, "pki", "kubelet")},
	}
}

// ofKubeconfigs are the components that read their kubeconfig once, with the
// certificate that is in it. All others read their files again when they change.
var ofKubeconfigs = map[string]string{
	"kube-controller-manager": "controller-manager.conf",
	"kube-scheduler":          "scheduler.conf",
}

// ClientStamps tell the certificates of these components from others.
func ClientStamps(l layout.Node) (map[string]string, error) {
	out := map[string]string{}
	for _, c := range OfMachine(l).Certificates() {
		for component, conf := range ofKubeconfigs {
			if c.Name != conf {
				continue
			}
			data, err := c.Read()
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err
			}
			sum := sha256.Sum256(data)
			out[component] = "sha256-" + hex.EncodeToString(sum[:8])
		}
	}
	return out, nil
}

// Stamp makes the components start again whose certificate is another than
// that in their manifest.
func Stamp(l layout.Node) error {
	stamps, err := ClientStamps(l)
	if err != nil {
		return err
	}
	for component, stamp := range stamps {
		path := filepath.Join(l.StaticPods(), component+".yaml")
		old, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue // somebody has stopped it
		}
		if err != nil {
			return fmt.Errorf("reading the manifest of %s: %w", component, err)
		}
		data, err := manifests.SetClientCertificate(old, stamp)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if string(data) == string(old) {
			continue
		}
		if err := atomicfile.Write(atomicfile.File{Path: path, Data: data, Mode: 0o600}); err != nil {
			return fmt.Errorf("writing the manifest of %s: %w", component, err)
		}
	}
	return nil
}

// Keeper renews the certificates of a master while its node runs, when a third
// of their time is left. Such whose authority's key is elsewhere are left alone.
type Keeper struct {
	Layout layout.Node
	Log    *slog.Logger
}

// Run renews until ctx ends.
func (k Keeper) Run(ctx context.Context) error {
	return KeepRenewing(ctx, k.Log, "certificates of the control plane cannot be renewed, trying again", k.Renew)
}

// Mend renews what is due before the node starts, and its own certificate if that has
// expired: a machine that was off for a year, or whose clock was, comes back by itself.
// What cannot be renewed is told, and the node tries with what there is.
func (k Keeper) Mend(node certificates.Config) {
	if _, err := k.Renew(); err != nil {
		k.Log.Error("certificates of the control plane cannot be renewed", "error", err)
	}
	mended, err := certificates.Mend(node, func() (certPEM, keyPEM []byte, err error) {
		ca, err := pki.LoadCA(filepath.Join(k.Layout.Etc, "pki", "ca"))
		if err != nil {
			return nil, nil, err
		}
		pair, err := ca.NewPair(pki.Node(node.NodeName))
		if err != nil {
			return nil, nil, err
		}
		return pair.CertPEM, pair.KeyPEM, nil
	})
	switch {
	case err != nil:
		k.Log.Error("the certificate of this machine's node cannot be renewed", "error", err)
	case mended:
		k.Log.Info("the certificate of this machine's node had expired and is renewed")
	}
}

// Renew renews what is due, and returns when the next will be; zero: nobody knows.
func (k Keeper) Renew() (next time.Time, err error) {
	m := OfMachine(k.Layout)
	states, authorities, err := m.Look()
	if err != nil {
		return next, err
	}
	ends := map[string]time.Time{}
	for _, a := range authorities {
		if a.Cert != nil {
			ends[a.Name] = a.Cert.NotAfter
		}
	}
	for _, s := range states {
		// What ends with its authority cannot be had for longer.
		if s.Cert == nil || s.External || !s.Cert.NotAfter.Before(ends[s.Authority.Name]) {
			continue
		}
		at := (&pki.Pair{Cert: s.Cert}).RenewAt()
		if !at.After(time.Now()) {
			pair, err := m.Renew(s.Certificate)
			if err != nil {
				return next, err
			}
			k.Log.Info("a certificate of the control plane is renewed", "certificate", s.Name, "until", pair.Cert.NotAfter)
			at = pair.RenewAt()
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	if next.IsZero() {
		next = time.Now().Add(RenewLook)
	}
	return next, Stamp(k.Layout)
}
