package trust

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AdminGroup is whose members may do everything as long as its binding stands.
const AdminGroup = "kubeadm:cluster-admins"

// Names of the ConfigMaps from which a joining machine learns what the cluster
// is like; as kubeadm has them.
const (
	ClusterConfig = "kubeadm-config"
	KubeletConfig = "kubelet-config"
)

// ClusterBindings say what administrators, joining machines and nodes may do
// in the whole cluster, besides what every cluster starts with.
func ClusterBindings() []*rbacv1.ClusterRoleBinding {
	return []*rbacv1.ClusterRoleBinding{
		clusterBinding("kubeadm:cluster-admins", "cluster-admin", AdminGroup),
		clusterBinding("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", NodeGroup),
		clusterBinding("kubeadm:node-autoapprove-bootstrap", "system:certificates.k8s.io:certificatesigningrequests:nodeclient", NodeGroup),
		clusterBinding("kubeadm:node-autoapprove-certificate-rotation", "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", "system:nodes"),
		clusterBinding("kubeadm:get-nodes", "kubeadm:get-nodes", NodeGroup),
		// The proxy is a part of the node's process.
		clusterBinding("system:hyperkube:node-proxier", "system:node-proxier", "system:nodes"),
	}
}

// ClusterRoles are those of ClusterBindings that no cluster starts with.
func ClusterRoles() []*rbacv1.ClusterRole {
	return []*rbacv1.ClusterRole{{
		ObjectMeta: metav1.ObjectMeta{Name: "kubeadm:get-nodes"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get"}}},
	}}
}

// Roles and RoleBindings let everybody read the cluster's public information,
// and joining machines what the cluster is like.
func Roles() ([]*rbacv1.Role, []*rbacv1.RoleBinding) {
	joining := []rbacv1.Subject{group(NodeGroup), group("system:nodes")}
	anybody := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "system:anonymous"}}
	var roles []*rbacv1.Role
	var bindings []*rbacv1.RoleBinding
	for _, r := range []struct {
		namespace, name, config string
		subjects                []rbacv1.Subject
	}{
		{metav1.NamespacePublic, "kubeadm:bootstrap-signer-clusterinfo", infoName, anybody},
		{metav1.NamespaceSystem, "kubeadm:nodes-kubeadm-config", ClusterConfig, joining},
		{metav1.NamespaceSystem, "kubeadm:kubelet-config", KubeletConfig, joining},
	} {
		meta := metav1.ObjectMeta{Namespace: r.namespace, Name: r.name}
		roles = append(roles, &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{r.config}, Verbs: []string{"get"},
		}}})
		bindings = append(bindings, &rbacv1.RoleBinding{
			ObjectMeta: meta, Subjects: r.subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: r.name},
		})
	}
	// A further master gets the keys that masters share; they are encrypted.
	certs := metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kubeadm:kubeadm-certs"}
	roles = append(roles, &rbacv1.Role{ObjectMeta: certs, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{CertsSecret}, Verbs: []string{"get"},
	}}})
	bindings = append(bindings, &rbacv1.RoleBinding{
		ObjectMeta: certs, Subjects: []rbacv1.Subject{group(NodeGroup)},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: certs.Name},
	})
	return roles, bindings
}

func clusterBinding(name, role, whose string) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Subjects:   []rbacv1.Subject{group(whose)},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
	}
}

func group(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: name}
}
