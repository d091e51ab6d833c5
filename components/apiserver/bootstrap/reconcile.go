package bootstrap

import (
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/auth/rbac/reconciliation"

	"hyperkube/internal/api"
)

// RBAC objects are reconciled with upstream's library: missing rules and subjects are added, nothing is removed except an
// aggregation rule that the defaults do not have, and objects with the annotation rbac.authorization.kubernetes.io/autoupdate:
// "false" are not changed. The library computes the result, and the store writes it.

// reconcileClusterRole returns the existing ClusterRole with the missing rules, aggregation selectors, labels and
// annotations of wanted, and without an aggregation rule if wanted has none. It returns nil if nothing changes or the
// role has opted out by its annotation.
func reconcileClusterRole(existing, wanted api.Object) api.Object {
	return reconcileRules(
		reconciliation.ClusterRoleRuleOwner{ClusterRole: existing.(*rbacv1.ClusterRole)},
		reconciliation.ClusterRoleRuleOwner{ClusterRole: wanted.(*rbacv1.ClusterRole)})
}

// reconcileRole returns the existing Role with the missing rules, labels and annotations of wanted, or nil if nothing changes or the role has
// opted out by its annotation.
func reconcileRole(existing, wanted api.Object) api.Object {
	return reconcileRules(
		reconciliation.RoleRuleOwner{Role: existing.(*rbacv1.Role)},
		reconciliation.RoleRuleOwner{Role: wanted.(*rbacv1.Role)})
}

// reconcileRules returns the existing role with what it lacks of wanted. It returns nil if nothing
// changes or the role has opted out by its annotation.
func reconcileRules(existing, wanted reconciliation.RuleOwner) api.Object {
	opts := reconciliation.ReconcileRoleOptions{Role: wanted, Client: oneRole{existing}}
	result, err := opts.Run()
	if err != nil || result.Protected || result.Operation == reconciliation.ReconcileNone {
		// An error is impossible because the fake client does not fail.
		return nil
	}
	return result.Role.GetObject().(api.Object)
}

// reconcileClusterRoleBinding returns the existing ClusterRoleBinding with the missing subjects of wanted. It returns
// nil if nothing changes or the binding has opted out by its annotation.
func reconcileClusterRoleBinding(existing, wanted api.Object) api.Object {
	return reconcileSubjects(
		reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: existing.(*rbacv1.ClusterRoleBinding)},
		reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: wanted.(*rbacv1.ClusterRoleBinding)})
}

// reconcileRoleBinding returns the existing RoleBinding with the missing subjects of wanted. It returns nil if
// nothing changes or the binding has opted out by its annotation.
func reconcileRoleBinding(existing, wanted api.Object) api.Object {
	return reconcileSubjects(
		reconciliation.RoleBindingAdapter{RoleBinding: existing.(*rbacv1.RoleBinding)},
		reconciliation.RoleBindingAdapter{RoleBinding: wanted.(*rbacv1.RoleBinding)})
}

// reconcileSubjects returns the existing binding with the missing subjects of wanted. It returns
// nil if nothing changes or the binding has opted out by its annotation.
func reconcileSubjects(existing, wanted reconciliation.RoleBinding) api.Object {
	opts := reconciliation.ReconcileRoleBindingOptions{RoleBinding: wanted, Client: oneBinding{existing}}
	result, err := opts.Run()
	if err != nil || result.Protected || result.Operation == reconciliation.ReconcileNone {
		return nil
	}
	return result.RoleBinding.GetObject().(api.Object)
}

// oneRole is the client that upstream's library gets: it returns the existing role, whichever is
// requested, and cannot write.
type oneRole struct{ reconciliation.RuleOwner }

// Get returns the existing role, whatever name is requested.
func (r oneRole) Get(_, _ string) (reconciliation.RuleOwner, error) { return r.RuleOwner, nil }

// Create returns an error. The reconciliation library does not call it in a dry run.
func (oneRole) Create(reconciliation.RuleOwner) (reconciliation.RuleOwner, error) {
	return nil, errReadOnly()
}

// Update returns an error. The reconciliation library does not call it in a dry run.
func (oneRole) Update(reconciliation.RuleOwner) (reconciliation.RuleOwner, error) {
	return nil, errReadOnly()
}

// oneBinding is the client that upstream's library gets: it returns the existing binding, whichever
// is requested, and cannot write.
type oneBinding struct{ reconciliation.RoleBinding }

// Get returns the existing binding, whatever name is requested.
func (b oneBinding) Get(_, _ string) (reconciliation.RoleBinding, error) { return b.RoleBinding, nil }

// Create returns an error. The reconciliation library does not call it in a dry run.
func (oneBinding) Create(reconciliation.RoleBinding) (reconciliation.RoleBinding, error) {
	return nil, errReadOnly()
}

// Update returns an error. The reconciliation library does not call it in a dry run.
func (oneBinding) Update(reconciliation.RoleBinding) (reconciliation.RoleBinding, error) {
	return nil, errReadOnly()
}

// Delete returns an error. The reconciliation library does not call it in a dry run.
func (oneBinding) Delete(_, _ string, _ types.UID) error { return errReadOnly() }

// errReadOnly returns the error of writes with oneRole and oneBinding.
func errReadOnly() error { return apierrors.NewBadRequest("read only") }

// reconcileServiceCIDR returns the existing ServiceCIDR with the range of the second IP family if
// the cluster has become dual-stack. Otherwise it returns nil. Existing ranges never change.
func reconcileServiceCIDR(existing, wanted api.Object) api.Object {
	is, want := existing.(*networkingv1.ServiceCIDR), wanted.(*networkingv1.ServiceCIDR)
	if len(is.Spec.CIDRs) != 1 || len(want.Spec.CIDRs) != 2 || is.Spec.CIDRs[0] != want.Spec.CIDRs[0] {
		return nil
	}
	out := is.DeepCopy()
	out.Spec.CIDRs = slices.Clone(want.Spec.CIDRs)
	return out
}
