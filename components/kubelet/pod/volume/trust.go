package volume

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"os"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
)

// TrustBundles provides the ClusterTrustBundles of the cluster.
type TrustBundles interface {
	// Bundles returns all ClusterTrustBundles. They are shared and must not be modified.
	Bundles(ctx context.Context) ([]*certificatesv1.ClusterTrustBundle, error)
}

// Certificates issues certificates for pods.
type Certificates interface {
	// Credential returns a private key and its certificate chain for a source of a projected
	// volume, both PEM-encoded, and when to call it again.
	Credential(ctx context.Context, pod *v1.Pod, volume string, source int, p *v1.PodCertificateProjection) (key, chain []byte, refresh time.Time, err error)
}

// addTrustAnchors adds a file with the trust anchors of the ClusterTrustBundles that the source p selects, by
// name or by signer and labels, to payload. If it selects none, that is an error; if p is optional, the file is
// empty.
//
// https://kubernetes.io/docs/concepts/storage/projected-volumes/#clustertrustbundle
func addTrustAnchors(ctx context.Context, trust TrustBundles, payload Payload, pod *v1.Pod, p *v1.ClusterTrustBundleProjection, def os.FileMode) error {
	all, err := trust.Bundles(ctx)
	if err != nil {
		return err
	}
	var chosen []*certificatesv1.ClusterTrustBundle
	switch {
	case p.Name != nil:
		for _, b := range all {
			if b.Name == *p.Name {
				chosen = append(chosen, b)
			}
		}
		if len(chosen) == 0 && !ptr.Deref(p.Optional, false) {
			return fmt.Errorf("clustertrustbundle.certificates.k8s.io %q not found", *p.Name)
		}
	case p.SignerName != nil:
		selector, err := metav1.LabelSelectorAsSelector(p.LabelSelector)
		if err != nil {
			return fmt.Errorf("reading the label selector of a projection of ClusterTrustBundles: %w", err)
		}
		for _, b := range all {
			if b.Spec.SignerName == *p.SignerName && selector.Matches(labels.Set(b.Labels)) {
				chosen = append(chosen, b)
			}
		}
		if len(chosen) == 0 && !ptr.Deref(p.Optional, false) {
			return fmt.Errorf("combination of signerName and labelSelector matched zero ClusterTrustBundles")
		}
	}
	payload[p.Path] = ownFile(pod, trustAnchors(chosen), p.User, def)
	return nil
}

// trustAnchors returns the PEM-encoded certificates of the bundles without duplicates, in an order that
// depends only on the certificates, so that the file does not change unnecessarily.
func trustAnchors(bundles []*certificatesv1.ClusterTrustBundle) []byte {
	var list [][]byte
	for _, b := range bundles {
		rest := []byte(b.Spec.TrustBundle)
		for {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			list = append(list, pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes}))
		}
	}
	slices.SortFunc(list, bytes.Compare)
	return bytes.Join(slices.CompactFunc(list, bytes.Equal), nil)
}

// addCertificate adds files with the pod's private key and certificate chain to payload, at those paths of the
// projection p that are not empty. source is the index of p in the volume. It returns when the certificate must
// be renewed.
func (t Projected) addCertificate(ctx context.Context, payload Payload, r Request, source int, p *v1.PodCertificateProjection, def os.FileMode) (time.Time, error) {
	key, chain, refresh, err := t.Certificates.Credential(ctx, r.Pod, r.Volume.Name, source, p)
	if err != nil {
		return time.Time{}, err
	}
	add := func(path string, parts ...[]byte) {
		if path == "" {
			return
		}
		payload[path] = ownFile(r.Pod, bytes.Join(parts, nil), p.User, def)
	}
	add(p.CredentialBundlePath, key, chain)
	add(p.KeyPath, key)
	add(p.CertificateChainPath, chain)
	return refresh, nil
}
