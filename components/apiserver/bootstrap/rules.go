package bootstrap

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The policy is written in lines such as
//
//     rule("get list watch", "core apps", "pods deployments")
//
// with "core" for the legacy group "".

// Common combinations of verbs, separated by spaces, for the function rule.
const (
	read       = "get list watch"
	readUpdate = "get list patch update watch"
	write      = "create delete deletecollection patch update"
	readWrite  = read + " " + write
)

// rule returns an RBAC rule that grants verbs on resources of API groups. The first three arguments are lists
// separated by spaces; the group "core" stands for the legacy group. If names are given, the rule is limited to the
// objects with these names.
func rule(verbs, groups, resources string, names ...string) rbacv1.PolicyRule {
	gs := strings.Fields(groups)
	for i, g := range gs {
		if g == "core" {
			gs[i] = ""
		}
	}
	slices.Sort(gs)
	return rbacv1.PolicyRule{
		Verbs:         sorted(verbs),
		APIGroups:     gs,
		Resources:     sorted(resources),
		ResourceNames: names,
	}
}

// paths returns a rule that grants get on the given paths, separated by spaces, which are not
// resources.
func paths(list string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: sorted(list)}
}

// recordEvents returns the permission to write events, which most components need.
func recordEvents() rbacv1.PolicyRule {
	return rule("create patch update", "core events.k8s.io", "events")
}

// sorted returns the words of a list that is separated by spaces, in alphabetical order, as in
// upstream's policy.
func sorted(list string) []string {
	words := strings.Fields(list)
	slices.Sort(words)
	return words
}

// meta returns the metadata of an initial RBAC object. Its annotation rbac.authorization.kubernetes.io/autoupdate
// specifies that the object is reconciled at each start. A user can set it to "false" to opt out.
func meta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace:   namespace,
		Name:        name,
		Labels:      map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"},
		Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"},
	}
}

// clusterRole returns a ClusterRole with the given rules.
func clusterRole(name string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{ObjectMeta: meta("", name), Rules: rules}
}

// aggregateTo returns the name of the label with which a ClusterRole's rules are aggregated into
// another role: "admin", "edit" or "view".
func aggregateTo(role string) string { return "rbac.authorization.k8s.io/aggregate-to-" + role }

// aggregated returns a ClusterRole without own rules. The aggregation controller collects the rules
// of all roles that have the label for name. The role is itself aggregated into the role to, unless
// that is "".
func aggregated(name, to string) *rbacv1.ClusterRole {
	r := clusterRole(name)
	r.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{
		{MatchLabels: map[string]string{aggregateTo(name): "true"}},
	}}
	if to != "" {
		r.Labels[aggregateTo(to)] = "true"
	}
	return r
}

// part returns the ClusterRole system:aggregate-to-NAME with rules, where NAME is the argument to: "admin", "edit" or
// "view". The aggregation controller adds the rules to the role with this name.
func part(to string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
	r := clusterRole("system:aggregate-to-"+to, rules...)
	r.Labels[aggregateTo(to)] = "true"
	return r
}

// bindCluster returns a ClusterRoleBinding of a ClusterRole to subjects. The binding has the name
// of the role.
func bindCluster(role string, subjects ...rbacv1.Subject) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta("", role),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   subjects,
	}
}

// role returns a Role with the given rules.
func role(namespace, name string, rules ...rbacv1.PolicyRule) *rbacv1.Role {
	return &rbacv1.Role{ObjectMeta: meta(namespace, name), Rules: rules}
}

// bind returns a RoleBinding with the given name, of a Role in the same namespace to subjects.
func bind(namespace, name, role string, subjects ...rbacv1.Subject) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: meta(namespace, name),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
		Subjects:   subjects,
	}
}

// user returns a user as a subject of a binding.
func user(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}
}

// group returns a group as a subject of a binding.
func group(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: name}
}

// account returns a service account of kube-system as a subject of a binding.
func account(name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: name}
}
