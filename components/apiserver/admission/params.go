package admission

import (
	"context"
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// PolicyParams lets nobody show themselves, by the messages of a policy, what
// they may not read: who writes a policy must be allowed to get all objects of
// the kind that parameterizes it. It belongs to the kinds and so is always on.
//
// https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/#parameter-resources
type PolicyParams struct {
	// Authorizer must not be nil.
	Authorizer authorizer.Authorizer
	// Resource finds the plural name of a kind; "" when it is not served.
	Resource func(schema.GroupVersionKind) string
}

// Handles implements admission.Interface.
func (PolicyParams) Handles(op admission.Operation) bool { return onCreateUpdate.Handles(op) }

func paramKindOf(obj runtime.Object) *admissionv1.ParamKind {
	switch p := obj.(type) {
	case *admissionv1.ValidatingAdmissionPolicy:
		return p.Spec.ParamKind
	case *admissionv1.MutatingAdmissionPolicy:
		return p.Spec.ParamKind
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (p PolicyParams) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().Group != admissionv1.GroupName || a.GetSubresource() != "" {
		return nil
	}
	kind, u := paramKindOf(a.GetObject()), a.GetUserInfo()
	if kind == nil || apiequality.Semantic.DeepEqual(kind, paramKindOf(a.GetOldObject())) || isMaster(u) {
		return nil
	}
	attrs := authorizer.AttributesRecord{
		User: u, Verb: "get", Name: "*", Namespace: "*", APIGroup: "*", APIVersion: "*", Resource: "*", ResourceRequest: true,
	}
	if gv, err := schema.ParseGroupVersion(kind.APIVersion); err == nil {
		attrs.APIGroup, attrs.APIVersion = gv.Group, gv.Version
		if r := p.Resource(gv.WithKind(kind.Kind)); r != "" {
			attrs.Resource = r
		}
	}
	decision, _, err := p.Authorizer.Authorize(ctx, attrs)
	if err == nil && decision == authorizer.DecisionAllow {
		return nil
	}
	if err == nil {
		err = fmt.Errorf("user %v must have %q permission on all objects of the referenced paramKind (kind=%s, apiVersion=%s)", u, "get", kind.Kind, kind.APIVersion)
	}
	meta, _ := a.GetObject().(metav1.Object)
	name := a.GetName()
	if meta != nil {
		name = meta.GetName()
	}
	return apierrors.NewInvalid(a.GetKind().GroupKind(), name, field.ErrorList{
		field.Forbidden(field.NewPath("spec", "paramKind"), err.Error()),
	})
}

func isMaster(u user.Info) bool {
	if u == nil {
		return false
	}
	for _, g := range u.GetGroups() {
		if g == user.SystemPrivilegedGroup {
			return true
		}
	}
	return false
}
