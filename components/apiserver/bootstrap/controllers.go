package bootstrap

import rbacv1 "k8s.io/api/rbac/v1"

// controllerPrefix is the prefix of the names of the controllers' roles. The rest of the name is
// the controller's service account in kube-system.
const controllerPrefix = "system:controller:"

// controllerRoles returns the ClusterRoles of the individual controllers, and the bindings of these
// roles to the controllers' service accounts.
func controllerRoles() (roles []*rbacv1.ClusterRole, bindings []*rbacv1.ClusterRoleBinding) {
	for _, c := range controllers() {
		name := controllerPrefix + c.account
		roles = append(roles, clusterRole(name, c.rules...))
		bindings = append(bindings, bindCluster(name, account(c.account)))
	}
	return roles, bindings
}

// controller is a controller of the controller manager: its service account in kube-system, and its
// permissions.
type controller struct {
	account string
	rules   []rbacv1.PolicyRule
}

// controllers returns all controllers with their permissions, which are upstream's unless a comment
// says otherwise.
func controllers() []controller {
	var all []controller
	add := func(account string, rules ...rbacv1.PolicyRule) {
		all = append(all, controller{account, rules})
	}
	events := recordEvents()

	// Workloads
	add("deployment-controller",
		rule("get list update watch", "apps extensions", "deployments"),
		rule("update", "apps extensions", "deployments/status"),
		rule("update", "apps extensions", "deployments/finalizers"),
		rule("create delete get list patch update watch", "apps extensions", "replicasets"),
		rule("get list update watch", "core", "pods"),
		events)
	add("replicaset-controller",
		rule("get list update watch", "apps extensions", "replicasets"),
		rule("update", "apps extensions", "replicasets/status"),
		rule("update", "apps extensions", "replicasets/finalizers"),
		rule("create delete list patch watch", "core", "pods"),
		events)
	add("replication-controller",
		rule("get list update watch", "core", "replicationcontrollers"),
		rule("update", "core", "replicationcontrollers/status"),
		rule("update", "core", "replicationcontrollers/finalizers"),
		rule("create delete list patch watch", "core", "pods"),
		events)
	add("daemon-set-controller",
		rule(read, "apps extensions", "daemonsets"),
		rule("update", "apps extensions", "daemonsets/status"),
		rule("update", "apps extensions", "daemonsets/finalizers"),
		rule("list watch", "core", "nodes"),
		rule("create delete list patch watch", "core", "pods"),
		rule("create", "core", "pods/binding"),
		rule("create delete get list patch update watch", "apps", "controllerrevisions"),
		events)
	add("statefulset-controller",
		rule("list watch", "core", "pods"),
		rule(read, "apps", "statefulsets"),
		rule("update", "apps", "statefulsets/status"),
		rule("update", "apps", "statefulsets/finalizers"),
		rule("create delete get patch update", "core", "pods"),
		rule("create delete get list patch update watch", "apps", "controllerrevisions"),
		rule("create get list watch", "core", "persistentvolumeclaims"),
		rule("update", "core", "pods/finalizers"),
		events,
		rule("delete update", "core", "persistentvolumeclaims"))
	add("job-controller",
		rule("get list patch update watch", "batch", "jobs"),
		rule("update", "batch", "jobs/status"),
		rule("update", "batch", "jobs/finalizers"),
		rule("create delete list patch watch", "core", "pods"),
		events)
	add("cronjob-controller",
		rule("get list update watch", "batch", "cronjobs"),
		rule("create delete get list patch update watch", "batch", "jobs"),
		rule("update", "batch", "cronjobs/status"),
		rule("update", "batch", "cronjobs/finalizers"),
		rule("delete list watch", "core", "pods"),
		events)
	add("ttl-after-finished-controller",
		rule("delete get list watch", "batch", "jobs"),
		events)
	add("disruption-controller",
		rule(read, "apps extensions", "deployments"),
		rule(read, "apps extensions", "replicasets"),
		rule(read, "core", "replicationcontrollers"),
		rule(read, "policy", "poddisruptionbudgets"),
		rule(read, "apps", "statefulsets"),
		rule("update", "policy", "poddisruptionbudgets/status"),
		rule("patch update", "core", "pods/status"),
		rule("get", "*", "*/scale"),
		events)
	add("horizontal-pod-autoscaler",
		rule(read, "autoscaling", "horizontalpodautoscalers"),
		rule("update", "autoscaling", "horizontalpodautoscalers/status"),
		rule("get update", "*", "*/scale"),
		rule("list watch", "core", "pods"),
		rule("list watch", "metrics.k8s.io", "pods"),
		rule(read, "custom.metrics.k8s.io", "*"),
		rule(read, "external.metrics.k8s.io", "*"),
		events)

	// Services
	add("endpoint-controller",
		rule(read, "core", "pods services"),
		rule("create delete get list update watch", "core", "endpoints"),
		rule("create", "core", "endpoints/restricted"),
		events)
	add("endpointslice-controller",
		rule(read, "core", "nodes pods services"),
		rule("update", "core", "services/finalizers"),
		rule("create delete get list update watch", "discovery.k8s.io", "endpointslices"),
		rule("create", "discovery.k8s.io", "endpointslices/restricted"),
		events)
	add("endpointslicemirroring-controller",
		rule(read, "core", "endpoints services"),
		rule("update", "core", "services/finalizers"),
		rule("update", "core", "endpoints/finalizers"),
		rule("create delete get list update watch", "discovery.k8s.io", "endpointslices"),
		rule("create", "discovery.k8s.io", "endpointslices/restricted"),
		events)
	add("service-controller",
		rule(read, "core", "services"),
		rule("patch update", "core", "services/status"),
		rule("list watch", "core", "nodes"),
		events)
	// This controller does not exist upstream.
	add("load-balancer-controller",
		rule(read, "core", "services nodes"),
		rule("patch update", "core", "services/status"),
		rule(read, "discovery.k8s.io", "endpointslices"),
		rule(read, "coordination.k8s.io", "leases"),
		events)
	add("service-cidrs-controller",
		rule("get list patch update watch", "networking.k8s.io", "servicecidrs"),
		rule("patch update", "networking.k8s.io", "servicecidrs/finalizers"),
		rule("patch update", "networking.k8s.io", "servicecidrs/status"),
		rule(read, "networking.k8s.io", "ipaddresses"),
		events)
	add("route-controller",
		rule("list watch", "core", "nodes"),
		rule("patch", "core", "nodes/status"),
		events)

	// Nodes and pods
	add("node-controller",
		rule("delete get list patch update watch", "core", "nodes"),
		rule("patch update", "core", "nodes/status"),
		rule("patch update", "core", "pods/status"),
		rule("delete get list watch", "core", "pods"),
		rule(read, "coordination.k8s.io", "leases"),
		events)
	add("pod-garbage-collector",
		rule("delete list watch", "core", "pods"),
		rule(read, "core", "nodes"),
		rule("patch", "core", "pods/status"))
	add("ttl-controller",
		rule("list patch update watch", "core", "nodes"),
		events)
	add("device-taint-eviction-controller",
		rule("delete get list watch", "core", "pods"),
		rule("patch update", "core", "pods/status"),
		rule(read, "resource.k8s.io", "deviceclasses resourceclaims resourceslices"),
		rule(read, "resource.k8s.io", "devicetaintrules"),
		rule("patch update", "resource.k8s.io", "devicetaintrules/status"),
		events)
	add("resource-claim-controller",
		rule(read, "core", "pods"),
		rule("update", "core", "pods/finalizers"),
		rule("create delete get list watch", "resource.k8s.io", "resourceclaims"),
		rule("patch update", "resource.k8s.io", "resourceclaims resourceclaims/binding resourceclaims/status"),
		rule("patch update", "core", "pods/status"),
		events)

	// Namespaces, access control and dependent objects
	add("namespace-controller",
		rule("delete get list watch", "core", "namespaces"),
		rule("update", "core", "namespaces/finalize namespaces/status"),
		rule("delete deletecollection get list watch", "*", "*"))
	add("generic-garbage-collector",
		rule("delete get list patch update watch", "*", "*"),
		events)
	add("resourcequota-controller",
		rule("list watch", "*", "*"),
		rule("update", "core", "resourcequotas/status"),
		events)
	add("service-account-controller",
		rule("create", "core", "serviceaccounts"),
		events)
	add("clusterrole-aggregation-controller",
		rule("escalate get list patch update watch", "rbac.authorization.k8s.io", "clusterroles"))
	add("certificate-controller",
		rule("delete get list watch", "certificates.k8s.io", "certificatesigningrequests"),
		rule("update", "certificates.k8s.io", "certificatesigningrequests/approval certificatesigningrequests/status"),
		rule("approve", "certificates.k8s.io", "signers", "kubernetes.io/kube-apiserver-client-kubelet"),
		rule("sign", "certificates.k8s.io", "signers",
			"kubernetes.io/kube-apiserver-client",
			"kubernetes.io/kube-apiserver-client-kubelet",
			"kubernetes.io/kubelet-serving",
			"kubernetes.io/legacy-unknown"),
		rule("create", "authorization.k8s.io", "subjectaccessreviews"),
		events)
	add("podcertificaterequestcleaner",
		rule("delete get list watch", "certificates.k8s.io", "podcertificaterequests"),
		events)
	add("kube-apiserver-serving-clustertrustbundle-publisher",
		rule("attest", "certificates.k8s.io", "signers", "kubernetes.io/kube-apiserver-serving"),
		rule("create delete list update watch", "certificates.k8s.io", "clustertrustbundles"),
		events)
	// An empty patch is applied to every object, which rewrites it in the current storage version.
	add("storage-version-migrator-controller",
		rule("list patch", "*", "*"),
		rule("get", "apiextensions.k8s.io", "customresourcedefinitions"),
		rule("patch", "apiextensions.k8s.io", "customresourcedefinitions/status"),
		rule("update", "storagemigration.k8s.io", "storageversionmigrations/status"))
	add("root-ca-cert-publisher",
		rule("create update", "core", "configmaps"),
		events)
	add("legacy-service-account-token-cleaner",
		rule("get", "core", "configmaps", "kube-apiserver-legacy-service-account-token-tracking"),
		rule("delete patch", "core", "secrets"))
	add("validatingadmissionpolicy-status-controller",
		rule(read, "admissionregistration.k8s.io", "validatingadmissionpolicies"),
		rule("get patch update", "admissionregistration.k8s.io", "validatingadmissionpolicies/status"),
		events)

	// Volumes
	add("attachdetach-controller",
		rule("list watch", "core", "persistentvolumeclaims persistentvolumes"),
		rule(read, "core", "nodes"),
		rule("patch update", "core", "nodes/status"),
		rule("list watch", "core", "pods"),
		events,
		rule("create delete get list watch", "storage.k8s.io", "volumeattachments"),
		rule(read, "storage.k8s.io", "csidrivers"),
		rule(read, "storage.k8s.io", "csinodes"))
	add("expand-controller",
		rule("get list patch update watch", "core", "persistentvolumes"),
		rule("patch update", "core", "persistentvolumeclaims/status"),
		rule(read, "core", "persistentvolumeclaims"),
		rule(read, "storage.k8s.io", "storageclasses"),
		rule("get", "core", "endpoints services"),
		rule("get", "core", "secrets"),
		events)
	add("ephemeral-volume-controller",
		rule(read, "core", "pods"),
		rule("update", "core", "pods/finalizers"),
		rule("create get list watch", "core", "persistentvolumeclaims"),
		events)
	add("persistent-volume-binder",
		rule("create delete get list update watch", "core", "persistentvolumes"),
		rule("update", "core", "persistentvolumes/status"),
		rule("get list update watch", "core", "persistentvolumeclaims"),
		rule("update", "core", "persistentvolumeclaims/status"),
		rule("create delete get list watch", "core", "pods"),
		rule(read, "storage.k8s.io", "storageclasses"),
		rule("create delete get update", "core", "endpoints"),
		rule("create delete get", "core", "services"),
		rule("get", "core", "secrets"),
		rule("get list", "core", "nodes"),
		rule("watch", "core", "events"),
		events)
	// This provisioner does not exist in upstream. Like external provisioners, it reads nodes and
	// creates volumes. It removes directories by means of pods.
	add("local-path-provisioner",
		rule("create delete get list update watch", "core", "persistentvolumes"),
		rule("get list update watch", "core", "persistentvolumeclaims"),
		rule("update", "core", "persistentvolumeclaims/status"),
		rule("create delete get list watch", "core", "pods"),
		rule(read, "core", "nodes"),
		rule(read, "storage.k8s.io", "storageclasses"),
		events)
	add("pvc-protection-controller",
		rule("get list update watch", "core", "persistentvolumeclaims"),
		rule("update", "core", "persistentvolumeclaims/status"),
		rule(read, "core", "pods"),
		events)
	add("pv-protection-controller",
		rule("get list update watch", "core", "persistentvolumes"),
		events)
	add("volumeattributesclass-protection-controller",
		rule(read, "core", "persistentvolumeclaims"),
		rule(read, "core", "persistentvolumes"),
		rule("get list update watch", "storage.k8s.io", "volumeattributesclasses"),
		events)
	add("selinux-warning-controller",
		rule(read, "core", "pods"),
		rule(read, "core", "persistentvolumeclaims persistentvolumes"),
		rule(read, "storage.k8s.io", "csidrivers"),
		events)
	return all
}
