// Package podcerts obtains certificates for pods: it generates a key, creates a
// PodCertificateRequest, and renews the certificate before it expires. Keys are stored only in
// memory and in the pods' volumes.
//
// https://kubernetes.io/docs/concepts/storage/projected-volumes/#podcertificate
package podcerts

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// signerTimeout is how long one call of Credential waits for the signer. renewRetryInterval is the interval
// of attempts to renew a certificate. requestLifetime is the age at which the API server deletes a
// PodCertificateRequest without a result.
const (
	signerTimeout      = 10 * time.Second
	renewRetryInterval = time.Minute
	requestLifetime    = 15 * time.Minute
)

// Issuer obtains the certificates of pods from signers, by PodCertificateRequests, and caches them. Its
// methods are safe for concurrent use.
type Issuer struct {
	Kube kubernetes.Interface
	// Node returns the latest Node from the API, or nil while it is not known.
	Node func() *v1.Node
	// Warn emits a Warning event for a pod whose certificate is not renewed in time. It may be nil.
	Warn func(pod *v1.Pod, reason, message string)

	mu          sync.Mutex // guards credentials
	credentials map[key]*credential
}

// key identifies a projected volume source of a pod: source is its index in the volume.
type key struct {
	pod    types.UID
	volume string
	source int
}

// credential is the certificate of one projected volume source of a pod with its private key, and the pending
// PodCertificateRequest for the next certificate, if any.
type credential struct {
	mu         sync.Mutex // held while a call uses the credential
	key, chain []byte
	refresh    time.Time
	expires    time.Time
	// pending is the name of the PodCertificateRequest for pendingKey that has no result yet, or "".
	pending    string
	pendingKey []byte
	requested  time.Time
	// overdueWarned and expiredWarned: the warning was emitted.
	overdueWarned, expiredWarned bool
	// refused is not nil if the signer has denied the request or failed permanently.
	refused error
	// state is a copy for State, which does not take mu.
	state atomic.Pointer[state]
}

// state is a copy of the fields of a credential from which metrics are computed. It can be read without the
// credential's lock, which a call holds while it waits for the signer.
type state struct {
	refused          string // "denied", "failed" or ""
	refresh, expires time.Time
}

// State returns the state of the certificate of a projected volume source, as a metrics label. It returns ""
// if the certificate was never requested. It does not block.
func (i *Issuer) State(pod types.UID, volume string, source int, now time.Time) string {
	i.mu.Lock()
	c := i.credentials[key{pod, volume, source}]
	i.mu.Unlock()
	if c == nil {
		return ""
	}
	switch s := c.state.Load(); {
	case s == nil:
		return "not_yet_issued"
	case s.refused != "":
		return s.refused
	case now.After(s.expires):
		return "expired"
	case now.After(s.refresh.Add(overdueAfter)):
		return "overdue_for_refresh"
	}
	return "fresh"
}

// Credential returns the private key in PEM-encoded PKCS #8, the certificate chain of the projected volume
// source p, and when to call it again. source is the index of p in the volume. It requests a certificate if
// there is none or it must be renewed. If the renewal fails, it returns the previous certificate as long as
// that is valid, and the next call renews it after renewRetryInterval. It returns an error while there is no
// valid certificate; the next call continues to wait for the signer, unless the signer has denied the request.
func (i *Issuer) Credential(ctx context.Context, pod *v1.Pod, volume string, source int, p *v1.PodCertificateProjection) (privateKey, chain []byte, refresh time.Time, err error) {
	if i.Kube == nil {
		return nil, nil, time.Time{}, errors.New("no API server is configured to request a certificate from")
	}
	at := key{pod.UID, volume, source}
	i.mu.Lock()
	if i.credentials == nil {
		i.credentials = map[key]*credential{}
	}
	c := i.credentials[at]
	if c == nil {
		c = &credential{}
		i.credentials[at] = c
	}
	i.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.chain != nil && now.Before(c.refresh) {
		return c.key, c.chain, c.refresh, nil
	}
	i.warn(c, pod, now)
	if c.refused == nil {
		err = i.obtain(ctx, c, pod, p)
	} else {
		err = c.refused
	}
	if err != nil {
		if c.chain != nil && now.Before(c.expires) {
			return c.key, c.chain, now.Add(renewRetryInterval), nil
		}
		return nil, nil, time.Time{}, err
	}
	return c.key, c.chain, c.refresh, nil
}

// overdueAfter is how long the renewal of a certificate may be overdue before a warning is emitted.
const overdueAfter = 10 * time.Minute

// warn emits a Warning event if the renewal of the certificate in c is overdue, and one if the certificate has
// expired. Each event is emitted once. The caller must hold c.mu.
func (i *Issuer) warn(c *credential, pod *v1.Pod, now time.Time) {
	if c.chain == nil || i.Warn == nil {
		return
	}
	if !c.overdueWarned && now.After(c.refresh.Add(overdueAfter)) {
		c.overdueWarned = true
		i.Warn(pod, "CertificateOverdueForRefresh", "PodCertificate refresh overdue")
	}
	if !c.expiredWarned && now.After(c.expires) {
		c.expiredWarned = true
		i.Warn(pod, "CertificateExpired", "PodCertificate expired")
	}
}

// Forget removes the credentials of a pod that was removed from the node.
func (i *Issuer) Forget(pod types.UID) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for k := range i.credentials {
		if k.pod == pod {
			delete(i.credentials, k)
		}
	}
}

// obtain creates a request unless one is pending, waits for the signer, and stores the certificate in c. A
// request that the signer has denied or failed is not repeated. The caller must hold c.mu.
func (i *Issuer) obtain(ctx context.Context, c *credential, pod *v1.Pod, p *v1.PodCertificateProjection) error {
	if c.pending != "" && time.Since(c.requested) > requestLifetime {
		c.pending = ""
	}
	if c.pending == "" {
		if err := i.request(ctx, c, pod, p); err != nil {
			return err
		}
	}
	r, err := i.await(ctx, pod, c.pending)
	if err != nil {
		return err
	}
	for _, condition := range r.Status.Conditions {
		name := pod.Namespace + "/" + r.Name
		switch condition.Type {
		case certificatesv1.PodCertificateRequestConditionTypeDenied:
			c.refused = fmt.Errorf("PodCertificateRequest %q was denied: reason=%q message=%q", name, condition.Reason, condition.Message)
			c.state.Store(&state{refused: "denied"})
			return c.refused
		case certificatesv1.PodCertificateRequestConditionTypeFailed:
			c.refused = fmt.Errorf("PodCertificateRequest %q failed: reason=%q message=%q", name, condition.Reason, condition.Message)
			c.state.Store(&state{refused: "failed"})
			return c.refused
		}
	}
	chain := certificates([]byte(r.Status.CertificateChain))
	if len(chain) == 0 || r.Status.NotAfter == nil || r.Status.BeginRefreshAt == nil {
		return fmt.Errorf("PodCertificateRequest %q was issued without a certificate", pod.Namespace+"/"+r.Name)
	}
	c.key, c.chain, c.pending, c.pendingKey = c.pendingKey, chain, "", nil
	c.refresh, c.expires = r.Status.BeginRefreshAt.Time, r.Status.NotAfter.Time
	c.overdueWarned, c.expiredWarned = false, false
	c.state.Store(&state{refresh: c.refresh, expires: c.expires})
	return nil
}

// request generates a key and creates a PodCertificateRequest for it, which becomes pending in c.
func (i *Issuer) request(ctx context.Context, c *credential, pod *v1.Pod, p *v1.PodCertificateProjection) error {
	node := i.Node()
	if node == nil {
		return errors.New("the node is not known yet")
	}
	account, err := i.Kube.CoreV1().ServiceAccounts(pod.Namespace).Get(ctx, pod.Spec.ServiceAccountName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("getting the pod's service account: %w", err)
	}
	signer, err := generate(p.KeyType)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(signer)
	if err != nil {
		return fmt.Errorf("encoding private key: %w", err)
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, signer)
	if err != nil {
		return fmt.Errorf("creating certificate signing request: %w", err)
	}
	made, err := i.Kube.CertificatesV1().PodCertificateRequests(pod.Namespace).Create(ctx, &certificatesv1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName:    "req-",
			Namespace:       pod.Namespace,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
		},
		Spec: certificatesv1.PodCertificateRequestSpec{
			SignerName: p.SignerName, PodName: pod.Name, PodUID: pod.UID, ServiceAccountName: account.Name, ServiceAccountUID: account.UID,
			NodeName: types.NodeName(node.Name), NodeUID: node.UID, MaxExpirationSeconds: p.MaxExpirationSeconds,
			StubPKCS10Request: request, UnverifiedUserAnnotations: p.UserAnnotations,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating PodCertificateRequest: %w", err)
	}
	c.pending, c.requested = made.Name, time.Now()
	c.pendingKey = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	return nil
}

// await waits up to signerTimeout until the PodCertificateRequest of that name has a result, and returns it. It
// returns an error after the timeout and if the request is deleted or cannot be watched.
func (i *Issuer) await(ctx context.Context, pod *v1.Pod, name string) (*certificatesv1.PodCertificateRequest, error) {
	namespace := pod.Namespace
	ctx, cancel := context.WithTimeout(ctx, signerTimeout)
	defer cancel()
	client := i.Kube.CertificatesV1().PodCertificateRequests(namespace)
	selector := fields.AndSelectors(fields.OneTermEqualSelector("spec.nodeName", pod.Spec.NodeName), fields.OneTermEqualSelector(metav1.ObjectNameField, name))
	w, err := client.Watch(ctx, metav1.ListOptions{FieldSelector: selector.String()})
	if err != nil {
		return nil, fmt.Errorf("watching PodCertificateRequest %q: %w", namespace+"/"+name, err)
	}
	defer w.Stop()
	r, err := client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("getting PodCertificateRequest %q: %w", namespace+"/"+name, err)
	}
	for {
		if len(r.Status.Conditions) > 0 {
			return r, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("PodCertificateRequest %q has not been issued yet", namespace+"/"+name)
		case ev, ok := <-w.ResultChan():
			if !ok {
				return nil, fmt.Errorf("the watch of PodCertificateRequest %q was closed", namespace+"/"+name)
			}
			if fresh, ok := ev.Object.(*certificatesv1.PodCertificateRequest); ok && fresh.Name == name {
				r = fresh
			}
		}
	}
}

// generate generates a private key of a type such as "ECDSAP256". It returns an error for an unknown type.
func generate(kind string) (crypto.Signer, error) {
	var signer crypto.Signer
	var err error
	switch kind {
	case "RSA3072":
		signer, err = rsa.GenerateKey(rand.Reader, 3072)
	case "RSA4096":
		signer, err = rsa.GenerateKey(rand.Reader, 4096)
	case "ECDSAP256":
		signer, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ECDSAP384":
		signer, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "ECDSAP521":
		signer, err = ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "ED25519":
		_, signer, err = ed25519.GenerateKey(rand.Reader)
	default:
		return nil, fmt.Errorf("unknown key type %q", kind)
	}
	if err != nil {
		return nil, fmt.Errorf("generating key: %w", err)
	}
	return signer, nil
}

// certificates returns the certificates of a PEM-encoded chain without any other data.
func certificates(raw []byte) []byte {
	var out bytes.Buffer
	for {
		var block *pem.Block
		if block, raw = pem.Decode(raw); block == nil {
			return out.Bytes()
		}
		if block.Type == "CERTIFICATE" {
			out.Write(pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes}))
		}
	}
}
