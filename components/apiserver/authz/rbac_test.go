package authz

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"hyperkube/internal/testing/testwait"
)

// start returns an authorizer with synced informers that contain objs.
func start(t testing.TB, objs ...runtime.Object) (*Authorizer, kubernetes.Interface) {
	t.Helper()
	kube := fake.NewClientset(objs...)
	inf := informers.NewSharedInformerFactory(kube, 0)
	a, err := New(Config{Informers: inf, Kube: kube})
	if err != nil {
		t.Fatal(err)
	}
	a.node.pendingPodTimeout = 0
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); inf.Shutdown() })
	inf.StartWithContext(ctx)
	if err := a.rbac.gate.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	if err := a.node.gate.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	return a, kube
}

func rule(verbs, groups, resources, names string) rbacv1.PolicyRule {
	split := func(s string) []string {
		if s == "-" {
			return []string{""}
		}
		if s == "" {
			return nil
		}
		return strings.Split(s, ",")
	}
	return rbacv1.PolicyRule{Verbs: split(verbs), APIGroups: split(groups), Resources: split(resources), ResourceNames: split(names)}
}

func urlRule(verbs string, urls ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: strings.Split(verbs, ","), NonResourceURLs: urls}
}

func clusterRole(name string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
}

func role(ns, name string, rules ...rbacv1.PolicyRule) *rbacv1.Role {
	return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Rules: rules}
}

func subject(s string) rbacv1.Subject {
	kind, name, _ := strings.Cut(s, ":")
	switch kind {
	case "sa":
		ns, n, _ := strings.Cut(name, "/")
		return rbacv1.Subject{Kind: "ServiceAccount", Namespace: ns, Name: n}
	case "g":
		return rbacv1.Subject{Kind: "Group", APIGroup: rbacv1.GroupName, Name: name}
	}
	return rbacv1.Subject{Kind: "User", APIGroup: rbacv1.GroupName, Name: name}
}

func clusterBinding(name, roleName string, subjects ...string) *rbacv1.ClusterRoleBinding {
	b := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: roleName}}
	for _, s := range subjects {
		b.Subjects = append(b.Subjects, subject(s))
	}
	return b
}

func binding(ns, name, kind, roleName string, subjects ...string) *rbacv1.RoleBinding {
	b := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: roleName}}
	for _, s := range subjects {
		b.Subjects = append(b.Subjects, subject(s))
	}
	return b
}

func attrs(u user.Info, verb, ns, group, resource, name string) authorizer.AttributesRecord {
	r, sub, _ := strings.Cut(resource, "/")
	return authorizer.AttributesRecord{User: u, Verb: verb, Namespace: ns, APIGroup: group, APIVersion: "v1", Resource: r, Subresource: sub, Name: name, ResourceRequest: true}
}

func TestRBAC(t *testing.T) {
	a, _ := start(t,
		clusterRole("pod-reader", rule("get,list,watch", "-", "pods,pods/log", "")),
		clusterRole("scaler", rule("update", "apps", "*/scale", "")),
		clusterRole("one", rule("get", "-", "configmaps", "only")),
		clusterRole("health", urlRule("get", "/livez", "/readyz/*")),
		clusterRole("god", rule("*", "*", "*", ""), urlRule("*", "*")),
		role("ns", "secrets", rule("get", "-", "secrets", "")),
		clusterBinding("readers", "pod-reader", "u:ann", "g:devs"),
		clusterBinding("scalers", "scaler", "u:ann"),
		clusterBinding("one", "one", "u:ann"),
		clusterBinding("health", "health", "g:system:unauthenticated"),
		clusterBinding("gods", "god", "u:zeus"),
		clusterBinding("broken", "absent", "u:bob"),
		binding("ns", "secrets", "Role", "secrets", "sa:ns/robot", "sa:/local"),
		binding("ns", "pods", "ClusterRole", "pod-reader", "u:bob"),
	)
	ann := &user.DefaultInfo{Name: "ann"}
	dev := &user.DefaultInfo{Name: "dan", Groups: []string{"x", "devs"}}
	bob := &user.DefaultInfo{Name: "bob"}
	zeus := &user.DefaultInfo{Name: "zeus"}
	superuser := &user.DefaultInfo{Name: "m", Groups: []string{"system:masters"}}
	robot := &user.DefaultInfo{Name: "system:serviceaccount:ns:robot"}
	local := &user.DefaultInfo{Name: "system:serviceaccount:ns:local"}
	anonymousUser := &user.DefaultInfo{Name: "system:anonymous", Groups: []string{"system:unauthenticated"}}
	url := func(u user.Info, verb, path string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{User: u, Verb: verb, Path: path}
	}
	tests := []struct {
		attrs  authorizer.AttributesRecord
		allow  bool
		reason string
	}{
		{attrs(ann, "get", "ns", "", "pods", "p"), true, `RBAC: allowed by ClusterRoleBinding "readers" of ClusterRole "pod-reader" to User "ann"`},
		{attrs(dev, "list", "", "", "pods", ""), true, `RBAC: allowed by ClusterRoleBinding "readers" of ClusterRole "pod-reader" to Group "devs"`},
		{attrs(ann, "get", "ns", "", "pods/log", "p"), true, ""},
		{attrs(ann, "get", "ns", "", "pods/exec", "p"), false, ""},
		{attrs(ann, "get", "ns", "apps", "pods", "p"), false, ""},
		{attrs(ann, "delete", "ns", "", "pods", "p"), false, ""},
		{attrs(ann, "update", "ns", "apps", "deployments/scale", "d"), true, ""},
		{attrs(ann, "update", "ns", "apps", "deployments", "d"), false, ""},
		{attrs(ann, "get", "ns", "", "configmaps", "only"), true, ""},
		{attrs(ann, "get", "ns", "", "configmaps", "other"), false, ""},
		{attrs(ann, "list", "ns", "", "configmaps", ""), false, ""},
		{attrs(robot, "get", "ns", "", "secrets", "s"), true, `RBAC: allowed by RoleBinding "secrets/ns" of Role "secrets" to ServiceAccount "robot/ns"`},
		{attrs(local, "get", "ns", "", "secrets", "s"), true, `RBAC: allowed by RoleBinding "secrets/ns" of Role "secrets" to ServiceAccount "local/ns"`},
		{attrs(robot, "get", "other", "", "secrets", "s"), false, ""},
		{attrs(robot, "get", "", "", "secrets", "s"), false, ""},
		{attrs(bob, "get", "ns", "", "pods", "s"), true, ""},
		{attrs(bob, "get", "other", "", "pods", "s"), false, `rbac: RBAC: clusterrole.rbac.authorization.k8s.io "absent" not found`},
		{attrs(zeus, "approve", "", "x.example.org", "things/sub", "s"), true, ""},
		{url(zeus, "post", "/anything"), true, ""},
		{url(anonymousUser, "get", "/livez"), true, ""},
		{url(anonymousUser, "get", "/livez/etcd"), false, ""},
		{url(anonymousUser, "get", "/readyz/etcd"), true, ""},
		{url(anonymousUser, "post", "/livez"), false, ""},
		{attrs(superuser, "anything", "", "x", "y", "z"), true, ""},
	}
	for _, tt := range tests {
		d, reason, err := a.Authorize(t.Context(), tt.attrs)
		if err != nil || (d == authorizer.DecisionAllow) != tt.allow || tt.reason != "" && reason != tt.reason {
			t.Errorf("%s %s %s/%s %s%s: %v %q %v", tt.attrs.User.GetName(), tt.attrs.Verb, tt.attrs.Namespace, tt.attrs.Resource, tt.attrs.Name, tt.attrs.Path, d, reason, err)
		}
	}
}

func TestRBACFollowsChanges(t *testing.T) {
	a, kube := start(t, clusterRole("r", rule("get", "-", "pods", "")))
	ann := &user.DefaultInfo{Name: "ann"}
	req := attrs(ann, "get", "ns", "", "pods", "p")
	until := func(want authorizer.Decision) {
		t.Helper()
		testwait.Until(t, fmt.Sprint("decision ", want), func() bool {
			d, _, _ := a.Authorize(t.Context(), req)
			return d == want
		})
	}
	until(authorizer.DecisionNoOpinion)
	if _, err := kube.RbacV1().ClusterRoleBindings().Create(t.Context(), clusterBinding("b", "r", "u:ann"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(authorizer.DecisionAllow)
	if _, err := kube.RbacV1().ClusterRoles().Update(t.Context(), clusterRole("r", rule("list", "-", "pods", "")), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(authorizer.DecisionNoOpinion)
	req.Verb = "list"
	until(authorizer.DecisionAllow)
	if err := kube.RbacV1().ClusterRoleBindings().Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(authorizer.DecisionNoOpinion)
}

// naive authorizes by iterating over all bindings and roles.
func naive(roles map[string][]rbacv1.PolicyRule, crbs []*rbacv1.ClusterRoleBinding, rbs []*rbacv1.RoleBinding, a authorizer.AttributesRecord) bool {
	applies := func(subjects []rbacv1.Subject, ns string) bool {
		for _, s := range subjects {
			switch s.Kind {
			case "User":
				if s.Name == a.User.GetName() {
					return true
				}
			case "Group":
				if slices.Contains(a.User.GetGroups(), s.Name) {
					return true
				}
			case "ServiceAccount":
				if s.Namespace != "" {
					ns = s.Namespace
				}
				if a.User.GetName() == "system:serviceaccount:"+ns+":"+s.Name {
					return true
				}
			}
		}
		return false
	}
	has := func(list []string, s string) bool { return slices.Contains(list, s) || slices.Contains(list, "*") }
	allows := func(rules []rbacv1.PolicyRule) bool {
		for _, r := range rules {
			if !has(r.Verbs, a.Verb) {
				continue
			}
			if !a.ResourceRequest {
				for _, u := range r.NonResourceURLs {
					if u == "*" || u == a.Path || strings.HasSuffix(u, "*") && strings.HasPrefix(a.Path, strings.TrimSuffix(u, "*")) {
						return true
					}
				}
				continue
			}
			want := a.Resource
			if a.Subresource != "" {
				want += "/" + a.Subresource
			}
			resource := has(r.Resources, want) || a.Subresource != "" && slices.Contains(r.Resources, "*/"+a.Subresource)
			if has(r.APIGroups, a.APIGroup) && resource && (len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, a.Name)) {
				return true
			}
		}
		return false
	}
	for _, b := range crbs {
		if applies(b.Subjects, "") && allows(roles["/"+b.RoleRef.Name]) {
			return true
		}
	}
	for _, b := range rbs {
		ns := b.Namespace
		if b.RoleRef.Kind == "ClusterRole" {
			ns = ""
		}
		if a.Namespace != "" && b.Namespace == a.Namespace && applies(b.Subjects, b.Namespace) && allows(roles[ns+"/"+b.RoleRef.Name]) {
			return true
		}
	}
	return false
}

func TestRBACAgainstNaive(t *testing.T) {
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 1))
		pick := func(list ...string) string { return list[rng.IntN(len(list))] }
		some := func(list ...string) []string {
			var out []string
			for range 1 + rng.IntN(2) {
				out = append(out, pick(list...))
			}
			return out
		}
		verbs := []string{"get", "list", "update", "delete"}
		groups := []string{"", "apps", "x.io"}
		resources := []string{"pods", "secrets", "deployments", "pods/log", "deployments/scale", "pods/scale"}
		names := []string{"a", "b"}
		paths := []string{"/healthz", "/api", "/api/v1", "/x"}
		namespaces := []string{"n1", "n2"}
		subjects := []string{"u:u1", "u:u2", "g:g1", "g:g2", "sa:n1/s", "sa:/s", "sa:n2/s"}
		makeRules := func() []rbacv1.PolicyRule {
			var rules []rbacv1.PolicyRule
			for range 1 + rng.IntN(3) {
				r := rbacv1.PolicyRule{Verbs: some(append(verbs, "*")...)}
				if rng.IntN(4) == 0 {
					r.NonResourceURLs = some(append(paths, "*", "/api*", "/api/*")...)
				} else {
					r.APIGroups = some(append(groups, "*")...)
					r.Resources = some(append(resources, "*", "*/scale")...)
					if rng.IntN(3) == 0 {
						r.ResourceNames = some(names...)
					}
				}
				rules = append(rules, r)
			}
			return rules
		}
		var objs []runtime.Object
		roles := map[string][]rbacv1.PolicyRule{}
		var crbs []*rbacv1.ClusterRoleBinding
		var rbs []*rbacv1.RoleBinding
		for i := range 8 {
			name := fmt.Sprintf("r%d", i)
			cr := clusterRole(name, makeRules()...)
			roles["/"+name] = cr.Rules
			objs = append(objs, cr)
			for _, ns := range namespaces {
				r := role(ns, name, makeRules()...)
				roles[ns+"/"+name] = r.Rules
				objs = append(objs, r)
			}
		}
		for i := range 4 {
			b := clusterBinding(fmt.Sprintf("b%d", i), fmt.Sprintf("r%d", rng.IntN(10)), some(subjects...)...)
			crbs, objs = append(crbs, b), append(objs, b)
		}
		for i := range 6 {
			b := binding(pick(namespaces...), fmt.Sprintf("b%d", i), pick("Role", "ClusterRole"), fmt.Sprintf("r%d", rng.IntN(10)), some(subjects...)...)
			rbs, objs = append(rbs, b), append(objs, b)
		}
		a, _ := start(t, objs...)
		allowed := 0
		for range 3000 {
			u := &user.DefaultInfo{Name: pick("u1", "u2", "u3", "system:serviceaccount:n1:s", "system:serviceaccount:n2:s")}
			if rng.IntN(2) == 0 {
				u.Groups = some("g1", "g2", "g3")
			}
			req := attrs(u, pick(verbs...), pick("", "n1", "n2"), pick(groups...), pick(resources...), pick("", "a", "b"))
			if rng.IntN(5) == 0 {
				req = authorizer.AttributesRecord{User: u, Verb: pick(verbs...), Path: pick(paths...)}
			}
			want := naive(roles, crbs, rbs, req)
			d, _, err := a.rbac.Authorize(t.Context(), req)
			if err != nil || (d == authorizer.DecisionAllow) != want {
				t.Fatalf("seed %d: %+v by %+v: %v %v, want %v", seed, req, u, d, err, want)
			}
			if want {
				allowed++
			}
		}
		if allowed == 0 {
			t.Errorf("seed %d allows nothing", seed)
		}
	}
}

func TestRulesFor(t *testing.T) {
	a, _ := start(t,
		clusterRole("c", rule("get", "-", "pods", ""), urlRule("get", "/livez")),
		role("ns", "r", rule("list", "apps", "deployments", "d")),
		clusterBinding("c", "c", "u:ann"),
		binding("ns", "r", "Role", "r", "u:ann"),
	)
	res, urls, incomplete, err := a.RulesFor(t.Context(), &user.DefaultInfo{Name: "ann"}, "ns")
	if err != nil || incomplete || len(res) != 2 || len(urls) != 1 || res[1].GetResourceNames()[0] != "d" {
		t.Errorf("%+v %+v %v %v", res, urls, incomplete, err)
	}
	if res, _, _, _ = a.RulesFor(t.Context(), &user.DefaultInfo{Name: "ann"}, "other"); len(res) != 1 {
		t.Errorf("%+v", res)
	}
}

func TestModes(t *testing.T) {
	kube := fake.NewClientset()
	for _, modes := range [][]string{{}, {"RBAC", "RBAC"}, {"Magic"}, {"Webhook"}} {
		if _, err := New(Config{Modes: modes, Kube: kube, Informers: informers.NewSharedInformerFactory(kube, 0)}); err == nil {
			t.Errorf("%v accepted", modes)
		}
	}
	ann := attrs(&user.DefaultInfo{Name: "ann"}, "get", "", "", "pods", "")
	for mode, want := range map[string]authorizer.Decision{"AlwaysAllow": authorizer.DecisionAllow, "AlwaysDeny": authorizer.DecisionNoOpinion} {
		a, err := New(Config{Modes: []string{mode}})
		if err != nil {
			t.Fatal(err)
		}
		if d, _, _ := a.Authorize(t.Context(), ann); d != want {
			t.Errorf("%s: %v", mode, d)
		}
	}
}

func BenchmarkRBACAllow(b *testing.B) {
	var objs []runtime.Object
	for i := range 300 {
		name := fmt.Sprintf("r%d", i)
		objs = append(objs, clusterRole(name, rule("get,list", "-", name+"s", "")), clusterBinding(name, name, "u:"+name, "u:ann"))
	}
	a, _ := start(b, objs...)
	req := attrs(&user.DefaultInfo{Name: "ann", Groups: []string{"system:authenticated"}}, "get", "default", "", "r299s", "p")
	b.ReportAllocs()
	for b.Loop() {
		if d, _, _ := a.Authorize(b.Context(), req); d != authorizer.DecisionAllow {
			b.Fatal(d)
		}
	}
}
