package admission

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// checkAudience rejects a kubelet's token request for a pod unless a volume of the pod requests a token for the
// audience (no audience is the API server), or an RBAC rule allows the node to request it. A request with several
// audiences is always rejected.
//
// https://kep.k8s.io/4412
func (p *nodeRestriction) checkAudience(ctx context.Context, a admission.Attributes, req *authenticationv1.TokenRequest, pod *corev1.Pod) error {
	if len(req.Spec.Audiences) > 1 {
		return forbid(a, "node may only request 0 or 1 audiences")
	}
	want := ""
	if len(req.Spec.Audiences) == 1 {
		want = req.Spec.Audiences[0]
	}
	named, err := p.requestsAudience(ctx, pod, want)
	if err != nil {
		return forbid(a, "error validating audience %q: %w", want, err)
	}
	if named {
		return nil
	}
	who := a.GetUserInfo().GetName()
	ok, err := p.isAuthorized(ctx, a, "request-serviceaccounts-token-audience", want, a.GetName())
	switch {
	case ok:
		return nil
	case err != nil:
		return forbid(a, "error authorizing %s to request tokens for audience %q: %w", who, want, err)
	}
	return forbid(a, "%s is not authorized to request tokens for audience %q", who, want)
}

// isAuthorized reports whether the user of request a is authorized for the verb on a resource in the API group and
// namespace of the request. account, the name of a service account, is the object name in this check. Without an
// authorizer, it returns false. It may return both true and an error, as some authorizers do.
func (p *nodeRestriction) isAuthorized(ctx context.Context, a admission.Attributes, verb, resource, account string) (bool, error) {
	if p.authorizer == nil {
		return false, nil
	}
	r := a.GetResource()
	// Some authorizers return both an allow decision and an error.
	decision, _, err := p.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: verb, Namespace: a.GetNamespace(), APIGroup: r.Group, APIVersion: r.Version,
		Resource: resource, Name: account, ResourceRequest: true,
	})
	return decision == authorizer.DecisionAllow, err
}

// requestsAudience reports whether a projected volume of the pod, or the CSI driver of one of its volumes, requests a
// token for the audience. It returns errors of looking up claims, volumes and drivers only if no other volume
// requests it.
func (p *nodeRestriction) requestsAudience(ctx context.Context, pod *corev1.Pod, audience string) (bool, error) {
	var errs []error
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Projected != nil {
			for _, s := range v.Projected.Sources {
				if s.ServiceAccountToken != nil && s.ServiceAccountToken.Audience == audience {
					return true, nil
				}
			}
		}
		driver, err := p.csiDriver(ctx, pod, v)
		if err != nil {
			errs = append(errs, err)
		}
		if driver == "" {
			continue
		}
		found, err := p.kube.StorageV1().CSIDrivers().Get(ctx, driver, metav1.GetOptions{})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, t := range found.Spec.TokenRequests {
			if t.Audience == audience {
				return true, nil
			}
		}
	}
	return false, utilerrors.NewAggregate(errs)
}

// csiDriver returns the name of the CSI driver that provides a volume of the pod, looked up through the volume's
// claim if it has one. It returns "" for volumes without a CSI driver, and an error if the claim is not bound or an
// object does not exist.
func (p *nodeRestriction) csiDriver(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) (string, error) {
	var claim string
	switch {
	case v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil:
		claim = pod.Name + "-" + v.Name
	case v.PersistentVolumeClaim != nil:
		claim = v.PersistentVolumeClaim.ClaimName
	case v.CSI != nil:
		return v.CSI.Driver, nil
	default:
		return "", nil
	}
	pvc, err := p.kube.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, claim, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if pvc.Spec.VolumeName == "" {
		return "", fmt.Errorf("persistentvolume %q not found", "")
	}
	pv, err := p.kube.CoreV1().PersistentVolumes().Get(ctx, pvc.Spec.VolumeName, metav1.GetOptions{})
	if err != nil || pv.Spec.CSI == nil {
		return "", err
	}
	return pv.Spec.CSI.Driver, nil
}
