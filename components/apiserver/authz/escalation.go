package authz

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/auth/rbac/validation"
)

// Escalation is an admission plugin that rejects writes of roles and bindings through which a user
// would grant more permissions than the user has.
//
// https://kubernetes.io/docs/reference/access-authn-authz/rbac/#privilege-escalation-prevention-and-bootstrapping
type Escalation struct {
	rbac       *RBAC
	kube       kubernetes.Interface
	authorizer authorizer.Authorizer
}

var _ admission.ValidationInterface = (*Escalation)(nil)

// Escalation returns the admission plugin that prevents privilege escalation through roles and bindings, an
// *Escalation. It returns nil if the mode RBAC is not enabled.
func (a *Authorizer) Escalation() admission.ValidationInterface {
	if a.rbac == nil {
		return nil
	}
	return &Escalation{rbac: a.rbac, kube: a.cfg.Kube, authorizer: a}
}

// Handles reports whether op is a create or an update.
func (*Escalation) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

// Validate returns a Forbidden error if a role contains rules, or a binding refers to a role with rules, that the
// user does not have and has no permission to escalate or bind. It does not check superusers, and updates that change
// only what garbage collection writes.
func (e *Escalation) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().Group != rbacv1.GroupName || a.GetSubresource() != "" || isSuperuser(a.GetUserInfo()) {
		return nil
	}
	if a.GetOperation() == admission.Update && OnlyGarbageCollectionFields(a.GetObject(), a.GetOldObject()) {
		return nil
	}
	switch obj := a.GetObject().(type) {
	case *rbacv1.Role:
		return e.role(ctx, a, obj.Name, obj.Rules, false)
	case *rbacv1.ClusterRole:
		old, _ := a.GetOldObject().(*rbacv1.ClusterRole)
		return e.role(ctx, a, obj.Name, obj.Rules, aggregates(obj) || aggregates(old))
	case *rbacv1.RoleBinding:
		return e.binding(ctx, a, obj.Name, a.GetNamespace(), &obj.RoleRef)
	case *rbacv1.ClusterRoleBinding:
		return e.binding(ctx, a, obj.Name, "", &obj.RoleRef)
	}
	return nil
}

// OnlyGarbageCollectionFields reports whether an update from old to obj changes only owner
// references, finalizers and managed fields, which garbage collection and storage migration write.
// All other changes need the permissions that the object grants: a label alone can aggregate a
// role's rules into another role.
func OnlyGarbageCollectionFields(obj, old runtime.Object) bool {
	if obj == nil || old == nil {
		return false
	}
	changed := obj.DeepCopyObject()
	to, err := meta.Accessor(changed)
	if err != nil {
		return false
	}
	from, err := meta.Accessor(old)
	if err != nil {
		return false
	}
	to.SetOwnerReferences(from.GetOwnerReferences())
	to.SetFinalizers(from.GetFinalizers())
	to.SetManagedFields(from.GetManagedFields())
	// An update may omit the resource version, or contain that of the object it is based on.
	to.SetResourceVersion(from.GetResourceVersion())
	return equality.Semantic.DeepEqual(changed, old)
}

// aggregates reports whether a ClusterRole has an aggregation rule. role may be nil.
func aggregates(role *rbacv1.ClusterRole) bool {
	return role != nil && role.AggregationRule != nil && len(role.AggregationRule.ClusterRoleSelectors) > 0
}

// clusterAdminRules are rules that cover every request. Only a cluster administrator has them.
var clusterAdminRules = []rbacv1.PolicyRule{
	{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}},
	{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}},
}

// role returns a Forbidden error if a role with the rules grants permissions that the user does not have, unless the
// user has the verb "escalate" on the role. aggregates is set if the role has or had an aggregation rule; then the
// user must also be a cluster administrator.
func (e *Escalation) role(ctx context.Context, a admission.Attributes, name string, rules []rbacv1.PolicyRule, aggregates bool) error {
	// Use the name in the request: a new role has no name in the path.
	escalates := a.GetName()
	if info, ok := request.RequestInfoFrom(ctx); ok {
		escalates = info.Name
	}
	if e.allowed(ctx, a, "escalate", a.GetResource().Resource, escalates) {
		return nil
	}
	resource := a.GetResource().GroupResource()
	if err := e.checkCovered(ctx, a.GetUserInfo(), a.GetNamespace(), rules); err != nil {
		return apierrors.NewForbidden(resource, name, err)
	}
	// A role with an aggregation rule can gain any permission. This also applies to an update that
	// removes the aggregation rule.
	if aggregates {
		if err := e.checkCovered(ctx, a.GetUserInfo(), a.GetNamespace(), clusterAdminRules); err != nil {
			return apierrors.NewForbidden(resource, name, errors.New("must have cluster-admin privileges to use the aggregationRule"))
		}
	}
	return nil
}

// binding returns a Forbidden error if the role ref grants permissions that the user does not have,
// unless the user has the verb "bind" on the role. namespace is empty for a ClusterRoleBinding.
func (e *Escalation) binding(ctx context.Context, a admission.Attributes, name, namespace string, ref *rbacv1.RoleRef) error {
	resource := "roles"
	if ref.Kind == "ClusterRole" {
		resource = "clusterroles"
	}
	if e.allowed(ctx, a, "bind", resource, ref.Name) {
		return nil
	}
	rules, err := e.rules(ctx, ref, namespace)
	if err != nil {
		return err
	}
	if err := e.checkCovered(ctx, a.GetUserInfo(), namespace, rules); err != nil {
		return apierrors.NewForbidden(a.GetResource().GroupResource(), name, err)
	}
	return nil
}

// rules returns the rules of the role ref, read from the API: the role is often created or changed right before the
// binding, so informers may not have it yet. It returns an error if the role does not exist or the reference is
// invalid.
func (e *Escalation) rules(ctx context.Context, ref *rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, error) {
	if ref.Kind == "ClusterRole" {
		role, err := e.kube.RbacV1().ClusterRoles().Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return role.Rules, nil
	}
	if ref.Kind == "Role" && namespace != "" {
		role, err := e.kube.RbacV1().Roles(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return role.Rules, nil
	}
	return e.rbac.RoleRules(ref, namespace) // returns the error for an invalid reference
}

// allowed reports whether the user has the verb ("escalate" or "bind") on the role, which makes the
// check unnecessary.
func (e *Escalation) allowed(ctx context.Context, a admission.Attributes, verb, resource, name string) bool {
	decision, _, _ := e.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: verb, Namespace: a.GetNamespace(),
		APIGroup: rbacv1.GroupName, APIVersion: "*", Resource: resource, Name: name, ResourceRequest: true,
	})
	return decision == authorizer.DecisionAllow
}

// checkCovered returns nil if u has all the rules in the namespace (cluster-wide if it is empty),
// and otherwise an error that lists the missing ones.
func (e *Escalation) checkCovered(ctx context.Context, u user.Info, namespace string, rules []rbacv1.PolicyRule) error {
	own, resolveErr := e.rbac.PolicyRules(ctx, u, namespace)
	ok, missing := validation.Covers(own, rules)
	if ok {
		return nil
	}
	var lines []string
	for _, r := range compact(missing) {
		lines = append(lines, describe(&r))
	}
	slices.Sort(lines)
	msg := fmt.Sprintf("user %q (groups=%q) is attempting to grant RBAC permissions not currently held:\n%s",
		u.GetName(), u.GetGroups(), strings.Join(slices.Compact(lines), "\n"))
	if resolveErr != nil {
		msg += fmt.Sprintf("; resolution errors: %v", []error{resolveErr})
	}
	return errors.New(msg)
}

// compact merges rules that differ only in their verbs, for shorter error messages.
func compact(rules []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	at := map[string]int{}
	var out []rbacv1.PolicyRule
	for _, r := range rules {
		if len(r.NonResourceURLs) > 0 || len(r.APIGroups) != 1 || len(r.Resources) != 1 || len(r.ResourceNames) > 1 {
			out = append(out, r)
			continue
		}
		key := r.APIGroups[0] + "\x00" + r.Resources[0] + "\x00" + strings.Join(r.ResourceNames, "\x00")
		if i, ok := at[key]; ok {
			out[i].Verbs = append(slices.Clone(out[i].Verbs), r.Verbs...)
			continue
		}
		at[key] = len(out)
		out = append(out, r)
	}
	return out
}
