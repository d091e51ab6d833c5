// Package csrsigning signs approved CertificateSigningRequests for the built-in signers.
//
// https://kubernetes.io/docs/reference/access-authn-authz/certificate-signing-requests/#kubernetes-signers
package csrsigning

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/internal/api/certificates"
)

// DefaultDuration is the maximum lifetime of a certificate if Config.Duration is zero.
const DefaultDuration = 365 * 24 * time.Hour

// Authority is a certificate authority: its certificate and private key.
type Authority struct {
	Cert *x509.Certificate
	Key  crypto.Signer
}

// Config contains the certificate authorities of the signing controller, by signer, and the maximum lifetime of its
// certificates.
type Config struct {
	// Authorities are the certificate authorities by signer name. Requests for other signers are
	// ignored.
	Authorities map[string]Authority
	// Duration is the maximum lifetime of a certificate; zero means a year.
	Duration time.Duration
}

// Signers returns the signer names that Config.Authorities may contain.
func Signers() []string {
	return []string{
		certificatesv1.KubeAPIServerClientSignerName, certificatesv1.KubeAPIServerClientKubeletSignerName,
		certificatesv1.KubeletServingSignerName, certificates.LegacyUnknownSigner,
	}
}

// Controller signs approved CertificateSigningRequests. Use New to create it.
type Controller struct {
	*control.Loop
	env      control.Env
	cfg      Config
	requests certificateslisters.CertificateSigningRequestLister
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. It returns an error
// if there is no authority, or one without certificate or key. The caller then starts the informers and calls Run.
func New(env control.Env, cfg Config) (*Controller, error) {
	env = env.Defaulted()
	if len(cfg.Authorities) == 0 {
		return nil, errors.New("csrsigning: no authority")
	}
	for name, a := range cfg.Authorities {
		if a.Cert == nil || a.Key == nil {
			return nil, fmt.Errorf("csrsigning: the authority of %s has no certificate or no key", name)
		}
	}
	if cfg.Duration <= 0 {
		cfg.Duration = DefaultDuration
	}
	requests := env.Informers.Certificates().V1().CertificateSigningRequests()
	c := &Controller{env: env, cfg: cfg, requests: requests.Lister()}
	c.Loop = control.NewLoop(env, "csrsigning", c.sync)
	return c, c.Watch(requests.Informer(), control.AddedOrUpdated(func(r *certificatesv1.CertificateSigningRequest) { c.Add(r.Name) }))
}

// sync signs the request with this name if it is approved and for a configured signer, and has no certificate yet. A
// denied or failed request is ignored. A request that violates the rules of its signer gets the condition Failed.
func (c *Controller) sync(ctx context.Context, name string) error {
	r, err := c.requests.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	has := func(t certificatesv1.RequestConditionType) bool { return control.CSRCondition(r, t) != nil }
	authority, ours := c.cfg.Authorities[r.Spec.SignerName]
	if !ours || len(r.Status.Certificate) > 0 || !has(certificatesv1.CertificateApproved) ||
		has(certificatesv1.CertificateDenied) || has(certificatesv1.CertificateFailed) {
		return nil
	}
	req, err := certificates.ParseRequest(r.Spec.Request)
	if err != nil {
		return fmt.Errorf("parsing CSR %q: %w", name, err)
	}
	next := r.DeepCopy()
	if err := checkRequest(req, r.Spec.Usages, r.Spec.SignerName); err != nil {
		next.Status.Conditions = append(next.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateFailed, Status: corev1.ConditionTrue, Reason: "SignerValidationFailure", Message: err.Error(),
			LastUpdateTime: metav1.NewTime(c.env.Clock.Now()),
		})
		if err := c.update(ctx, next); err != nil {
			return fmt.Errorf("adding failure condition to CSR: %w", err)
		}
		return nil
	}
	der, err := authority.sign(req, r.Spec.Usages, c.duration(r.Spec.ExpirationSeconds), c.env.Clock.Now())
	if err != nil {
		return fmt.Errorf("signing CSR: %w", err)
	}
	next.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := c.update(ctx, next); err != nil {
		return fmt.Errorf("updating certificate of CSR: %w", err)
	}
	return nil
}

// update writes the status of r. It returns nil if r was deleted.
func (c *Controller) update(ctx context.Context, r *certificatesv1.CertificateSigningRequest) error {
	_, err := c.env.Kube.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, r, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// minDuration is the minimum lifetime of a certificate, even if the request specifies less.
const minDuration = 10 * time.Minute

// duration returns the lifetime of a certificate for a request with this spec.expirationSeconds, which may be nil.
func (c *Controller) duration(seconds *int32) time.Duration {
	if seconds == nil {
		return c.cfg.Duration
	}
	return min(max(time.Duration(*seconds)*time.Second, minDuration), c.cfg.Duration)
}

// checkRequest returns an error if the request violates the rules of a signer for subject, alternative names and key
// usages. The signer kubernetes.io/legacy-unknown has no rules.
func checkRequest(req *x509.CertificateRequest, usages []certificatesv1.KeyUsage, signer string) error {
	switch signer {
	case certificatesv1.KubeAPIServerClientKubeletSignerName:
		return control.CheckKubeletClient(req, usages)
	case certificatesv1.KubeletServingSignerName:
		return control.CheckKubeletServing(req, usages)
	case certificatesv1.KubeAPIServerClientSignerName:
		client := false
		for _, u := range usages {
			switch u {
			case certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment:
			case certificatesv1.UsageClientAuth:
				client = true
			default:
				return fmt.Errorf("invalid usage for client certificate: %s", u)
			}
		}
		if !client {
			return fmt.Errorf("missing required usage for client certificate: %s", certificatesv1.UsageClientAuth)
		}
	}
	return nil
}
