package admission

import (
	"context"
	"fmt"
	"slices"

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
	"k8s.io/client-go/kubernetes"
)

// PolicyParams is an admission plugin that prevents users from reading objects through the messages
// of an admission policy that they are not allowed to read directly. The author of a policy must be
// allowed to get all objects of its parameter kind. The author of a binding must be allowed to get,
// or list, the parameters to which the binding refers. In upstream the check is part of these
// kinds, so it is always enabled.
//
// https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/#parameter-resources
type PolicyParams struct {
	// Authorizer must not be nil.
	Authorizer authorizer.Authorizer
	// Kube reads the policies that bindings refer to. It must not be nil.
	Kube kubernetes.Interface
	// Resource returns the plural name of a kind, or "" if the kind is not served.
	Resource func(schema.GroupVersionKind) string
}

// Handles reports whether op is a create or an update.
func (PolicyParams) Handles(op admission.Operation) bool { return onCreateUpdate.Handles(op) }

// paramKindOf returns the kind of the parameters of an admission policy, or nil if it has none or obj is not a
// policy.
func paramKindOf(obj runtime.Object) *admissionv1.ParamKind {
	switch p := obj.(type) {
	case *admissionv1.ValidatingAdmissionPolicy:
		return p.Spec.ParamKind
	case *admissionv1.MutatingAdmissionPolicy:
		return p.Spec.ParamKind
	}
	return nil
}

// Validate rejects an admission policy or binding whose author lacks the permission to read its parameters. It does
// not check superusers, objects without parameters, and updates that do not change the parameters.
func (p PolicyParams) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().Group != admissionv1.GroupName || a.GetSubresource() != "" {
		return nil
	}
	if ref, policy, ok := paramRefOf(a.GetObject()); ok {
		return p.binding(ctx, a, ref, policy)
	}
	kind, u := paramKindOf(a.GetObject()), a.GetUserInfo()
	if kind == nil || apiequality.Semantic.DeepEqual(kind, paramKindOf(a.GetOldObject())) || isSuperuser(u) {
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
	return forbidField(a, "paramKind", err)
}

// forbidField returns an Invalid error for the object of the request whose cause is that the field spec.name is
// forbidden because of err.
func forbidField(a admission.Attributes, name string, err error) error {
	named := a.GetName()
	if meta, ok := a.GetObject().(metav1.Object); ok {
		named = meta.GetName()
	}
	return apierrors.NewInvalid(a.GetKind().GroupKind(), named, field.ErrorList{field.Forbidden(field.NewPath("spec", name), err.Error())})
}

// paramRefOf returns a binding's reference to parameters, which may be nil, and the name of its
// policy. It returns false if obj is not a binding.
func paramRefOf(obj runtime.Object) (ref *admissionv1.ParamRef, policy string, ok bool) {
	switch b := obj.(type) {
	case *admissionv1.ValidatingAdmissionPolicyBinding:
		return b.Spec.ParamRef, b.Spec.PolicyName, true
	case *admissionv1.MutatingAdmissionPolicyBinding:
		return b.Spec.ParamRef, b.Spec.PolicyName, true
	}
	return nil, "", false
}

// binding returns an error unless the author of a binding may read the parameters to which ref refers, of the policy
// with the name. If the parameter kind cannot be determined, the author must be allowed to read all resources. It
// returns nil for superusers, without ref, and if an update changes neither the policy nor the parameters.
func (p PolicyParams) binding(ctx context.Context, a admission.Attributes, ref *admissionv1.ParamRef, policy string) error {
	u := a.GetUserInfo()
	if ref == nil || isSuperuser(u) {
		return nil
	}
	// As in upstream, selectors are compared by pointer, so a selector that is set always triggers
	// the check.
	if old, was, ok := paramRefOf(a.GetOldObject()); ok && old != nil && *old == *ref && was == policy {
		return nil
	}
	attrs := authorizer.AttributesRecord{
		User: u, Verb: "get", Name: ref.Name, Namespace: ref.Namespace, APIGroup: "*", APIVersion: "*", Resource: "*", ResourceRequest: true,
	}
	if ref.Name == "" {
		attrs.Verb = "list"
	}
	var unknown string
	kind, err := p.paramKind(ctx, a.GetObject(), policy)
	if err != nil {
		unknown = "unable to get policy " + policy
	} else if kind != nil {
		if gv, err := schema.ParseGroupVersion(kind.APIVersion); err != nil {
			unknown = fmt.Sprintf("unable to parse paramKind %v", kind)
		} else {
			attrs.APIGroup, attrs.APIVersion = gv.Group, gv.Version
			if attrs.Resource = p.Resource(gv.WithKind(kind.Kind)); attrs.Resource == "" {
				attrs.Resource, unknown = "*", fmt.Sprintf("unable to resolve paramKind %v", kind)
			}
		}
	}
	_, mutates := a.GetObject().(*admissionv1.MutatingAdmissionPolicyBinding)
	decision, _, err := p.Authorizer.Authorize(ctx, attrs)
	switch {
	case err != nil && mutates:
	case err != nil:
		err = fmt.Errorf("failed to authorize request: %w", err)
	case decision == authorizer.DecisionAllow:
		return nil
	case unknown != "":
		err = fmt.Errorf(`%s to determine minimum required permissions and user %v does not have "%v" permission for all groups, versions and resources`, unknown, u, attrs.Verb)
	case mutates: // words in upstream's order
		err = fmt.Errorf(`user %v does not have "%v" permission on the object referenced by paramRef`, attrs.Verb, u)
	default:
		err = fmt.Errorf(`user %v does not have "%v" permission on the object referenced by paramRef`, u, attrs.Verb)
	}
	return forbidField(a, "paramRef", err)
}

// paramKind returns the parameter kind of the policy with the name, read from the API, or nil if it has no
// parameters. The policy is a mutating or a validating one, like the binding. It returns an error if the policy
// cannot be read.
func (p PolicyParams) paramKind(ctx context.Context, binding runtime.Object, policy string) (*admissionv1.ParamKind, error) {
	api := p.Kube.AdmissionregistrationV1()
	if _, ok := binding.(*admissionv1.MutatingAdmissionPolicyBinding); ok {
		found, err := api.MutatingAdmissionPolicies().Get(ctx, policy, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return found.Spec.ParamKind, nil
	}
	found, err := api.ValidatingAdmissionPolicies().Get(ctx, policy, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return found.Spec.ParamKind, nil
}

// isSuperuser reports whether the user is in the group system:masters. It returns false for nil.
func isSuperuser(u user.Info) bool {
	if u == nil {
		return false
	}
	return slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup)
}
