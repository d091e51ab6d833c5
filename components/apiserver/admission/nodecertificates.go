package admission

import (
	"context"
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
)

// podCertificate rejects any write of a PodCertificateRequest by a kubelet except its creation, and the creation
// unless the pod runs on the node, is no mirror pod, and all UIDs and names in the request are those of existing
// objects. Errors other than Forbidden may be caused by a cache that lags behind, so the kubelet may retry.
//
// https://kubernetes.io/docs/reference/access-authn-authz/certificate-signing-requests/#pod-certificate-requests
func (p *nodeRestriction) podCertificate(ctx context.Context, node string, a admission.Attributes) error {
	if a.GetOperation() != admission.Create {
		return forbid(a, "unexpected operation %v", a.GetOperation())
	}
	if sub := a.GetSubresource(); sub != "" {
		return forbid(a, "unexpected subresource %v", sub)
	}
	req, ok := a.GetObject().(*certificatesv1.PodCertificateRequest)
	if !ok {
		return unexpectedType(a, nil)
	}
	spec := &req.Spec
	if string(spec.NodeName) != node {
		return forbid(a, "PodCertificateRequest.Spec.NodeName=%q, which is not the requesting node %q", spec.NodeName, node)
	}
	lost := func(kind, name string, err error) error {
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("while retrieving %s %q named in the PodCertificateRequest: %w", kind, name, err)
		}
		return forbid(a, "while retrieving %s %q named in the PodCertificateRequest: %w", kind, name, err)
	}
	is, err := p.kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return lost("node", node, err)
	}
	ref := a.GetNamespace() + "/" + spec.PodName
	if is.UID != spec.NodeUID {
		return fmt.Errorf("PodCertificateRequest for pod %q names node UID %q, inconsistent with the running node (%q)", ref, spec.NodeUID, is.UID)
	}
	pod, err := p.find(ctx, a.GetNamespace(), spec.PodName)
	if err != nil {
		return lost("pod", ref, err)
	}
	switch {
	case pod.UID != spec.PodUID:
		return fmt.Errorf("PodCertificateRequest for pod %q contains pod UID (%q) which differs from running pod %q", ref, spec.PodUID, pod.UID)
	case pod.Spec.NodeName != node:
		return forbid(a, "pod %q is not running on node %q named in the PodCertificateRequest", ref, node)
	case isMirror(pod):
		return forbid(a, "pod %q is a mirror pod", ref)
	case pod.Spec.ServiceAccountName != spec.ServiceAccountName:
		return forbid(a, "PodCertificateRequest for pod %q contains serviceAccountName (%q) that differs from running pod (%q)",
			ref, spec.ServiceAccountName, pod.Spec.ServiceAccountName)
	}
	account := a.GetNamespace() + "/" + spec.ServiceAccountName
	sa, err := p.kube.CoreV1().ServiceAccounts(a.GetNamespace()).Get(ctx, spec.ServiceAccountName, metav1.GetOptions{})
	if err != nil {
		return lost("service account", account, err)
	}
	if sa.UID != spec.ServiceAccountUID {
		return fmt.Errorf("PodCertificateRequest for pod %q names service account UID %q, which differs from the running service account (%q)",
			ref, spec.ServiceAccountUID, sa.UID)
	}
	return p.checkSigner(ctx, a, req, pod)
}

// checkSigner rejects a PodCertificateRequest unless a volume of the pod names the signer, or an
// RBAC rule allows the node to request certificates of the signer for the service account.
func (p *nodeRestriction) checkSigner(ctx context.Context, a admission.Attributes, req *certificatesv1.PodCertificateRequest, pod *corev1.Pod) error {
	signer := req.Spec.SignerName
	for i := range pod.Spec.Volumes {
		if projected := pod.Spec.Volumes[i].Projected; projected != nil {
			for _, s := range projected.Sources {
				if s.PodCertificate != nil && s.PodCertificate.SignerName == signer {
					return nil
				}
			}
		}
	}
	// Resource names in RBAC rules cannot contain a slash.
	ok, err := p.isAuthorized(ctx, a, "request-serviceaccounts-podcertificate-signer", strings.ReplaceAll(signer, "/", ":"), req.Spec.ServiceAccountName)
	switch {
	case ok:
		return nil
	case err != nil:
		return forbid(a, "error authorizing %s to request podcertificaterequests for signer %q: %w", a.GetUserInfo().GetName(), signer, err)
	}
	return forbid(a, "pod %q does not mount a podCertificate projected volume for signer %q", a.GetNamespace()+"/"+req.Spec.PodName, signer)
}

// isMirror reports whether the pod is a mirror pod, with which a kubelet represents a static pod in
// the API.
func isMirror(pod *corev1.Pod) bool {
	_, ok := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return ok
}
