// Package csrcleaner deletes CertificateSigningRequests that are no longer needed: issued, denied,
// and failed ones after an hour, pending ones after a day.
package csrcleaner

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"

	"hyperkube/components/controllers/internal/control"
)

// How long CertificateSigningRequests are kept after they have finished, and while they are pending.
const (
	finishedRetention = time.Hour
	pendingRetention  = 24 * time.Hour
)

// Controller deletes CertificateSigningRequests that have been finished or pending for too long. Use New to create it.
type Controller struct {
	*control.Loop
	env      control.Env
	requests certificateslisters.CertificateSigningRequestLister
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. The caller then
// starts the informers and calls Run.
func New(env control.Env) (*Controller, error) {
	env = env.Defaulted()
	requests := env.Informers.Certificates().V1().CertificateSigningRequests()
	c := &Controller{env: env, requests: requests.Lister()}
	c.Loop = control.NewLoop(env, "csrcleaner", c.sync)
	return c, c.Watch(requests.Informer(), control.AddedOrUpdated(func(r *certificatesv1.CertificateSigningRequest) { c.Add(r.Name) }))
}

// sync deletes the request with this name if its retention is over, or schedules another sync for that time.
func (c *Controller) sync(ctx context.Context, name string) error {
	r, err := c.requests.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if wait := deleteAfter(r).Sub(c.env.Clock.Now()); wait > 0 {
		c.AddAfter(name, wait)
		return nil
	}
	err = c.env.Kube.CertificatesV1().CertificateSigningRequests().Delete(ctx, name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(r.UID))})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it is deleted, or replaced by another object of that name
	}
	return err
}

// deleteAfter returns the time at which a request is deleted: an hour after it was approved, denied or failed, at the
// expiration of its certificate, and at the latest a day after its creation.
func deleteAfter(r *certificatesv1.CertificateSigningRequest) time.Time {
	if len(r.Status.Conditions) == 0 {
		return r.CreationTimestamp.Add(pendingRetention)
	}
	end := r.CreationTimestamp.Add(pendingRetention)
	for _, t := range []certificatesv1.RequestConditionType{certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed} {
		if condition := control.CSRCondition(r, t); condition != nil {
			end = earlier(end, condition.LastUpdateTime.Add(finishedRetention))
		}
	}
	if block, _ := pem.Decode(r.Status.Certificate); block != nil {
		if certs, err := x509.ParseCertificates(block.Bytes); err == nil && len(certs) > 0 {
			end = earlier(end, certs[0].NotAfter)
		}
	}
	return end
}

// earlier returns the earlier of two times.
func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
