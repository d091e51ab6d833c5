package certrenewal

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

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/kubelet/node/kubeletcerts"
	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/host/atomicfile"
	"hyperkube/internal/host/layout"
	"hyperkube/manifests"
)

// LocalControlPlane returns where the certificates of this machine's control plane are. On a machine that init or join
// has set up, they are in /etc/kubernetes, otherwise in the data directory of `up`.
func LocalControlPlane(l layout.Node) ControlPlane {
	if !clusterconfig.HasJoined(l) {
		return ControlPlane{PKI: l.PKI(), Additional: map[string]string{
			"admin": filepath.Join(l.PKI(), "admin"), "kubelet-server": filepath.Join(l.PKI(), "kubelet"),
		}}
	}
	keys := filepath.Join(l.Data, "kubeconfig-keys")
	return ControlPlane{
		PKI: filepath.Join(l.Etc, "pki"), Etc: l.Etc, KubeconfigKeys: keys,
		Additional: map[string]string{"kube-proxy": filepath.Join(keys, "proxy"), "kubelet-server": filepath.Join(l.Kubelet, "pki", "kubelet")},
	}
}

// restartingComponents maps each component that reads its client certificate only at start to the kubeconfig that
// contains the certificate. After a renewal they must restart. All other components reload their files when these
// change.
var restartingComponents = map[string]string{
	"kube-controller-manager": "controller-manager.conf",
	"kube-scheduler":          "scheduler.conf",
}

// ClientCertificateHashes returns a hash of the client certificate for each component in restartingComponents, by
// component name. It omits components whose certificate does not exist. The hashes are part of the static pod
// manifests, so that a renewal changes the manifest and the kubelet restarts the component.
func ClientCertificateHashes(l layout.Node) (map[string]string, error) {
	out := map[string]string{}
	for _, c := range LocalControlPlane(l).Certificates() {
		for component, conf := range restartingComponents {
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

// UpdateManifests writes the current certificate hashes to the static pod manifests. A component whose hash changes
// restarts. It skips components that have no manifest.
func UpdateManifests(l layout.Node) error {
	stamps, err := ClientCertificateHashes(l)
	if err != nil {
		return err
	}
	for component, stamp := range stamps {
		path := filepath.Join(l.StaticPods(), component+".yaml")
		old, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue // the component was stopped
		}
		if err != nil {
			return fmt.Errorf("reading manifest of %s: %w", component, err)
		}
		data, err := manifests.SetClientCertificate(old, stamp)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if string(data) == string(old) {
			continue
		}
		if err := atomicfile.Write(atomicfile.File{Path: path, Data: data, Mode: 0o600}); err != nil {
			return fmt.Errorf("writing manifest of %s: %w", component, err)
		}
	}
	return nil
}

// Renewer renews the certificates of a control plane node while its node process runs. A certificate
// is renewed when a third of its lifetime is left. Certificates whose CA key is not on this machine
// are skipped.
type Renewer struct {
	Layout layout.Node
	Log    *slog.Logger
}

// Run renews the certificates of the control plane node when they are due, until ctx is canceled.
func (k Renewer) Run(ctx context.Context) error {
	return RunRenewal(ctx, k.Log, "renewing control plane certificates failed; the existing certificates stay in use until they expire, retrying in a minute", k.Renew)
}

// RenewBeforeStart renews due certificates before the node starts. It also replaces the kubelet's client
// certificate if that has expired, so that a machine recovers after it was off for a year or its
// clock was wrong. Errors are logged, and the node starts with the existing certificates.
func (k Renewer) RenewBeforeStart(node kubeletcerts.Config) {
	if _, err := k.Renew(); err != nil {
		k.Log.Error("renewing control plane certificates before the start of the node failed; the node starts with the existing certificates and retries after the start", "err", err)
	}
	replaced, err := kubeletcerts.ReplaceExpired(node, func() (certPEM, keyPEM []byte, err error) {
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
		k.Log.Error("renewing expired kubelet client certificate failed; the kubelet cannot authenticate, so the node stays NotReady: resolve the error and restart the node", "node", node.NodeName, "err", err)
	case replaced:
		k.Log.Info("expired kubelet client certificate renewed, the kubelet can authenticate again", "node", node.NodeName)
	}
}

// Renew renews all certificates that are due, and then updates the static pod manifests, so that components with a
// renewed client certificate restart. It returns the time at which the next certificate is due, or of the next check
// if it can renew none. It skips certificates whose CA key is not on this machine, and those that expire together
// with their CA. It stops at the first error.
func (k Renewer) Renew() (next time.Time, err error) {
	m := LocalControlPlane(k.Layout)
	states, authorities, err := m.Inspect()
	if err != nil {
		return next, err
	}
	notAfter := map[string]time.Time{}
	for _, a := range authorities {
		if a.Cert != nil {
			notAfter[a.Name] = a.Cert.NotAfter
		}
	}
	for _, s := range states {
		// A certificate that expires together with its CA cannot be extended.
		if s.Cert == nil || s.External || !s.Cert.NotAfter.Before(notAfter[s.Authority.Name]) {
			continue
		}
		at := (&pki.Pair{Cert: s.Cert}).RenewAt()
		if !at.After(time.Now()) {
			pair, err := m.Renew(s.Certificate)
			if err != nil {
				return next, err
			}
			k.Log.Info("control plane certificate renewed; its component loads it now, the controller manager and scheduler by a restart", "certificate", s.Name, "notAfter", pair.Cert.NotAfter)
			at = pair.RenewAt()
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	if next.IsZero() {
		next = time.Now().Add(MaxCheckInterval)
	}
	return next, UpdateManifests(k.Layout)
}
