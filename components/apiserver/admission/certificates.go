package admission

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"hyperkube/components/apiserver/authz"
)

// allowedForSigner reports whether the user is authorized for the verb on a signer of certificates, either by the
// signer's name or for all signers of its domain ("example.com/*"). An error of the authorizer counts as not
// authorized.
func allowedForSigner(ctx context.Context, may authorizer.Authorizer, u user.Info, verb, signer string) bool {
	domain, _, _ := strings.Cut(signer, "/")
	for _, name := range []string{signer, domain + "/*"} {
		decision, _, _ := may.Authorize(ctx, authorizer.AttributesRecord{
			User: u, Verb: verb, Name: name, APIGroup: certificatesv1.GroupName, APIVersion: "*", Resource: "signers", ResourceRequest: true,
		})
		if decision == authorizer.DecisionAllow {
			return true
		}
	}
	return false
}

// certificateApproval is the plugin CertificateApproval. It allows approving certificate signing
// requests only to users with the verb "approve" on the signer.
type certificateApproval struct {
	operations
	authorizer authorizer.Authorizer
}

// newCertificateApproval creates the plugin CertificateApproval. It returns nil, which disables the plugin, if cfg
// has no authorizer.
func newCertificateApproval(cfg *Config) (admission.Interface, error) {
	if cfg.Authorizer == nil {
		return nil, nil
	}
	return certificateApproval{onUpdate, cfg.Authorizer}, nil
}

// Validate rejects an update of the subresource approval if the user may not approve requests for
// the signer.
func (p certificateApproval) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if !isSigningRequest(a) || a.GetSubresource() != "approval" {
		return nil
	}
	csr, ok := a.GetOldObject().(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return unexpectedType(a, a.GetOldObject())
	}
	if !allowedForSigner(ctx, p.authorizer, a.GetUserInfo(), "approve", csr.Spec.SignerName) {
		return forbid(a, "user not permitted to approve requests with signerName %q", csr.Spec.SignerName)
	}
	return nil
}

// certificateSigning is the plugin CertificateSigning. It allows issuing certificates, for CertificateSigningRequests
// and PodCertificateRequests, only to users with the verb "sign" on the signer.
type certificateSigning struct {
	operations
	authorizer authorizer.Authorizer
}

// newCertificateSigning creates the plugin CertificateSigning. It returns nil, which disables the plugin, if cfg has
// no authorizer.
func newCertificateSigning(cfg *Config) (admission.Interface, error) {
	if cfg.Authorizer == nil {
		return nil, nil
	}
	return certificateSigning{onUpdate, cfg.Authorizer}, nil
}

// Validate rejects an update of the certificate or the conditions in the status of a CertificateSigningRequest, or of
// anything in the status of a PodCertificateRequest, if the user may not sign for the signer.
func (p certificateSigning) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != "status" {
		return nil
	}
	if a.GetResource().GroupResource() == certificatesv1.Resource("podcertificaterequests") {
		return p.podRequest(ctx, a)
	}
	if !isSigningRequest(a) {
		return nil
	}
	old, ok := a.GetOldObject().(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return unexpectedType(a, a.GetOldObject())
	}
	csr, ok := a.GetObject().(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return unexpectedType(a, nil)
	}
	if slices.Equal(old.Status.Certificate, csr.Status.Certificate) && equality.Semantic.DeepEqual(old.Status.Conditions, csr.Status.Conditions) {
		return nil
	}
	if !allowedForSigner(ctx, p.authorizer, a.GetUserInfo(), "sign", old.Spec.SignerName) {
		return forbid(a, "user not permitted to sign requests with signerName %q", old.Spec.SignerName)
	}
	return nil
}

// podRequest rejects an update that changes the status of a PodCertificateRequest if the user may not sign for its
// signer. Upstream does this check in the validation of the kind, so the error is Invalid and not Forbidden.
func (p certificateSigning) podRequest(ctx context.Context, a admission.Attributes) error {
	old, ok := a.GetOldObject().(*certificatesv1.PodCertificateRequest)
	if !ok {
		return unexpectedType(a, a.GetOldObject())
	}
	r, ok := a.GetObject().(*certificatesv1.PodCertificateRequest)
	if !ok {
		return unexpectedType(a, nil)
	}
	if equality.Semantic.DeepEqual(old.Status, r.Status) || allowedForSigner(ctx, p.authorizer, a.GetUserInfo(), "sign", old.Spec.SignerName) {
		return nil
	}
	return apierrors.NewInvalid(a.GetKind().GroupKind(), r.Name, field.ErrorList{field.Forbidden(field.NewPath("spec", "signerName"),
		fmt.Sprintf("User %q is not permitted to \"sign\" for signer %q", a.GetUserInfo().GetName(), old.Spec.SignerName))})
}

// certificateSubject is the plugin CertificateSubjectRestriction. It rejects CertificateSigningRequests for client
// certificates of the API server that would be in the group system:masters.
type certificateSubject struct{ operations }

// newCertificateSubject creates the plugin CertificateSubjectRestriction. It never fails.
func newCertificateSubject(*Config) (admission.Interface, error) {
	return certificateSubject{onCreate}, nil
}

// Validate rejects a new CertificateSigningRequest for the signer kubernetes.io/kube-apiserver-client if an
// organization in its subject is system:masters, or if it cannot be parsed. Other signers are not checked.
func (certificateSubject) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if !isSigningRequest(a) || a.GetSubresource() != "" {
		return nil
	}
	csr, ok := a.GetObject().(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return unexpectedType(a, nil)
	}
	if csr.Spec.SignerName != certificatesv1.KubeAPIServerClientSignerName {
		return nil
	}
	req, err := certificateRequest(a, csr)
	if err != nil {
		return err
	}
	if slices.Contains(req.Subject.Organization, user.SystemPrivilegedGroup) {
		return forbid(a, "use of %s signer with %s group is not allowed", certificatesv1.KubeAPIServerClientSignerName, user.SystemPrivilegedGroup)
	}
	return nil
}

// certificateRequest parses the PEM-encoded X.509 request in csr. Its error is a Forbidden error for the API request
// a.
func certificateRequest(a admission.Attributes, csr *certificatesv1.CertificateSigningRequest) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(csr.Spec.Request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, forbid(a, "unable to parse csr: PEM block type must be CERTIFICATE REQUEST")
	}
	req, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, forbid(a, "unable to parse csr: %w", err)
	}
	return req, nil
}

// isSigningRequest reports whether the request is for a CertificateSigningRequest or a subresource of it.
func isSigningRequest(a admission.Attributes) bool {
	r := a.GetResource()
	return r.Group == certificatesv1.GroupName && r.Resource == "certificatesigningrequests"
}

// trustBundleAttest is the plugin ClusterTrustBundleAttest. It allows writing ClusterTrustBundles
// of a signer only to users with the verb "attest" on the signer.
type trustBundleAttest struct {
	operations
	authorizer authorizer.Authorizer
}

// newTrustBundleAttest creates the plugin ClusterTrustBundleAttest. It returns nil, which disables the plugin, if cfg
// has no authorizer.
func newTrustBundleAttest(cfg *Config) (admission.Interface, error) {
	if cfg.Authorizer == nil {
		return nil, nil
	}
	return trustBundleAttest{onCreateUpdate, cfg.Authorizer}, nil
}

// Validate rejects a new or changed trust bundle if it has a signer and the user may not attest for this signer.
// Updates that change nothing, or only fields that the garbage collector changes, are allowed.
func (p trustBundleAttest) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if !isRequestFor(a, certificatesv1.GroupName, "clustertrustbundles") {
		return nil
	}
	bundle, ok := a.GetObject().(*certificatesv1.ClusterTrustBundle)
	if !ok {
		return unexpectedType(a, nil)
	}
	signer := bundle.Spec.SignerName
	if signer == "" {
		return nil
	}
	// Storage migration and garbage collection do not need the permission.
	if a.GetOperation() == admission.Update && authz.OnlyGarbageCollectionFields(bundle, a.GetOldObject()) {
		return nil
	}
	if allowedForSigner(ctx, p.authorizer, a.GetUserInfo(), "attest", signer) {
		return nil
	}
	return forbid(a, "user not permitted to attest for signerName %q", signer)
}
