// Package csrapproving approves CertificateSigningRequests for kubelet client certificates, if RBAC
// allows the requester to obtain them.
//
// https://kubernetes.io/docs/reference/access-authn-authz/kubelet-tls-bootstrapping/#approval
package csrapproving

import (
	"context"
	"crypto/x509"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/internal/api/certificates"
)

// Controller approves CertificateSigningRequests of kubelets. Use New to create it.
type Controller struct {
	*control.Loop
	env      control.Env
	requests certificateslisters.CertificateSigningRequestLister
}

// recognizer describes a type of CertificateSigningRequests for kubelet client certificates, and the permission with
// which the requester gets a request of this type approved automatically.
type recognizer struct {
	// self is true if a node requests the certificate for itself.
	self bool
	// subresource is the CertificateSigningRequest subresource that the requester must be allowed
	// to create.
	subresource string
	message     string
}

// recognizers returns the types of CertificateSigningRequests that can be approved automatically, in the order in
// which they are tried.
func recognizers() []recognizer {
	return []recognizer{
		{true, "selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview."},
		{false, "nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview."},
	}
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. The caller then
// starts the informers and calls Run.
func New(env control.Env) (*Controller, error) {
	env = env.Defaulted()
	requests := env.Informers.Certificates().V1().CertificateSigningRequests()
	c := &Controller{env: env, requests: requests.Lister()}
	c.Loop = control.NewLoop(env, "csrapproving", c.sync)
	return c, c.Watch(requests.Informer(), control.AddedOrUpdated(func(r *certificatesv1.CertificateSigningRequest) { c.Add(r.Name) }))
}

// sync approves the request with this name if it is a pending request for a kubelet client certificate, and RBAC
// permits the requester to get the certificate. Without the permission it returns an error, so that the sync is
// retried. Other requests are ignored.
func (c *Controller) sync(ctx context.Context, name string) error {
	r, err := c.requests.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if len(r.Status.Certificate) > 0 || control.CSRCondition(r, certificatesv1.CertificateApproved) != nil ||
		control.CSRCondition(r, certificatesv1.CertificateDenied) != nil || r.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
		return nil
	}
	req, err := certificates.ParseRequest(r.Spec.Request)
	if err != nil {
		return fmt.Errorf("parsing CSR %q: %w", name, err)
	}
	if control.CheckKubeletClient(req, r.Spec.Usages) != nil {
		return nil
	}
	tried := ""
	for _, x := range recognizers() {
		if x.self && !isSelf(r, req) {
			continue
		}
		tried += " " + x.subresource
		allowed, err := c.allowed(ctx, r, x.subresource)
		if err != nil {
			return err
		}
		if allowed {
			return c.approve(ctx, r, x.message)
		}
	}
	// The permission may be granted later: retry with back-off.
	return fmt.Errorf("recognized csr %q as%s but subject access review was not approved", name, tried)
}

// isSelf reports whether the requester is the node for which the certificate is requested.
func isSelf(r *certificatesv1.CertificateSigningRequest, req *x509.CertificateRequest) bool {
	return r.Spec.Username == req.Subject.CommonName
}

// allowed reports whether the requester of the CertificateSigningRequest r is authorized to create the given
// subresource of CertificateSigningRequests. This permission, for example nodeclient, is that for automatic approval.
func (c *Controller) allowed(ctx context.Context, r *certificatesv1.CertificateSigningRequest, subresource string) (bool, error) {
	extra := make(map[string]authorizationv1.ExtraValue, len(r.Spec.Extra))
	for k, v := range r.Spec.Extra {
		extra[k] = authorizationv1.ExtraValue(v)
	}
	answer, err := c.env.Kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: r.Spec.Username, UID: r.Spec.UID, Groups: r.Spec.Groups, Extra: extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Group: certificatesv1.GroupName, Resource: "certificatesigningrequests", Verb: "create", Subresource: subresource, Version: "*",
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return answer.Status.Allowed, nil
}

// approve adds the condition Approved with the message to a CertificateSigningRequest, through the subresource
// approval.
func (c *Controller) approve(ctx context.Context, r *certificatesv1.CertificateSigningRequest, message string) error {
	next := r.DeepCopy()
	next.Status.Conditions = append(next.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "AutoApproved", Message: message,
	})
	_, err := c.env.Kube.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, r.Name, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("updating approval of CSR: %w", err)
	}
	return nil
}
