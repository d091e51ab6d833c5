package admission

import (
	"context"
	"fmt"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
)

// adminAccess allows ResourceClaims and their templates to request admin access to devices only in
// namespaces that carry the admin access label. Upstream does this check in the validation of
// claims, so it always runs.
//
// https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/#admin-access
type adminAccess struct {
	operations
	namespaces namespaces
}

// newAdminAccess creates the plugin adminAccess.
func newAdminAccess(cfg *Config) admission.ValidationInterface {
	return &adminAccess{onCreate, newNamespaces(cfg)}
}

// Validate rejects a new claim or template that requests admin access in a namespace without the label
// resource.kubernetes.io/admin-access=true. It reports only the first such request of the object.
func (p *adminAccess) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	var requests []resourcev1.DeviceRequest
	var name string
	switch o := a.GetObject().(type) {
	case *resourcev1.ResourceClaim:
		requests, name = o.Spec.Devices.Requests, o.Name
	case *resourcev1.ResourceClaimTemplate:
		requests, name = o.Spec.Spec.Devices.Requests, o.Name
	default:
		return nil
	}
	path := field.NewPath("spec", "devices", "requests")
	for i, r := range requests {
		if r.Exactly == nil || r.Exactly.AdminAccess == nil || !*r.Exactly.AdminAccess {
			continue
		}
		if err := adminNamespace(ctx, p.namespaces, a.GetNamespace(), path.Index(i).Child("adminAccess")); err != nil {
			return apierrors.NewInvalid(a.GetKind().GroupKind(), name, field.ErrorList{err})
		}
		return nil
	}
	return nil
}

// adminNamespace returns nil if the namespace with the name has the label resource.kubernetes.io/admin-access=true,
// so that claims in it may request admin access to devices. Otherwise, or if the namespace cannot be read, it returns
// the error for the field at path.
func adminNamespace(ctx context.Context, all namespaces, name string, path *field.Path) *field.Error {
	ns, err := all.get(ctx, name)
	if err != nil {
		return field.InternalError(path, fmt.Errorf("could not retrieve namespace to verify admin access: %w", err))
	}
	if ns.Labels[resourcev1.DRAAdminNamespaceLabelKey] != "true" {
		return field.Forbidden(path, fmt.Sprintf("admin access to devices requires the `%s: true` label on the containing namespace", resourcev1.DRAAdminNamespaceLabelKey))
	}
	return nil
}
