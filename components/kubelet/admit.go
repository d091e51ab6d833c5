package kubelet

import (
	"context"
	"fmt"
	"iter"
	"maps"
	goruntime "runtime"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/node/util/sysctl"
	corev1helpers "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"hyperkube/components/kubelet/node/preemption"
	"hyperkube/components/kubelet/node/shutdown"
	"hyperkube/components/kubelet/pod/pods"
	"hyperkube/internal/pod/podutil"
)

// safeSysctls are the namespaced sysctls that any pod may set.
//
// https://kubernetes.io/docs/tasks/administer-cluster/sysctl-cluster/
var safeSysctls = map[string]bool{
	"kernel.shm_rmid_forced":              true,
	"net.ipv4.ip_local_port_range":        true,
	"net.ipv4.tcp_syncookies":             true,
	"net.ipv4.ping_group_range":           true,
	"net.ipv4.ip_unprivileged_port_start": true,
	"net.ipv4.ip_local_reserved_ports":    true,
	"net.ipv4.tcp_keepalive_time":         true,
	"net.ipv4.tcp_fin_timeout":            true,
	"net.ipv4.tcp_keepalive_intvl":        true,
	"net.ipv4.tcp_keepalive_probes":       true,
	"net.ipv4.tcp_rmem":                   true,
	"net.ipv4.tcp_wmem":                   true,
	"net.ipv4.tcp_slow_start_after_idle":  true,
	"net.ipv4.tcp_notsent_lowat":          true,
}

// admit decides whether a pod that is new to this node may run, and allocates its devices, CPUs and
// memory. A nil result admits the pod. When ctx is cancelled the kubelet is shutting down, so
// admission does not wait for preemption victims.
func (k *Kubelet) admit(ctx context.Context, pod *v1.Pod, others []*v1.Pod) *pods.Verdict {
	if v := k.checkFit(ctx, pod, others); v != nil {
		return v
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), allocateTimeout)
	defer cancel()
	return k.allocate(ctx, pod)
}

// allocateTimeout is the timeout for plugins to allocate devices.
const allocateTimeout = 30 * time.Second

// checkFit runs the admission checks for a pod that is new to this node. The checks repeat the
// scheduler's because a pod can be bound without the scheduler, and two pods can be bound
// concurrently to the same free resources.
func (k *Kubelet) checkFit(ctx context.Context, pod *v1.Pod, others []*v1.Pod) *pods.Verdict {
	refuse := func(reason, message string) *pods.Verdict {
		return &pods.Verdict{Reason: reason, Message: message}
	}
	if k.shutdown != nil && k.shutdown.Down() {
		return refuse(shutdown.RefusedReason, shutdown.RefusedMessage)
	}
	if message := k.eviction.Reject(pod, pods.QOS(pod)); message != "" {
		return refuse("Evicted", message)
	}
	if sc := pod.Spec.SecurityContext; sc != nil {
		for _, s := range sc.Sysctls {
			if why := k.forbiddenSysctl(pod, s.Name); why != "" {
				return refuse("SysctlForbidden", "forbidden sysctl: "+why)
			}
		}
	}
	if want, said := pod.Labels[v1.LabelOSStable]; said && want != goruntime.GOOS {
		return refuse("PodOSSelectorNodeLabelDoesNotMatch", "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label")
	}
	if pod.Spec.OS != nil && string(pod.Spec.OS.Name) != goruntime.GOOS {
		return refuse("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS")
	}
	if v := k.admitAppArmor(pod); v != nil {
		return v
	}
	if node := k.nodeStatus.Node(); node != nil {
		if sc := pod.Spec.SecurityContext; sc != nil && sc.SupplementalGroupsPolicy != nil && *sc.SupplementalGroupsPolicy == v1.SupplementalGroupsPolicyStrict {
			if f := node.Status.Features; f == nil || f.SupplementalGroupsPolicy == nil || !*f.SupplementalGroupsPolicy {
				return refuse("SupplementalGroupsPolicyNotSupported", "SupplementalGroupsPolicy=Strict is not supported in this node")
			}
		}
		if !attracted(pod, node) && !attracted(pod, k.newestNode()) {
			return refuse("NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector")
		}
	}
	for _, o := range others {
		if portsClash(pod, o) {
			return refuse("NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports")
		}
	}
	if node := k.nodeStatus.Node(); node != nil && !pods.IsStatic(pod) && hasUntoleratedNoExecuteTaint(pod, node.Spec.Taints) {
		return refuse("TaintToleration", "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate")
	}
	missing := k.insufficientResources(pod, others)
	if len(missing) == 0 {
		return nil
	}
	if pods.IsCritical(pod) {
		if err := k.preempt(ctx, pod, others, missing); err != nil {
			return refuse("UnexpectedAdmissionError", preemptionFailedPrefix+err.Error())
		}
		return nil
	}
	m := missing[0]
	return refuse("OutOf"+string(m.Name), fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", m.Name, m.requested, m.used, m.capacity))
}

func attracted(pod *v1.Pod, node *v1.Node) bool {
	if node == nil {
		return false
	}
	ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	return ok || err != nil
}

// newestNode gets the Node from the API server. Pods and the Node are watched separately, so a pod
// that matches newly added labels can arrive before the Node update. newestNode returns nil on
// failure.
func (k *Kubelet) newestNode() *v1.Node {
	if k.kube == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), getNodeTimeout)
	defer cancel()
	node, err := k.kube.CoreV1().Nodes().Get(ctx, k.cfg.NodeName, metav1.GetOptions{})
	if err != nil {
		k.log.Warn("getting the node failed", "err", err)
		return nil
	}
	k.nodeStatus.Observe(node)
	return node
}

// getNodeTimeout is the timeout for the API server to return the Node.
const getNodeTimeout = 10 * time.Second

// hasUntoleratedNoExecuteTaint reports whether the pod does not tolerate a NoExecute taint and would be evicted
// immediately.
func hasUntoleratedNoExecuteTaint(pod *v1.Pod, taints []v1.Taint) bool {
	for i := range taints {
		tolerated := taints[i].Effect != v1.TaintEffectNoExecute || slices.ContainsFunc(pod.Spec.Tolerations, func(t v1.Toleration) bool {
			return t.ToleratesTaint(klog.Background(), &taints[i], false)
		})
		if !tolerated {
			return true
		}
	}
	return false
}

// insufficientResource describes a resource of which the node has too little for a pod. Quantities are in
// millicores, bytes or pods.
type insufficientResource struct {
	preemption.Requirement
	requested, used, capacity int64
}

// insufficientResources returns the resources that are insufficient for pod when the pods in others already
// run on the node.
func (k *Kubelet) insufficientResources(pod *v1.Pod, others []*v1.Pod) []insufficientResource {
	var out []insufficientResource
	look := func(name v1.ResourceName, requested, used, capacity int64) {
		if lacks := used + requested - capacity; lacks > 0 {
			out = append(out, insufficientResource{preemption.Requirement{Name: name, Quantity: lacks}, requested, used, capacity})
		}
	}
	allocatable := k.host.Node.Allocatable()
	look(v1.ResourcePods, 1, int64(len(others)), allocatable.Pods().Value())
	want := corev1helpers.PodRequests(pod, corev1helpers.PodResourcesOptions{})
	for _, name := range slices.Sorted(maps.Keys(want)) {
		all := allocatable[name]
		if !fixedResource(name) {
			// Resources of device plugins and DRA drivers are checked by their own managers.
			q, has := k.nonPluginExtendedResource(name)
			if !has || providedByClaim(pod, name) {
				continue
			}
			all = q
		}
		if need := want[name]; need.IsZero() {
			continue
		}
		used := int64(0)
		for _, o := range others {
			if fixedResource(name) || !providedByClaim(o, name) {
				used += preemption.Request(o, name)
			}
		}
		look(name, preemption.Request(pod, name), used, preemption.Amount(name, all))
	}
	return out
}

// nonPluginExtendedResource returns the allocatable quantity of an extended resource that a component other than a
// device plugin has set in the Node's status.
func (k *Kubelet) nonPluginExtendedResource(name v1.ResourceName) (q resource.Quantity, has bool) {
	node := k.nodeStatus.Node()
	if node == nil {
		return q, false
	}
	if of, _ := k.deviceCapacity(); of != nil {
		if _, plugged := of[name]; plugged {
			return q, false
		}
	}
	q, has = node.Status.Allocatable[name]
	return q, has
}

// providedByClaim reports whether a DRA claim provides the extended resource to the pod.
func providedByClaim(pod *v1.Pod, name v1.ResourceName) bool {
	s := pod.Status.ExtendedResourceClaimStatus
	return s != nil && slices.ContainsFunc(s.RequestMappings, func(m v1.ContainerExtendedResourceRequest) bool { return m.ResourceName == string(name) })
}

// preemptionFailedPrefix is the prefix of the message for a critical pod for which preemption fails.
const preemptionFailedPrefix = "Unexpected error while attempting to recover from admission failure: "

// admitter implements pods.Admitter.
type admitter struct{ k *Kubelet }

func (a admitter) Admit(ctx context.Context, pod *v1.Pod, others []*v1.Pod) *pods.Verdict {
	return a.k.admit(ctx, pod, others)
}

func (a admitter) PreemptForResize(ctx context.Context, pod *v1.Pod, message string) (freed bool, why string) {
	return a.k.preemptForResize(ctx, pod, message)
}

// preemptForResize implements pods.Admitter.
func (k *Kubelet) preemptForResize(ctx context.Context, pod *v1.Pod, message string) (made bool, why string) {
	if !pods.IsCritical(pod) {
		return false, message
	}
	others := k.pods.OtherPods(pod.UID)
	missing := k.insufficientResources(pod, others)
	if len(missing) == 0 {
		return false, message // other pods with higher precedence use the freed resources
	}
	if err := k.preempt(ctx, pod, others, missing); err != nil {
		return false, preemptionFailedPrefix + err.Error()
	}
	if ctx.Err() != nil {
		return false, message
	}
	return true, ""
}

// preemptTimeout is how long the kubelet waits for preemption victims, in addition to their
// termination grace period.
const preemptTimeout = 10 * time.Second

// preempt terminates pods to free resources for a critical pod, and waits until they have
// terminated or ctx is done.
func (k *Kubelet) preempt(ctx context.Context, pod *v1.Pod, others []*v1.Pod, missing []insufficientResource) error {
	var need []preemption.Requirement
	for _, m := range missing {
		need = append(need, m.Requirement)
	}
	victims, err := preemption.Choose(pod, others, need, pods.IsCritical, pods.QOS)
	if err != nil {
		return fmt.Errorf("preemption: error finding a set of pods to preempt: %w", err)
	}
	for _, v := range victims {
		k.log.Info("preempting pod for a critical pod", "pod", v.Namespace+"/"+v.Name, "preemptor", pod.Namespace+"/"+pod.Name)
		k.host.Events.Event(v, v1.EventTypeWarning, preemption.Reason, preemption.Message)
		k.metrics.Preempted(string(need[0].Name))
		k.pods.Terminate(v.UID, &pods.Verdict{Reason: preemption.Reason, Message: preemption.Message, Discard: true, Conditions: []v1.PodCondition{{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet,
			Message: "Pod was preempted by Kubelet to accommodate a critical pod.",
		}}})
	}
	for _, v := range victims {
		wait := preemptTimeout
		if grace := v.Spec.TerminationGracePeriodSeconds; grace != nil {
			wait += time.Duration(*grace) * time.Second
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-k.pods.Cleaned(v.UID):
		case <-timer.C:
			k.log.Warn("preemption victim did not terminate in time", "pod", v.Namespace+"/"+v.Name)
		}
		timer.Stop()
	}
	return nil
}

// fixedResource reports whether a resource's capacity is determined by the node's hardware.
func fixedResource(name v1.ResourceName) bool {
	switch name {
	case v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage:
		return true
	}
	return strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
}

// portsClash reports whether two pods use the same host port with the same protocol, at the same
// address or with one of them at all addresses.
func portsClash(a, b *v1.Pod) bool {
	for x := range hostPorts(a) {
		for y := range hostPorts(b) {
			if x.HostPort == y.HostPort && x.Protocol == y.Protocol && (x.HostIP == y.HostIP || x.HostIP == anyAddress || y.HostIP == anyAddress) {
				return true
			}
		}
	}
	return false
}

const anyAddress = "0.0.0.0"

// hostPorts iterates over the host ports of a pod's containers and sidecars, with defaults applied.
func hostPorts(pod *v1.Pod) iter.Seq[v1.ContainerPort] {
	return func(yield func(v1.ContainerPort) bool) {
		take := func(ports []v1.ContainerPort) bool {
			for _, p := range ports {
				if p.HostPort == 0 {
					continue
				}
				if p.HostIP == "" || p.HostIP == "::" {
					p.HostIP = anyAddress
				}
				if p.Protocol == "" {
					p.Protocol = v1.ProtocolTCP
				}
				if !yield(p) {
					return false
				}
			}
			return true
		}
		for i := range pod.Spec.InitContainers {
			c := &pod.Spec.InitContainers[i]
			if podutil.Sidecar(c) && !take(c.Ports) {
				return
			}
		}
		for i := range pod.Spec.Containers {
			if !take(pod.Spec.Containers[i].Ports) {
				return
			}
		}
	}
}

// forbiddenSysctl returns why a pod may not set a sysctl, or "" if it may. A pod cannot set a sysctl of a
// namespace that it shares with the host.
func (k *Kubelet) forbiddenSysctl(pod *v1.Pod, name string) string {
	name = sysctl.NormalizeName(name)
	allowed := safeSysctls[name] || slices.ContainsFunc(k.cfg.Containers.AllowedUnsafeSysctls, func(a string) bool {
		prefix, all := strings.CutSuffix(sysctl.NormalizeName(a), "*")
		return prefix == name || all && strings.HasPrefix(name, prefix)
	})
	if !allowed {
		return fmt.Sprintf("%q not allowlisted", name)
	}
	space, _, _ := sysctl.GetNamespace(name)
	shared := map[sysctl.Namespace]bool{
		sysctl.IPCNamespace: pod.Spec.HostIPC, sysctl.NetNamespace: pod.Spec.HostNetwork,
		sysctl.UserNamespace: pod.Spec.HostUsers == nil || *pod.Spec.HostUsers,
	}
	if shared[space] {
		return fmt.Sprintf("%q not allowed with host %s enabled", name, space)
	}
	return ""
}
