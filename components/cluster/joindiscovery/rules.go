package joindiscovery

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AdminGroup is the group of cluster administrators. A ClusterRoleBinding, which can be deleted,
// gives it all permissions.
const AdminGroup = "kubeadm:cluster-admins"

// Names of the ConfigMaps with the cluster and kubelet configuration, as in kubeadm. Joining
// machines read them.
const (
	ClusterConfig = "kubeadm-config"
	KubeletConfig = "kubelet-config"
)

// ClusterBindings returns the ClusterRoleBindings of administrators, joining machines and nodes, in
// addition to the default ones of the API server.
func ClusterBindings() []*rbacv1.ClusterRoleBinding {
	return []*rbacv1.ClusterRoleBinding{
		clusterBinding("kubeadm:cluster-admins", "cluster-admin", AdminGroup),
		clusterBinding("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", NodeGroup),
		clusterBinding("kubeadm:node-autoapprove-bootstrap", "system:certificates.k8s.io:certificatesigningrequests:nodeclient", NodeGroup),
		clusterBinding("kubeadm:node-autoapprove-certificate-rotation", "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", "system:nodes"),
		clusterBinding("kubeadm:get-nodes", "kubeadm:get-nodes", NodeGroup),
		// The node process includes the service proxy.
		clusterBinding("system:hyperkube:node-proxier", "system:node-proxier", "system:nodes"),
	}
}

// ClusterRoles returns the roles of ClusterBindings that are not defaults of the API server.
func ClusterRoles() []*rbacv1.ClusterRole {
	return []*rbacv1.ClusterRole{{
		ObjectMeta: metav1.ObjectMeta{Name: "kubeadm:get-nodes"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get"}}},
	}}
}

// Roles returns Roles and RoleBindings that let every client read the cluster information, and let
// joining machines read the cluster and kubelet configuration.
func Roles() ([]*rbacv1.Role, []*rbacv1.RoleBinding) {
	joining := []rbacv1.Subject{group(NodeGroup), group("system:nodes")}
	anonymous := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "system:anonymous"}}
	var roles []*rbacv1.Role
	var bindings []*rbacv1.RoleBinding
	for _, r := range []struct {
		namespace, name, config string
		subjects                []rbacv1.Subject
	}{
		{metav1.NamespacePublic, "kubeadm:bootstrap-signer-clusterinfo", infoName, anonymous},
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
	// Additional control plane nodes download the shared certificates and keys, which are
	// encrypted.
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

// clusterBinding returns a ClusterRoleBinding that binds a role to a group.
func clusterBinding(name, role, groupName string) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Subjects:   []rbacv1.Subject{group(groupName)},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
	}
}

// group returns a group as the subject of a binding.
func group(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: name}
}
