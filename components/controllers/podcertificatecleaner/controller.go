// Package podcertificatecleaner deletes PodCertificateRequests 15 minutes after their creation. By
// then the kubelet has processed the response, or has created another request.
package podcertificatecleaner

import (
	"context"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"

	"hyperkube/components/controllers/internal/control"
)

// kept is how long a PodCertificateRequest is kept after its creation.
const kept = 15 * time.Minute

// Controller deletes PodCertificateRequests that are older than 15 minutes.
type Controller struct {
	*control.Loop
	env      control.Env
	requests certificateslisters.PodCertificateRequestLister
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. The caller then
// starts the informers and calls Run.
func New(env control.Env) (*Controller, error) {
	env = env.Defaulted()
	requests := env.Informers.Certificates().V1().PodCertificateRequests()
	c := &Controller{env: env, requests: requests.Lister()}
	c.Loop = control.NewLoop(env, "podcertificaterequestcleaner", c.sync)
	return c, c.Watch(requests.Informer(), control.Handlers(func(r *certificatesv1.PodCertificateRequest) { c.AddObject(r) }, nil, nil))
}

// sync deletes the request with the key, or schedules its deletion if it is not old enough.
func (c *Controller) sync(ctx context.Context, key string) error {
	namespace, name := control.SplitKey(key)
	r, err := c.requests.PodCertificateRequests(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if wait := r.CreationTimestamp.Add(kept).Sub(c.env.Clock.Now()); wait > 0 {
		c.AddAfter(key, wait)
		return nil
	}
	err = c.env.Kube.CertificatesV1().PodCertificateRequests(namespace).Delete(ctx, name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(r.UID))})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it is deleted, or replaced by another object of that name
	}
	return err
}
