package bootstrap

import (
	rbacv1 "k8s.io/api/rbac/v1"

	"hyperkube/internal/credentials/pki"
)

// Policy contains all RBAC objects with which a cluster starts. The caller owns the objects.
type Policy struct {
	ClusterRoles        []*rbacv1.ClusterRole
	ClusterRoleBindings []*rbacv1.ClusterRoleBinding
	Roles               []*rbacv1.Role
	RoleBindings        []*rbacv1.RoleBinding
}

// DefaultPolicy returns a new copy of upstream's RBAC policy with the additional permissions of
// this project's components. See
// https://kubernetes.io/docs/reference/access-authn-authz/rbac/#default-roles-and-role-bindings
func DefaultPolicy() Policy {
	roles, bindings := controllerRoles()
	return Policy{
		ClusterRoles:        append(clusterRoles(), roles...),
		ClusterRoleBindings: append(clusterRoleBindings(), bindings...),
		Roles:               namespaceRoles(),
		RoleBindings:        namespaceRoleBindings(),
	}
}

// nodeRules returns the permissions of kubelets in the role system:node. The Node authorizer
// further restricts them to objects related to the kubelet's own node.
func nodeRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		rule("create", "authentication.k8s.io", "tokenreviews"),
		rule("create", "authorization.k8s.io", "localsubjectaccessreviews subjectaccessreviews"),
		rule(read, "core", "services"),
		rule("create get list watch", "core", "nodes"),
		rule("patch update", "core", "nodes/status"),
		rule("patch update", "core", "nodes"),
		rule("create patch update", "core events.k8s.io", "events"),
		rule(read, "core", "pods"),
		rule("create delete", "core", "pods"),
		rule("patch update", "core", "pods/status"),
		rule("create", "core", "pods/eviction"),
		rule(read, "core", "configmaps secrets"),
		rule("get", "core", "persistentvolumeclaims persistentvolumes"),
		rule("get", "core", "endpoints"),
		rule("create get list watch", "certificates.k8s.io", "certificatesigningrequests"),
		rule("create delete get patch update", "coordination.k8s.io", "leases"),
		rule("get", "storage.k8s.io", "volumeattachments"),
		rule("get patch update", "core", "persistentvolumeclaims/status"),
		rule("create", "core", "serviceaccounts/token"),
		rule(read, "core", "serviceaccounts"),
		rule(read, "storage.k8s.io", "csidrivers"),
		rule("create delete get patch update", "storage.k8s.io", "csinodes"),
		rule(read, "node.k8s.io", "runtimeclasses"),
		rule("get", "resource.k8s.io", "resourceclaims"),
		rule("deletecollection", "resource.k8s.io", "resourceslices"),
		rule("create delete get list patch update watch", "resource.k8s.io", "resourceslices"),
		rule(read, "certificates.k8s.io", "clustertrustbundles"),
		rule("create get list watch", "certificates.k8s.io", "podcertificaterequests"),
	}
}

// clusterRoles returns all ClusterRoles except those of the controllers.
func clusterRoles() []*rbacv1.ClusterRole {
	return append(userRoles(), componentRoles()...)
}

// userRoles returns the ClusterRoles for users (such as admin, edit and view), for API discovery
// and for monitoring.
func userRoles() []*rbacv1.ClusterRole {
	return []*rbacv1.ClusterRole{
		clusterRole("cluster-admin",
			rule("*", "*", "*"),
			rbacv1.PolicyRule{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}}),
		clusterRole("system:discovery",
			paths("/livez /readyz /healthz /version /version/ /openapi /openapi/* /api /api/* /apis /apis/*")),
		clusterRole("system:monitoring",
			paths("/metrics /metrics/slis /livez /readyz /healthz /livez/* /readyz/* /healthz/* /statusz /flagz"),
			rule("get", "core", "nodes/metrics")),
		clusterRole("system:basic-user",
			rule("create", "authorization.k8s.io", "selfsubjectaccessreviews selfsubjectrulesreviews"),
			rule("create", "authentication.k8s.io", "selfsubjectreviews")),
		clusterRole("system:public-info-viewer",
			paths("/livez /readyz /healthz /version /version/")),

		aggregated("admin", ""),
		aggregated("edit", "admin"),
		aggregated("view", "edit"),
		part("admin",
			rule("create", "authorization.k8s.io", "localsubjectaccessreviews"),
			rule(readWrite, "rbac.authorization.k8s.io", "roles rolebindings")),
		part("edit",
			rule(read, "core", "pods/attach pods/proxy pods/exec pods/portforward secrets services/proxy"),
			rule("impersonate", "core", "serviceaccounts"),
			rule(write, "core", "pods pods/attach pods/proxy pods/exec pods/portforward"),
			rule("create", "core", "pods/eviction"),
			rule(write, "core", `replicationcontrollers replicationcontrollers/scale serviceaccounts services
				services/proxy persistentvolumeclaims configmaps secrets events`),
			rule(write, "events.k8s.io", "events"),
			rule("create", "core", "serviceaccounts/token"),
			rule(write, "apps", `statefulsets statefulsets/scale daemonsets deployments deployments/scale
				deployments/rollback replicasets replicasets/scale`),
			rule(write, "autoscaling", "horizontalpodautoscalers"),
			rule(write, "batch", "jobs cronjobs"),
			rule(write, "extensions", `daemonsets deployments deployments/scale deployments/rollback ingresses
				replicasets replicasets/scale replicationcontrollers/scale networkpolicies`),
			rule(write, "policy", "poddisruptionbudgets"),
			rule(write, "networking.k8s.io", "networkpolicies ingresses"),
			rule(readWrite, "coordination.k8s.io", "leases"),
			rule(write, "resource.k8s.io", "resourceclaims resourceclaimtemplates")),
		part("view",
			rule(read, "core", `pods replicationcontrollers replicationcontrollers/scale serviceaccounts services
				services/status endpoints persistentvolumeclaims persistentvolumeclaims/status configmaps`),
			rule(read, "core", `limitranges resourcequotas bindings events pods/status resourcequotas/status
				namespaces/status replicationcontrollers/status pods/log`),
			rule(read, "core", "namespaces"),
			rule(read, "events.k8s.io", "events"),
			rule(read, "discovery.k8s.io", "endpointslices"),
			rule(read, "apps", `controllerrevisions statefulsets statefulsets/status statefulsets/scale daemonsets
				daemonsets/status deployments deployments/status deployments/scale replicasets replicasets/status
				replicasets/scale`),
			rule(read, "autoscaling", "horizontalpodautoscalers horizontalpodautoscalers/status"),
			rule(read, "batch", "jobs jobs/status cronjobs cronjobs/status"),
			rule(read, "extensions", `daemonsets daemonsets/status deployments deployments/scale deployments/status
				ingresses ingresses/status replicasets replicasets/scale replicasets/status
				replicationcontrollers/scale networkpolicies`),
			rule(read, "policy", "poddisruptionbudgets poddisruptionbudgets/status"),
			rule(read, "networking.k8s.io", "networkpolicies ingresses ingresses/status"),
			rule(read, "resource.k8s.io", "resourceclaims resourceclaims/status resourceclaimtemplates")),
	}
}

// componentRoles returns the ClusterRoles for components of the cluster, such as nodes and the
// scheduler, and for common add-ons.
func componentRoles() []*rbacv1.ClusterRole {
	const (
		signerClient  = "kubernetes.io/kube-apiserver-client"
		signerKubelet = "kubernetes.io/kube-apiserver-client-kubelet"
		signerServing = "kubernetes.io/kubelet-serving"
		signerLegacy  = "kubernetes.io/legacy-unknown"
	)
	approve := func(role, signer string) *rbacv1.ClusterRole {
		return clusterRole("system:certificates.k8s.io:"+role, rule("approve", "certificates.k8s.io", "signers", signer))
	}
	return []*rbacv1.ClusterRole{
		clusterRole("system:heapster",
			rule(read, "core", "events pods nodes namespaces"),
			rule(read, "extensions", "deployments")),
		clusterRole("system:node", nodeRules()...),
		clusterRole("system:node-problem-detector",
			rule("get", "core", "nodes"),
			rule("patch", "core", "nodes/status"),
			recordEvents()),
		clusterRole("system:kubelet-api-admin",
			rule(read, "core", "nodes"),
			rule("proxy", "core", "nodes"),
			rule("*", "core", `nodes/proxy nodes/metrics nodes/stats nodes/log nodes/configz
				nodes/healthz nodes/pods`)),
		// The API server proxies to all paths of a kubelet; system:kubelet-api-admin lacks some of them, and reads Nodes.
		clusterRole(kubeletClients,
			rule("*", "core", `nodes/proxy nodes/metrics nodes/stats nodes/log nodes/configz
				nodes/healthz nodes/pods nodes/checkpoint nodes/statusz`)),
		clusterRole("system:node-bootstrapper",
			rule("create get list watch", "certificates.k8s.io", "certificatesigningrequests")),
		clusterRole("system:auth-delegator",
			rule("create", "authentication.k8s.io", "tokenreviews"),
			rule("create", "authorization.k8s.io", "subjectaccessreviews")),
		clusterRole("system:kube-aggregator",
			rule(read, "core", "services endpoints")),
		clusterRole("system:kube-controller-manager",
			recordEvents(),
			rule("create", "coordination.k8s.io", "leases"),
			rule("get update", "coordination.k8s.io", "leases", "kube-controller-manager"),
			rule("create", "core", "secrets serviceaccounts"),
			rule("delete", "core", "secrets"),
			rule("get", "core", "namespaces secrets serviceaccounts configmaps"),
			rule("update", "core", "secrets serviceaccounts"),
			rule("create", "authentication.k8s.io", "tokenreviews"),
			rule("create", "authorization.k8s.io", "subjectaccessreviews"),
			rule("list watch", "*", "*"),
			rule("create", "core", "serviceaccounts/token")),
		// Upstream's DNS add-on has its own role. Here the built-in role also grants access to
		// EndpointSlices, pods and namespaces.
		clusterRole("system:kube-dns",
			rule("list watch", "core", "endpoints services"),
			rule("list watch", "core", "namespaces pods"),
			rule("get", "core", "nodes"),
			rule("list watch", "discovery.k8s.io", "endpointslices")),
		clusterRole("system:persistent-volume-provisioner",
			rule("create delete get list watch", "core", "persistentvolumes"),
			rule("get list update watch", "core", "persistentvolumeclaims"),
			rule(read, "storage.k8s.io", "storageclasses"),
			rule("watch", "core", "events"),
			recordEvents()),
		clusterRole("system:certificates.k8s.io:certificatesigningrequests:nodeclient",
			rule("create", "certificates.k8s.io", "certificatesigningrequests/nodeclient")),
		clusterRole("system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
			rule("create", "certificates.k8s.io", "certificatesigningrequests/selfnodeclient")),
		clusterRole("system:volume-scheduler",
			rule(readUpdate, "core", "persistentvolumes"),
			rule(read, "storage.k8s.io", "storageclasses"),
			rule(readUpdate, "core", "persistentvolumeclaims")),
		approve("legacy-unknown-approver", signerLegacy),
		approve("kubelet-serving-approver", signerServing),
		approve("kube-apiserver-client-approver", signerClient),
		approve("kube-apiserver-client-kubelet-approver", signerKubelet),
		clusterRole("system:cluster-trust-bundle-discovery",
			rule(read, "certificates.k8s.io", "clustertrustbundles")),
		clusterRole("system:service-account-issuer-discovery",
			paths("/.well-known/openid-configuration /.well-known/openid-configuration/ /openid/v1/jwks /openid/v1/jwks/")),
		clusterRole("system:node-proxier",
			rule("list watch", "core", "services endpoints"),
			rule(read, "core", "nodes"),
			recordEvents(),
			rule("list watch", "discovery.k8s.io", "endpointslices"),
			rule("list watch", "networking.k8s.io", "servicecidrs")),
		clusterRole("system:kube-scheduler",
			recordEvents(),
			rule("create", "coordination.k8s.io", "leases"),
			rule("get list update watch", "coordination.k8s.io", "leases", "kube-scheduler"),
			rule("create delete deletecollection get list patch update watch", "coordination.k8s.io", "leasecandidates"),
			rule(read, "core", "nodes"),
			rule("delete get list watch", "core", "pods"),
			rule("create", "core", "bindings pods/binding"),
			rule("patch update", "core", "pods/status"),
			rule(read, "core", "replicationcontrollers services"),
			rule(read, "apps extensions", "replicasets"),
			rule(read, "apps", "statefulsets"),
			rule(read, "policy", "poddisruptionbudgets"),
			rule(read, "core", "persistentvolumeclaims persistentvolumes"),
			rule("create", "authentication.k8s.io", "tokenreviews"),
			rule("create", "authorization.k8s.io", "subjectaccessreviews"),
			rule(read, "storage.k8s.io", "csinodes"),
			rule(read, "core", "namespaces"),
			rule(read, "storage.k8s.io", "csidrivers"),
			rule(read, "storage.k8s.io", "csistoragecapacities"),
			rule(read, "storage.k8s.io", "volumeattachments"),
			rule(read, "resource.k8s.io", "deviceclasses"),
			rule("create delete get list patch update watch", "resource.k8s.io", "resourceclaims"),
			rule("get list patch update watch", "resource.k8s.io", "resourceclaims/status"),
			rule("patch update", "resource.k8s.io", "resourceclaims/binding"),
			rule("get list patch update watch", "core", "pods/finalizers"),
			rule(read, "resource.k8s.io", "resourceslices devicetaintrules"),
			// Preemption reads priority classes.
			rule(read, "scheduling.k8s.io", "priorityclasses")),
	}
}

// clusterRoleBindings returns the bindings of ClusterRoles to groups, users and service accounts,
// except those of the controllers.
func clusterRoleBindings() []*rbacv1.ClusterRoleBinding {
	const authenticated, unauthenticated = "system:authenticated", "system:unauthenticated"
	return []*rbacv1.ClusterRoleBinding{
		bindCluster("cluster-admin", group("system:masters")),
		bindCluster("system:monitoring", group("system:monitoring")),
		bindCluster("system:discovery", group(authenticated)),
		bindCluster("system:basic-user", group(authenticated)),
		bindCluster("system:public-info-viewer", group(authenticated), group(unauthenticated)),
		bindCluster(kubeletClients, group(pki.KubeletClientGroup)),
		bindCluster("system:node-proxier", user("system:kube-proxy")),
		bindCluster("system:kube-controller-manager", user("system:kube-controller-manager")),
		bindCluster("system:kube-dns", account("kube-dns")),
		bindCluster("system:kube-scheduler", user("system:kube-scheduler")),
		bindCluster("system:volume-scheduler", user("system:kube-scheduler")),
		// The Node authorizer authorizes nodes. The binding exists but has no subjects.
		bindCluster("system:node"),
		bindCluster("system:service-account-issuer-discovery", group("system:serviceaccounts")),
		bindCluster("system:cluster-trust-bundle-discovery", group("system:serviceaccounts")),
	}
}

const (
	// kubeletClients is the name of the role with which API servers access kubelets, and of its
	// binding.
	kubeletClients = "system:hyperkube:kubelet-clients"

	kubeSystem = "kube-system"
	kubePublic = "kube-public"
	// authReader is the name of the role that allows aggregated servers to read the authentication
	// configuration (ConfigMap extension-apiserver-authentication).
	authReader = "extension-apiserver-authentication-reader"
)

// namespaceRoles returns the Roles in the namespaces kube-system and kube-public.
func namespaceRoles() []*rbacv1.Role {
	leader := func(component string) *rbacv1.Role {
		return role(kubeSystem, "system::leader-locking-"+component,
			rule("create get list update watch", "coordination.k8s.io", "leases"),
			rule("create get list update watch", "coordination.k8s.io", "leasecandidates"))
	}
	return []*rbacv1.Role{
		role(kubeSystem, authReader, rule(read, "core", "configmaps", "extension-apiserver-authentication")),
		role(kubeSystem, "system:controller:bootstrap-signer", rule(read, "core", "secrets")),
		role(kubeSystem, "system:controller:cloud-provider", rule("create get list watch", "core", "configmaps")),
		role(kubeSystem, "system:controller:token-cleaner",
			rule("delete get list watch", "core", "secrets"),
			recordEvents()),
		leader("kube-controller-manager"),
		leader("kube-scheduler"),
		role(kubePublic, "system:controller:bootstrap-signer",
			rule(read, "core", "configmaps"),
			rule("update", "core", "configmaps", "cluster-info"),
			recordEvents()),
	}
}

// namespaceRoleBindings returns the bindings of the Roles of namespaceRoles.
func namespaceRoleBindings() []*rbacv1.RoleBinding {
	controller := func(namespace, name string) *rbacv1.RoleBinding {
		full := controllerPrefix + name
		return bind(namespace, full, full, account(name))
	}
	leader := func(component string) *rbacv1.RoleBinding {
		name := "system::leader-locking-" + component
		return bind(kubeSystem, name, name, user("system:"+component), account(component))
	}
	return []*rbacv1.RoleBinding{
		controller(kubeSystem, "bootstrap-signer"),
		controller(kubeSystem, "cloud-provider"),
		controller(kubeSystem, "token-cleaner"),
		leader("kube-controller-manager"),
		leader("kube-scheduler"),
		bind(kubeSystem, "system::"+authReader, authReader, user("system:kube-controller-manager"), user("system:kube-scheduler")),
		controller(kubePublic, "bootstrap-signer"),
	}
}
