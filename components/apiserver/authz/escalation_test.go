package authz

import (
	"strconv"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

func TestEscalation(t *testing.T) {
	a, _ := start(t,
		clusterRole("editor", rule("*", "rbac.authorization.k8s.io", "roles,clusterroles,rolebindings,clusterrolebindings", ""), rule("get,list", "-", "pods", "")),
		clusterRole("root", rule("*", "*", "*", ""), urlRule("*", "*")),
		clusterRole("binder", rule("bind", "rbac.authorization.k8s.io", "clusterroles", "root")),
		clusterRole("escalator", rule("escalate", "rbac.authorization.k8s.io", "clusterroles", "")),
		clusterRole("view-pods", rule("get", "-", "pods", "")),
		clusterRole("weak", rule("create,update", "rbac.authorization.k8s.io", "roles,clusterroles,rolebindings,clusterrolebindings", ""), rule("get,list", "-", "pods", "")),
		clusterBinding("weak", "weak", "u:ann", "u:esc", "u:bind"),
		clusterBinding("root", "root", "u:root"),
		clusterBinding("bind", "binder", "u:bind"),
		clusterBinding("esc", "escalator", "u:esc"),
	)
	e := a.Escalation()
	who := func(name string, groups ...string) user.Info { return &user.DefaultInfo{Name: name, Groups: groups} }
	aggregating := clusterRole("agg")
	aggregating.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{}}}
	labelled := clusterRole("x", clusterAdminRules...)
	labelled.Labels = map[string]string{"rbac.authorization.k8s.io/aggregate-to-admin": "true"}
	owned := clusterRole("x", clusterAdminRules...)
	owned.OwnerReferences, owned.Finalizers = []metav1.OwnerReference{{Name: "o"}}, []string{"a/b"}
	annotated := clusterBinding("b", "root", "u:x")
	annotated.Annotations = map[string]string{"a": "b"}
	tests := []struct {
		name     string
		user     user.Info
		resource string
		obj, old runtime.Object
		err      string
	}{
		{name: "what one has", user: who("ann"), resource: "clusterroles", obj: clusterRole("x", rule("get", "-", "pods", ""))},
		{name: "more than one has", user: who("ann", "g"), resource: "clusterroles", obj: clusterRole("x", rule("get,delete,create", "-", "pods,secrets", "")),
			err: "clusterroles.rbac.authorization.k8s.io \"x\" is forbidden: user \"ann\" (groups=[\"g\"]) is attempting to grant RBAC permissions not currently held:\n" +
				"{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"delete\" \"create\"]}\n{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"delete\" \"create\"]}"},
		{name: "superuser", user: who("m", "system:masters"), resource: "clusterroles", obj: clusterRole("x", clusterAdminRules...)},
		{name: "administrator", user: who("root"), resource: "clusterroles", obj: clusterRole("x", clusterAdminRules...)},
		{name: "may escalate", user: who("esc"), resource: "clusterroles", obj: clusterRole("x", clusterAdminRules...)},
		{name: "may escalate others", user: who("esc"), resource: "roles", obj: role("ns", "x", clusterAdminRules...), err: "not currently held"},
		{name: "rules unchanged", user: who("ann"), resource: "clusterroles", obj: clusterRole("x", clusterAdminRules...), old: clusterRole("x", clusterAdminRules...)},
		{name: "rules changed", user: who("ann"), resource: "clusterroles", obj: clusterRole("x", clusterAdminRules...), old: clusterRole("x"), err: "not currently held"},
		{name: "a label that has them aggregated", user: who("ann"), resource: "clusterroles", obj: labelled, old: clusterRole("x", clusterAdminRules...), err: "not currently held"},
		{name: "owners and finalizers", user: who("ann"), resource: "clusterroles", obj: owned, old: clusterRole("x", clusterAdminRules...)},
		{name: "aggregation taken away", user: who("ann"), resource: "clusterroles", obj: clusterRole("agg"), old: aggregating, err: "must have cluster-admin privileges to use the aggregationRule"},
		{name: "an annotation of a binding", user: who("ann"), resource: "clusterrolebindings", obj: annotated, old: clusterBinding("b", "root", "u:x"), err: "is forbidden"},
		{name: "aggregation", user: who("ann"), resource: "clusterroles", obj: aggregating, err: "must have cluster-admin privileges to use the aggregationRule"},
		{name: "aggregation by an administrator", user: who("root"), resource: "clusterroles", obj: aggregating},
		{name: "binding what one has", user: who("ann"), resource: "rolebindings", obj: binding("ns", "b", "ClusterRole", "view-pods", "u:bob")},
		{name: "binding more", user: who("ann"), resource: "clusterrolebindings", obj: clusterBinding("b", "root", "u:ann"), err: `clusterrolebindings.rbac.authorization.k8s.io "b" is forbidden`},
		{name: "may bind", user: who("bind"), resource: "clusterrolebindings", obj: clusterBinding("b", "root", "u:ann")},
		{name: "may bind that one only", user: who("bind"), resource: "clusterrolebindings", obj: clusterBinding("b", "escalator", "u:ann"), err: "is forbidden"},
		{name: "no such role", user: who("ann"), resource: "clusterrolebindings", obj: clusterBinding("b", "absent", "u:ann"), err: `"absent" not found`},
		{name: "subjects unchanged", user: who("ann"), resource: "clusterrolebindings", obj: clusterBinding("b", "root", "u:x"), old: clusterBinding("b", "root", "u:x")},
		{name: "subjects changed", user: who("ann"), resource: "clusterrolebindings", obj: clusterBinding("b", "root", "u:ann"), old: clusterBinding("b", "root", "u:x"), err: "is forbidden"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			op := admission.Create
			if tt.old != nil {
				op = admission.Update
			}
			m := tt.obj.(metav1.Object)
			at := admission.NewAttributesRecord(tt.obj, tt.old, rbacv1.SchemeGroupVersion.WithKind("X"), m.GetNamespace(), m.GetName(),
				rbacv1.SchemeGroupVersion.WithResource(tt.resource), "", op, nil, false, tt.user)
			err := e.Validate(t.Context(), at, nil)
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("got %v, want %q", err, tt.err)
			}
		})
	}
}

// TestEscalationOfNewRole binds a role that the informers do not have yet.
func TestEscalationOfNewRole(t *testing.T) {
	a, kube := start(t,
		clusterRole("reader", rule("get", "-", "pods", "")),
		clusterBinding("reader", "reader", "u:ann"),
	)
	for i := range 20 {
		fresh := role("ns", "fresh"+strconv.Itoa(i), rule("get", "-", "pods", ""))
		if _, err := kube.RbacV1().Roles("ns").Create(t.Context(), fresh, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		b := binding("ns", "b", "Role", fresh.Name, "u:bob")
		at := admission.NewAttributesRecord(b, nil, rbacv1.SchemeGroupVersion.WithKind("RoleBinding"), "ns", "b",
			rbacv1.SchemeGroupVersion.WithResource("rolebindings"), "", admission.Create, nil, false, &user.DefaultInfo{Name: "ann"})
		if err := a.Escalation().Validate(t.Context(), at, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRBACNamesWithAnyByte checks that a user name cannot be confused with another user and group.
func TestRBACNamesWithAnyByte(t *testing.T) {
	a, _ := start(t, clusterRole("all", clusterAdminRules...), clusterBinding("all", "all", "g:admins"))
	may := func(u user.Info) bool {
		d, _, _ := a.Authorize(t.Context(), attrs(u, "get", "ns", "", "secrets", "s"))
		return d == authorizer.DecisionAllow
	}
	if !may(&user.DefaultInfo{Name: "ann", Groups: []string{"admins"}}) {
		t.Fatal("the group is not believed")
	}
	for _, u := range []user.Info{&user.DefaultInfo{Name: "ann\x00admins"}, &user.DefaultInfo{Name: "ann", Groups: []string{"\x06admins"}}} {
		if may(u) {
			t.Errorf("%q %q is taken for another", u.GetName(), u.GetGroups())
		}
	}
}
