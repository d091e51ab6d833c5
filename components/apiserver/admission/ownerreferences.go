package admission

import (
	"context"
	"errors"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/ptr"
)

// ownerReferences is the plugin OwnerReferencesPermissionEnforcement. It allows changes of an
// object's owners only to users that may delete the object, because the garbage collector could
// then delete it. It allows setting blockOwnerDeletion only to users that may set finalizers on the
// owner.
//
// https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#ownerreferencespermissionenforcement
type ownerReferences struct {
	operations
	authorizer authorizer.Authorizer
	kinds      func(schema.GroupVersionKind) (resource string, namespaced bool)
}

// newOwnerReferences creates the plugin OwnerReferencesPermissionEnforcement. It returns an error if cfg has no
// authorizer or no kinds.
func newOwnerReferences(cfg *Config) (admission.Interface, error) {
	if cfg.Authorizer == nil || cfg.Kinds == nil {
		return nil, errors.New("it needs an authorizer and the kinds that are served")
	}
	return &ownerReferences{onCreateUpdate, cfg.Authorizer, cfg.Kinds}, nil
}

// Validate rejects a request that changes owner references if the user lacks the permission to delete the object, or
// to set finalizers on an owner for which the request sets blockOwnerDeletion. Updates of a pod's status are not
// checked, because they cannot change owners.
func (p *ownerReferences) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	r := a.GetResource()
	// A status update of a pod cannot change its owners.
	if r.Group == "" && r.Resource == "pods" && a.GetSubresource() == "status" {
		return nil
	}
	owners, before := ownersOf(a.GetObject()), ownersOf(a.GetOldObject())
	if len(owners) == len(before) && (len(owners) == 0 || apiequality.Semantic.DeepEqual(owners, before)) {
		return nil
	}
	decision, reason, err := p.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: "delete", Namespace: a.GetNamespace(), APIGroup: r.Group, APIVersion: r.Version,
		Resource: r.Resource, Subresource: a.GetSubresource(), Name: a.GetName(), ResourceRequest: true,
	})
	if decision != authorizer.DecisionAllow {
		return forbid(a, "cannot set an ownerRef on a resource you can't delete: %v, %v", reason, err)
	}
	for _, ref := range newlyBlocking(owners, before) {
		gv, err := schema.ParseGroupVersion(ref.APIVersion)
		resource, namespaced := "", false
		if err == nil {
			if resource, namespaced = p.kinds(gv.WithKind(ref.Kind)); resource == "" {
				err = errors.New("no matches for kind")
			}
		}
		if err != nil {
			return forbid(a, "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion %s Kind %s: %v", ref.APIVersion, ref.Kind, err)
		}
		ask := authorizer.AttributesRecord{
			User: a.GetUserInfo(), Verb: "update", APIGroup: gv.Group, APIVersion: gv.Version,
			Resource: resource, Subresource: "finalizers", Name: ref.Name, ResourceRequest: true,
		}
		if namespaced {
			ask.Namespace = a.GetNamespace() // owners are in the same namespace
		}
		decision, reason, err := p.authorizer.Authorize(ctx, ask)
		if decision != authorizer.DecisionAllow {
			return forbid(a, "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: %v, %v", reason, err)
		}
	}
	return nil
}

// ownersOf returns the owner references of obj, or nil if it has no metadata.
func ownersOf(obj runtime.Object) []metav1.OwnerReference {
	if m, ok := obj.(metav1.Object); ok {
		return m.GetOwnerReferences()
	}
	return nil
}

// newlyBlocking returns the references in owners that set blockOwnerDeletion although no reference in before with the
// same UID did.
func newlyBlocking(owners, before []metav1.OwnerReference) (out []metav1.OwnerReference) {
	blocks := func(r metav1.OwnerReference) bool { return ptr.Deref(r.BlockOwnerDeletion, false) }
	did := map[types.UID]bool{}
	for _, r := range before {
		did[r.UID] = blocks(r)
	}
	for _, r := range owners {
		if blocks(r) && !did[r.UID] {
			out = append(out, r)
		}
	}
	return out
}
