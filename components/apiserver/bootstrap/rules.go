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

// Common combinations of verbs.
const (
	read       = "get list watch"
	readUpdate = "get list patch update watch"
	write      = "create delete deletecollection patch update"
	readWrite  = read + " " + write
)

// rule grants verbs on resources of groups, limited to the given names, if any.
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

// paths grants get on non-resource paths.
func paths(list string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: sorted(list)}
}

// recordEvents is the permission of components that record events.
func recordEvents() rbacv1.PolicyRule {
	return rule("create patch update", "core events.k8s.io", "events")
}

func sorted(list string) []string {
	words := strings.Fields(list)
	slices.Sort(words)
	return words
}

// meta returns the metadata of an initial object, which is reconciled on startup unless its
// annotation is set to "false".
func meta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace:   namespace,
		Name:        name,
		Labels:      map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"},
		Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"},
	}
}

func clusterRole(name string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{ObjectMeta: meta("", name), Rules: rules}
}

// aggregateTo returns the label that aggregates a role's rules into another role: "admin", "edit"
// or "view".
func aggregateTo(role string) string { return "rbac.authorization.k8s.io/aggregate-to-" + role }

// aggregated returns a role whose rules the aggregation controller collects. The role itself is
// aggregated into the role to, unless that is empty.
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

// part returns a role whose rules are aggregated into the role to.
func part(to string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
	r := clusterRole("system:aggregate-to-"+to, rules...)
	r.Labels[aggregateTo(to)] = "true"
	return r
}

// bindCluster returns a ClusterRoleBinding of a ClusterRole to subjects, with the role's name.
func bindCluster(role string, subjects ...rbacv1.Subject) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta("", role),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   subjects,
	}
}

func role(namespace, name string, rules ...rbacv1.PolicyRule) *rbacv1.Role {
	return &rbacv1.Role{ObjectMeta: meta(namespace, name), Rules: rules}
}

// bind returns a RoleBinding of a Role in the same namespace to subjects.
func bind(namespace, name, role string, subjects ...rbacv1.Subject) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: meta(namespace, name),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
		Subjects:   subjects,
	}
}

func user(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}
}

func group(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: name}
}

// account returns a service account of kube-system as a subject.
func account(name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: name}
}
