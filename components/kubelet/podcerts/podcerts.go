// Package podcerts gets certificates for pods: it makes a key, asks for a
// certificate by a PodCertificateRequest, and does so again before that expires.
// Keys are kept in memory, and in the pods' volumes, alone.
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

// Bounds of how long one call waits for the signer, when it is asked again, and
// after how long a request is taken to be lost, as the API server then deletes it.
const (
	waitFor   = 10 * time.Second
	askAgain  = time.Minute
	lostAfter = 15 * time.Minute
)

// Issuer gets certificates. Its methods are safe for several goroutines.
type Issuer struct {
	Kube kubernetes.Interface
	// Node returns the Node as the API has it, nil while it is not known.
	Node func() *v1.Node
	// Warn tells a pod of certificates that are not renewed in time; may be nil.
	Warn func(pod *v1.Pod, reason, message string)

	mu   sync.Mutex // guards held
	held map[key]*credential
}

type key struct {
	pod    types.UID
	volume string
	source int
}

// credential is one certificate of one pod.
type credential struct {
	mu         sync.Mutex // held while it is worked on
	key, chain []byte
	refresh    time.Time
	expires    time.Time
	// pending is the request that is not answered, "" for none, of the key next.
	pending string
	next    []byte
	asked   time.Time
	// late and gone: it was told that it is not renewed, and has expired.
	late, gone bool
	// refused is not nil once the signer has said no for good.
	refused error
	// state is what State tells, also while it is worked on.
	state atomic.Pointer[state]
}

// state is how far a credential is.
type state struct {
	refused          string // "denied" or "failed"; empty when it is neither
	refresh, expires time.Time
}

// State tells how far the certificate of a source of a projected volume is, as metrics
// have it; empty when nobody has asked for it. It does not wait.
func (i *Issuer) State(pod types.UID, volume string, source int, now time.Time) string {
	i.mu.Lock()
	c := i.held[key{pod, volume, source}]
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

// Credential returns the private key, PEM-encoded PKCS #8, and the certificates of
// a source of a projected volume, and when to call again. It is an error while
// there is none; the next call goes on waiting.
func (i *Issuer) Credential(ctx context.Context, pod *v1.Pod, volume string, source int, p *v1.PodCertificateProjection) (privateKey, chain []byte, refresh time.Time, err error) {
	if i.Kube == nil {
		return nil, nil, time.Time{}, errors.New("no API server to ask for a certificate")
	}
	at := key{pod.UID, volume, source}
	i.mu.Lock()
	if i.held == nil {
		i.held = map[key]*credential{}
	}
	c := i.held[at]
	if c == nil {
		c = &credential{}
		i.held[at] = c
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
			return c.key, c.chain, now.Add(askAgain), nil
		}
		return nil, nil, time.Time{}, err
	}
	return c.key, c.chain, c.refresh, nil
}

// overdueAfter is how long a certificate may be due to be renewed.
const overdueAfter = 10 * time.Minute

// warn tells once of a certificate that should be another by now.
func (i *Issuer) warn(c *credential, pod *v1.Pod, now time.Time) {
	if c.chain == nil || i.Warn == nil {
		return
	}
	if !c.late && now.After(c.refresh.Add(overdueAfter)) {
		c.late = true
		i.Warn(pod, "CertificateOverdueForRefresh", "PodCertificate refresh overdue")
	}
	if !c.gone && now.After(c.expires) {
		c.gone = true
		i.Warn(pod, "CertificateExpired", "PodCertificate expired")
	}
}

// Forget drops what is held for a pod that is gone.
func (i *Issuer) Forget(pod types.UID) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for k := range i.held {
		if k.pod == pod {
			delete(i.held, k)
		}
	}
}

// obtain asks for a certificate unless that is done, and takes it in.
func (i *Issuer) obtain(ctx context.Context, c *credential, pod *v1.Pod, p *v1.PodCertificateProjection) error {
	if c.pending != "" && time.Since(c.asked) > lostAfter {
		c.pending = ""
	}
	if c.pending == "" {
		if err := i.ask(ctx, c, pod, p); err != nil {
			return err
		}
	}
	r, err := i.answer(ctx, pod, c.pending)
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
	c.key, c.chain, c.pending, c.next = c.next, chain, "", nil
	c.refresh, c.expires = r.Status.BeginRefreshAt.Time, r.Status.NotAfter.Time
	c.late, c.gone = false, false
	c.state.Store(&state{refresh: c.refresh, expires: c.expires})
	return nil
}

// ask makes a key and asks for a certificate for it.
func (i *Issuer) ask(ctx context.Context, c *credential, pod *v1.Pod, p *v1.PodCertificateProjection) error {
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
		return fmt.Errorf("encoding a key: %w", err)
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, signer)
	if err != nil {
		return fmt.Errorf("making a certificate request: %w", err)
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
		return fmt.Errorf("creating a PodCertificateRequest: %w", err)
	}
	c.pending, c.asked = made.Name, time.Now()
	c.next = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	return nil
}

// answer waits for a request to be answered.
func (i *Issuer) answer(ctx context.Context, pod *v1.Pod, name string) (*certificatesv1.PodCertificateRequest, error) {
	namespace := pod.Namespace
	ctx, cancel := context.WithTimeout(ctx, waitFor)
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
			return nil, fmt.Errorf("PodCertificateRequest %q has not been answered yet", namespace+"/"+name)
		case ev, ok := <-w.ResultChan():
			if !ok {
				return nil, fmt.Errorf("the watch of PodCertificateRequest %q ended", namespace+"/"+name)
			}
			if fresh, ok := ev.Object.(*certificatesv1.PodCertificateRequest); ok && fresh.Name == name {
				r = fresh
			}
		}
	}
}

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
		return nil, fmt.Errorf("making a key: %w", err)
	}
	return signer, nil
}

// certificates are the blocks of a chain, without what is around them.
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
