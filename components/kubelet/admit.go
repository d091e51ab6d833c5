package kubelet

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"regexp"
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

	"hyperkube/components/kubelet/pods"
	"hyperkube/components/kubelet/preemption"
	"hyperkube/components/kubelet/shutdown"
	"hyperkube/internal/podfacts"
)

// safeSysctls may be set by any pod: they are the pod's own.
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

// admit decides whether a pod that is new to this node may run, and gives it
// what it has for itself. The end of ctx is that of the kubelet: nobody is waited for then.
func (k *Kubelet) admit(ctx context.Context, pod *v1.Pod, others []*v1.Pod) *pods.Verdict {
	if v := k.fits(ctx, pod, others); v != nil {
		return v
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), allocateWithin)
	defer cancel()
	return k.allocate(ctx, pod)
}

// allocateWithin bounds how long plugins may take to give devices.
const allocateWithin = 30 * time.Second

// fits decides whether a pod that is new to this node may run: someone may
// have bound it without asking the scheduler, or two at once for one place.
func (k *Kubelet) fits(ctx context.Context, pod *v1.Pod, others []*v1.Pod) *pods.Verdict {
	refuse := func(reason, message string) *pods.Verdict {
		return &pods.Verdict{Reason: reason, Message: message}
	}
	if k.shutdown != nil && k.shutdown.Down() {
		return refuse(shutdown.RefusedReason, shutdown.RefusedMessage)
	}
	if message := k.eviction.Refuse(pod, pods.QOS(pod)); message != "" {
		return refuse("Evicted", message)
	}
	if sc := pod.Spec.SecurityContext; sc != nil {
		for _, s := range sc.Sysctls {
			if why := k.forbidden(pod, s.Name); why != "" {
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
	if v := k.confined(pod); v != nil {
		return v
	}
	if node := k.keeper.Node(); node != nil {
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
	if node := k.keeper.Node(); node != nil && !pods.IsStatic(pod) && unbearable(pod, node.Spec.Taints) {
		return refuse("TaintToleration", "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate")
	}
	missing := k.insufficient(pod, others)
	if len(missing) == 0 {
		return nil
	}
	if pods.IsCritical(pod) {
		if err := k.preempt(ctx, pod, others, missing); err != nil {
			return refuse("UnexpectedAdmissionError", noRecovery+err.Error())
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

// newestNode asks the API server for the Node: pods and the Node are followed apart,
// and one that suits the labels that the Node has just got may come before them. It is
// nil when there is no answer.
func (k *Kubelet) newestNode() *v1.Node {
	if k.kube == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), askWithin)
	defer cancel()
	node, err := k.kube.CoreV1().Nodes().Get(ctx, k.cfg.NodeName, metav1.GetOptions{})
	if err != nil {
		k.log.Warn("asking for the node failed", "error", err)
		return nil
	}
	k.keeper.Observe(node)
	return node
}

// askWithin bounds how long the API server may take to tell of the Node.
const askWithin = 10 * time.Second

// unbearable tells whether the pod does not tolerate a taint for which it would be
// evicted at once.
func unbearable(pod *v1.Pod, taints []v1.Taint) bool {
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

// shortage is what of a resource a pod wants and cannot have: in millicores,
// bytes, or pods.
type shortage struct {
	preemption.Requirement
	requested, used, capacity int64
}

// insufficient are the resources that a pod does not fit by, beside others.
func (k *Kubelet) insufficient(pod *v1.Pod, others []*v1.Pod) []shortage {
	var out []shortage
	look := func(name v1.ResourceName, requested, used, capacity int64) {
		if lacks := used + requested - capacity; lacks > 0 {
			out = append(out, shortage{preemption.Requirement{Name: name, Quantity: lacks}, requested, used, capacity})
		}
	}
	allocatable := k.host.Allocatable()
	look(v1.ResourcePods, 1, int64(len(others)), allocatable.Pods().Value())
	want := corev1helpers.PodRequests(pod, corev1helpers.PodResourcesOptions{})
	for _, name := range slices.Sorted(maps.Keys(want)) {
		all := allocatable[name]
		if !fixedResource(name) {
			// What plugins and drivers have is looked after by their own managers.
			q, has := k.announced(name)
			if !has || claimed(pod, name) {
				continue
			}
			all = q
		}
		if need := want[name]; need.IsZero() {
			continue
		}
		used := int64(0)
		for _, o := range others {
			if fixedResource(name) || !claimed(o, name) {
				used += preemption.Request(o, name)
			}
		}
		look(name, preemption.Request(pod, name), used, preemption.Amount(name, all))
	}
	return out
}

// announced is how much there is of an extended resource that somebody else than a
// device plugin has written into the Node.
func (k *Kubelet) announced(name v1.ResourceName) (q resource.Quantity, has bool) {
	node := k.keeper.Node()
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

// claimed tells whether a pod has an extended resource by a claim for devices.
func claimed(pod *v1.Pod, name v1.ResourceName) bool {
	s := pod.Status.ExtendedResourceClaimStatus
	return s != nil && slices.ContainsFunc(s.RequestMappings, func(m v1.ContainerExtendedResourceRequest) bool { return m.ResourceName == string(name) })
}

// noRecovery begins the message of a critical pod that no others make room for.
const noRecovery = "Unexpected error while attempting to recover from admission failure: "

// makeRoom is as pods.Resizing.MakeRoom.
func (k *Kubelet) makeRoom(ctx context.Context, pod *v1.Pod, message string) (made bool, why string) {
	if !pods.IsCritical(pod) {
		return false, message
	}
	others := k.manager.Others(pod.UID)
	missing := k.insufficient(pod, others)
	if len(missing) == 0 {
		return false, message // it is others' turn, who go before it
	}
	if err := k.preempt(ctx, pod, others, missing); err != nil {
		return false, noRecovery + err.Error()
	}
	if ctx.Err() != nil {
		return false, message
	}
	return true, ""
}

// preemptWithin is how long pods are awaited that make room, beyond the time that
// they may take to end.
const preemptWithin = 10 * time.Second

// preempt ends pods so that a critical one has room, and waits for their end, until that of
// ctx.
func (k *Kubelet) preempt(ctx context.Context, pod *v1.Pod, others []*v1.Pod, missing []shortage) error {
	var need []preemption.Requirement
	for _, m := range missing {
		need = append(need, m.Requirement)
	}
	victims, err := preemption.Choose(pod, others, need, pods.IsCritical, pods.QOS)
	if err != nil {
		return fmt.Errorf("preemption: error finding a set of pods to preempt: %w", err)
	}
	for _, v := range victims {
		k.log.Info("ending a pod to make room for a critical one", "pod", v.Namespace+"/"+v.Name, "for", pod.Namespace+"/"+pod.Name)
		k.host.Events.Event(v, v1.EventTypeWarning, preemption.Reason, preemption.Message)
		k.metrics.Preempted(string(need[0].Name))
		k.manager.End(v.UID, &pods.Verdict{Reason: preemption.Reason, Message: preemption.Message, Discard: true, Conditions: []v1.PodCondition{{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet,
			Message: "Pod was preempted by Kubelet to accommodate a critical pod.",
		}}})
	}
	for _, v := range victims {
		wait := preemptWithin
		if grace := v.Spec.TerminationGracePeriodSeconds; grace != nil {
			wait += time.Duration(*grace) * time.Second
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-k.manager.Cleaned(v.UID):
		case <-timer.C:
			k.log.Warn("a pod that makes room does not end", "pod", v.Namespace+"/"+v.Name)
		}
		timer.Stop()
	}
	return nil
}

// fixedResource tells whether a node has as much of a resource as its hardware.
func fixedResource(name v1.ResourceName) bool {
	switch name {
	case v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage:
		return true
	}
	return strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
}

// portsClash tells whether two pods want the same port of the host: of one
// protocol, and at one address or at all of them.
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

// hostPorts gives the ports of the host that a pod's containers and sidecars
// take, with their defaults.
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
			if podfacts.Sidecar(c) && !take(c.Ports) {
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

// forbidden says why a pod may not have a setting of the kernel; empty if it may. One
// that is shared with the host is not a pod's to set.
func (k *Kubelet) forbidden(pod *v1.Pod, name string) string {
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

// allowable checks what allowedUnsafeSysctls names: settings, or beginnings of names,
// that are not the whole machine's.
func allowable(names []string) error {
	var errs []error
	for _, name := range names {
		if len(name) > sysctlMost || !sysctlPattern.MatchString(name) {
			errs = append(errs, fmt.Errorf("allowedUnsafeSysctls: sysctl %q must have at most %d characters and match regex %s", name, sysctlMost, sysctlPattern))
		} else if space, prefix, _ := sysctl.GetNamespace(name); space == sysctl.UnknownNamespace {
			errs = append(errs, fmt.Errorf("allowedUnsafeSysctls: the sysctls %q are not known to be namespaced", prefix))
		}
	}
	return errors.Join(errs...)
}

const sysctlMost = 253

var sysctlPattern = regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*([a-z0-9][-_a-z0-9]*)?[a-z0-9*]$`)
