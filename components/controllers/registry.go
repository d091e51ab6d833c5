package controllers

import (
	"fmt"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"hyperkube/components/controllers/attachdetach"
	"hyperkube/components/controllers/bootstraptokens"
	"hyperkube/components/controllers/clusterroleaggregation"
	"hyperkube/components/controllers/cronjob"
	"hyperkube/components/controllers/daemonset"
	"hyperkube/components/controllers/deployment"
	"hyperkube/components/controllers/disruption"
	"hyperkube/components/controllers/endpoints"
	"hyperkube/components/controllers/endpointslice"
	"hyperkube/components/controllers/endpointslicemirroring"
	"hyperkube/components/controllers/ephemeralvolume"
	"hyperkube/components/controllers/garbagecollector"
	"hyperkube/components/controllers/internal/control"
	"hyperkube/components/controllers/job"
	"hyperkube/components/controllers/legacytokencleaner"
	"hyperkube/components/controllers/loadbalancer"
	"hyperkube/components/controllers/localpath"
	"hyperkube/components/controllers/namespace"
	"hyperkube/components/controllers/nodeipam"
	"hyperkube/components/controllers/nodelifecycle"
	"hyperkube/components/controllers/nodettl"
	"hyperkube/components/controllers/persistentvolume"
	"hyperkube/components/controllers/podgc"
	"hyperkube/components/controllers/replicaset"
	"hyperkube/components/controllers/replicationcontroller"
	"hyperkube/components/controllers/resourcequota"
	"hyperkube/components/controllers/rootca"
	"hyperkube/components/controllers/serviceaccount"
	"hyperkube/components/controllers/serviceaccounttoken"
	"hyperkube/components/controllers/servicecidr"
	"hyperkube/components/controllers/statefulset"
	"hyperkube/components/controllers/tainteviction"
	"hyperkube/components/controllers/ttlafterfinished"
	"hyperkube/components/controllers/validatingadmissionpolicystatus"
	"hyperkube/components/controllers/volumeexpand"
	"hyperkube/components/controllers/volumeprotection"
	"hyperkube/internal/api/quota"
	"hyperkube/internal/base/version"
	"hyperkube/internal/client"
	localpathnames "hyperkube/internal/pod/localpath"
)

// deps contains what the constructor in a descriptor gets to create its controller: the configuration, and the clients
// and control.Env of the controller.
type deps struct {
	Config
	// clients are the clients of this controller.
	clients *client.Clients
	env     control.Env
}

// descriptor describes a controller: its names, its user, the resources that it needs, and its constructor. Names,
// users, event sources and numbers of workers are upstream's.
type descriptor struct {
	name string
	// alias is another name that --controllers accepts.
	alias string
	// user is the name of its service account in kube-system.
	user string
	// source is the source component of its events.
	source string
	// hasStartedMetric is true if upstream has a metric that shows that the controller runs.
	hasStartedMetric bool
	// offByDefault is true if "*" does not include the controller.
	offByDefault bool
	workers      int
	// needs are the resources without which the controller cannot run, except those that every API
	// server of this project serves.
	needs []schema.GroupVersionResource
	// make returns nil if the controller is not needed with the configuration.
	make func(d *deps) (runner, error)
}

// loadBalancerName is the name of the controller that assigns addresses to Services of type LoadBalancer.
const loadBalancerName = "load-balancer-controller"

// descriptors returns all controllers in the order of their start. The controllers that a cluster's
// first pod requires come first.
func descriptors() []descriptor {
	return append([]descriptor{
		{name: "node-ipam-controller", alias: "nodeipam", user: "node-controller", source: "cidrAllocator", workers: 5, hasStartedMetric: true, make: makeNodeIPAM},
		{name: "serviceaccount-controller", alias: "serviceaccount", user: "service-account-controller", source: "serviceaccount-controller", workers: 1,
			make: func(d *deps) (runner, error) { return serviceaccount.New(d.env) }},
		// Like upstream's, this controller has no service account.
		{name: "serviceaccount-token-controller", alias: "serviceaccount-token", source: "serviceaccount-token-controller", workers: 5,
			make: func(d *deps) (runner, error) {
				if d.SecretTokens == nil {
					return nil, nil
				}
				return serviceaccounttoken.New(d.env, d.SecretTokens, d.RootCA)
			}},
		{name: "legacy-serviceaccount-token-cleaner-controller", alias: "legacy-service-account-token-cleaner", user: "legacy-service-account-token-cleaner", source: "legacy-serviceaccount-token-cleaner-controller", workers: 1,
			make: func(d *deps) (runner, error) { return legacytokencleaner.New(d.env, d.TokenCleanUpPeriod) }},
		{name: "root-ca-certificate-publisher-controller", alias: "root-ca-cert-publisher", user: "root-ca-cert-publisher", source: "root-ca-cert-publisher", workers: 1,
			make: func(d *deps) (runner, error) {
				if len(d.RootCA) == 0 {
					return nil, nil
				}
				return rootca.New(d.env, d.RootCA)
			}},
		{name: "deployment-controller", alias: "deployment", user: "deployment-controller", source: "deployment-controller", workers: 5,
			make: func(d *deps) (runner, error) { return deployment.New(d.env) }},
		{name: "replicaset-controller", alias: "replicaset", user: "replicaset-controller", source: "replicaset-controller", workers: 5,
			make: func(d *deps) (runner, error) { return replicaset.New(d.env) }},
		{name: "endpointslice-controller", alias: "endpointslice", user: "endpointslice-controller", source: "endpoint-slice-controller", workers: 5,
			make: func(d *deps) (runner, error) { return endpointslice.New(d.env, d.MaxEndpointsPerSlice) }},
		{name: "endpoints-controller", alias: "endpoint", user: "endpoint-controller", source: "endpoint-controller", workers: 5,
			make: func(d *deps) (runner, error) { return endpoints.New(d.env) }},
		{name: "endpointslice-mirroring-controller", alias: "endpointslicemirroring", user: "endpointslicemirroring-controller", source: "endpoint-slice-mirroring-controller", workers: 5,
			make: func(d *deps) (runner, error) { return endpointslicemirroring.New(d.env) }},
		{name: "namespace-controller", alias: "namespace", user: "namespace-controller", source: "namespace-controller", workers: 10,
			make: func(d *deps) (runner, error) {
				return namespace.New(d.env, namespace.Config{Discovery: d.clients.Kube.Discovery(), Metadata: d.clients.Metadata, Delay: d.NamespaceDelay})
			}},
		{name: "clusterrole-aggregation-controller", alias: "clusterrole-aggregation", user: "clusterrole-aggregation-controller", source: "clusterrole-aggregation-controller", workers: 5,
			make: func(d *deps) (runner, error) { return clusterroleaggregation.New(d.env) }},
		{name: "garbage-collector-controller", alias: "garbagecollector", user: "generic-garbage-collector", source: "garbage-collector-controller", workers: 20,
			make: func(d *deps) (runner, error) {
				return garbagecollector.New(d.env, garbagecollector.Config{Discovery: d.clients.Kube.Discovery(), Metadata: d.clients.Metadata, Informer: d.Metadata})
			}},
		{name: "pod-garbage-collector-controller", alias: "podgc", user: "pod-garbage-collector", source: "pod-garbage-collector", workers: 1,
			make: func(d *deps) (runner, error) { return podgc.New(d.env, d.TerminatedPodThreshold) }},
		{name: "node-lifecycle-controller", alias: "nodelifecycle", user: "node-controller", source: "node-controller", workers: 8,
			make: func(d *deps) (runner, error) { return nodelifecycle.New(d.env, d.NodeLifecycle) }},
		{name: "ttl-controller", alias: "ttl", user: "ttl-controller", source: "ttl-controller", workers: 5,
			make: func(d *deps) (runner, error) { return nodettl.New(d.env) }},
		{name: "taint-eviction-controller", user: "node-controller", source: "taint-eviction-controller", workers: 8,
			make: func(d *deps) (runner, error) { return tainteviction.New(d.env) }},
		{name: "replicationcontroller-controller", alias: "replicationcontroller", user: "replication-controller", source: "replication-controller", workers: 5,
			needs: []schema.GroupVersionResource{corev1.SchemeGroupVersion.WithResource("replicationcontrollers")},
			make:  func(d *deps) (runner, error) { return replicationcontroller.New(d.env) }},
		{name: "daemonset-controller", alias: "daemonset", user: "daemon-set-controller", source: "daemonset-controller", workers: 2,
			needs: []schema.GroupVersionResource{appsv1.SchemeGroupVersion.WithResource("daemonsets"), appsv1.SchemeGroupVersion.WithResource("controllerrevisions")},
			make:  func(d *deps) (runner, error) { return daemonset.New(d.env) }},
		{name: "statefulset-controller", alias: "statefulset", user: "statefulset-controller", source: "statefulset-controller", workers: 5,
			needs: []schema.GroupVersionResource{appsv1.SchemeGroupVersion.WithResource("statefulsets"), appsv1.SchemeGroupVersion.WithResource("controllerrevisions"), corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")},
			make:  func(d *deps) (runner, error) { return statefulset.New(d.env) }},
		{name: "job-controller", alias: "job", user: "job-controller", source: "job-controller", workers: 5,
			needs: []schema.GroupVersionResource{batchv1.SchemeGroupVersion.WithResource("jobs")},
			make:  func(d *deps) (runner, error) { return job.New(d.env) }},
		{name: "cronjob-controller", alias: "cronjob", user: "cronjob-controller", source: "cronjob-controller", workers: 5,
			needs: []schema.GroupVersionResource{batchv1.SchemeGroupVersion.WithResource("jobs"), batchv1.SchemeGroupVersion.WithResource("cronjobs")},
			make:  func(d *deps) (runner, error) { return cronjob.New(d.env) }},
		{name: "ttl-after-finished-controller", alias: "ttl-after-finished", user: "ttl-after-finished-controller", source: "ttl-after-finished-controller", workers: 5,
			needs: []schema.GroupVersionResource{batchv1.SchemeGroupVersion.WithResource("jobs")},
			make:  func(d *deps) (runner, error) { return ttlafterfinished.New(d.env) }},
		{name: "resourcequota-controller", alias: "resourcequota", user: "resourcequota-controller", source: "resourcequota-controller", workers: 5,
			needs: quota.CoreResources(),
			make: func(d *deps) (runner, error) {
				return resourcequota.New(d.env, resourcequota.Config{Discovery: d.clients.Kube.Discovery(), Metadata: d.clients.Metadata, Informer: resourcequota.Informer(d.Metadata)})
			}},
		{name: "service-cidr-controller", user: "service-cidrs-controller", source: "service-cidrs-controller", workers: 5,
			needs: []schema.GroupVersionResource{networkingv1.SchemeGroupVersion.WithResource("servicecidrs"), networkingv1.SchemeGroupVersion.WithResource("ipaddresses")},
			make:  func(d *deps) (runner, error) { return servicecidr.New(d.env) }},
		{name: "bootstrap-signer-controller", alias: "bootstrapsigner", user: "bootstrap-signer", source: "bootstrap-signer", offByDefault: true, workers: 1,
			make: func(d *deps) (runner, error) { return bootstraptokens.NewSigner(d.env) }},
		{name: "token-cleaner-controller", alias: "tokencleaner", user: "token-cleaner", source: "token-cleaner", offByDefault: true, workers: 1,
			make: func(d *deps) (runner, error) { return bootstraptokens.NewCleaner(d.env) }},
		{name: loadBalancerName, user: "load-balancer-controller", source: "load-balancer-controller", offByDefault: true, workers: 1,
			make: func(d *deps) (runner, error) {
				if d.CloudProvider.IsExternal() {
					return nil, nil
				}
				return loadbalancer.New(d.env, d.LoadBalancer)
			}},
		{name: "persistentvolume-binder-controller", alias: "persistentvolume-binder", user: "persistent-volume-binder", source: "persistentvolume-controller", workers: 1,
			needs: volumeKinds, make: func(d *deps) (runner, error) {
				return persistentvolume.New(d.env, persistentvolume.Config{Image: version.Image(), NoProvisioning: d.NoDynamicProvisioning})
			}},
		{name: "local-path-provisioner-controller", alias: "local-path-provisioner", user: "local-path-provisioner", source: localpathnames.Provisioner, workers: 5,
			needs: volumeKinds, make: func(d *deps) (runner, error) { return localpath.New(d.env, version.Image()) }},
		{name: "persistentvolumeclaim-protection-controller", alias: "pvc-protection", user: "pvc-protection-controller", source: "pvc-protection-controller", workers: 1,
			needs: volumeKinds, make: func(d *deps) (runner, error) { return volumeprotection.NewClaims(d.env) }},
		{name: "persistentvolume-protection-controller", alias: "pv-protection", user: "pv-protection-controller", source: "pv-protection-controller", workers: 1,
			needs: volumeKinds, make: func(d *deps) (runner, error) { return volumeprotection.NewVolumes(d.env) }},
		{name: "persistentvolume-attach-detach-controller", alias: "attachdetach", user: "attachdetach-controller", source: "attachdetach-controller", workers: 5,
			needs: append([]schema.GroupVersionResource{
				storagev1.SchemeGroupVersion.WithResource("volumeattachments"), storagev1.SchemeGroupVersion.WithResource("csidrivers"),
			}, volumeKinds...),
			make: func(d *deps) (runner, error) {
				if d.NoForceDetach {
					return attachdetach.New(d.env, 0)
				}
				return attachdetach.New(d.env, forceDetach)
			}},
		{name: "ephemeral-volume-controller", alias: "ephemeral-volume", user: "ephemeral-volume-controller", source: "ephemeral_volume", workers: 5,
			needs: volumeKinds, make: func(d *deps) (runner, error) { return ephemeralvolume.New(d.env) }},
		{name: "persistentvolume-expander-controller", alias: "persistentvolume-expander", user: "expand-controller", source: "volume_expand", workers: 1,
			needs: volumeKinds, make: func(d *deps) (runner, error) { return volumeexpand.New(d.env) }},
		{name: "volumeattributesclass-protection-controller", user: "volumeattributesclass-protection-controller", source: "volumeattributesclass-protection-controller", workers: 1,
			needs: append([]schema.GroupVersionResource{storagev1.SchemeGroupVersion.WithResource("volumeattributesclasses")}, volumeKinds...),
			make:  func(d *deps) (runner, error) { return volumeprotection.NewClasses(d.env) }},
		{name: "disruption-controller", alias: "disruption", user: "disruption-controller", source: "controllermanager", workers: 5,
			needs: []schema.GroupVersionResource{policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets"), appsv1.SchemeGroupVersion.WithResource("statefulsets"), corev1.SchemeGroupVersion.WithResource("replicationcontrollers")},
			make: func(d *deps) (runner, error) {
				return disruption.New(d.env, disruption.DiscoveredScales{Discovery: d.clients.Kube.Discovery()})
			}},
		{name: "validatingadmissionpolicy-status-controller", user: "validatingadmissionpolicy-status-controller", source: "validatingadmissionpolicy-status-controller", workers: 5,
			needs: []schema.GroupVersionResource{admissionregistrationv1.SchemeGroupVersion.WithResource("validatingadmissionpolicies")},
			make: func(d *deps) (runner, error) {
				return validatingadmissionpolicystatus.New(d.env, d.clients.Kube.Discovery())
			}},
	}, append(certificateDescriptors(), autoscalingDescriptors()...)...)
}

// forceDetach is the time after which a volume is detached from an unresponsive node that still reports it as in use.
// It is upstream's.
const forceDetach = 6 * time.Minute

// volumeKinds are the resources that all volume controllers need. The controllers run only if the API server serves
// these.
var volumeKinds = []schema.GroupVersionResource{
	corev1.SchemeGroupVersion.WithResource("persistentvolumes"), corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"),
	storagev1.SchemeGroupVersion.WithResource("storageclasses"),
}

// makeNodeIPAM creates the node IPAM controller, or returns nil if pod CIDRs are not to be allocated.
func makeNodeIPAM(d *deps) (runner, error) {
	if !d.AllocateNodeCIDRs {
		return nil, nil
	}
	return nodeipam.New(d.env, nodeipam.Config{
		ClusterCIDRs: d.ClusterCIDRs,
		MaskSizeIPv4: d.NodeCIDRMaskSizeIPv4,
		MaskSizeIPv6: d.NodeCIDRMaskSizeIPv6,
		Reserved:     d.ServiceCIDRs,
	})
}

// chooseControllers returns the controllers that the values of the --controllers flag select, in the order of
// descriptors. The prefix "-" excludes a controller. An empty list means "*". Names of controllers that only upstream
// has are ignored; other unknown names are an error.
func chooseControllers(flag []string) ([]descriptor, error) {
	if len(flag) == 0 {
		flag = []string{"*"}
	}
	all := descriptors()
	known := map[string]string{"*": "*"}
	for _, d := range all {
		known[d.name] = d.name
		if d.alias != "" {
			known[d.alias] = d.name
		}
	}
	on := map[string]bool{}
	off := map[string]bool{}
	for _, f := range flag {
		f = strings.TrimSpace(f)
		bare, minus := strings.CutPrefix(f, "-")
		name, ok := known[bare]
		if !ok || minus && name == "*" {
			if upstreamOnly[bare] {
				continue
			}
			return nil, fmt.Errorf("%q is not in the list of known controllers", bare)
		}
		if minus {
			off[name] = true
		} else {
			on[name] = true
		}
	}
	var chosen []descriptor
	for _, d := range all {
		if off[d.name] {
			continue
		}
		if on[d.name] || on["*"] && !d.offByDefault {
			chosen = append(chosen, d)
		}
	}
	return chosen, nil
}

// upstreamOnly are names of upstream's controllers that do not exist here. They are accepted in
// --controllers, so that existing manifests work.
var upstreamOnly = map[string]bool{
	"service": true, "service-lb-controller": true,
	"route": true, "node-route-controller": true,
	"cloud-node-lifecycle": true, "cloud-node-lifecycle-controller": true,
	"storage-version-gc": true, "storageversion-garbage-collector-controller": true,
	"selinux-warning-controller": true,
}

// knownControllers returns the sorted names of all controllers, and of those that "*" does not include, for the help
// text.
func knownControllers() (all, off []string) {
	for _, d := range descriptors() {
		all = append(all, d.name)
		if d.offByDefault {
			off = append(off, d.name)
		}
	}
	slices.Sort(all)
	slices.Sort(off)
	return all, off
}
