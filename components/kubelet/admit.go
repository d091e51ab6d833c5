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
	corev1helpers "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"hyperkube/components/kubelet/pods"
	"hyperkube/components/kubelet/preemption"
	"hyperkube/components/kubelet/shutdown"
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
}

// admit decides whether a pod that is new to this node may run, and gives it
// what it has for itself.
func (k *Kubelet) admit(pod *v1.Pod, others []*v1.Pod) *pods.Verdict {
	if v := k.fits(pod, others); v != nil {
		return v
	}
	ctx, cancel := context.WithTimeout(context.Background(), allocateWithin)
	defer cancel()
	return k.allocate(ctx, pod)
}

// allocateWithin bounds how long plugins may take to give devices.
const allocateWithin = 30 * time.Second

// fits decides whether a pod that is new to this node may run: someone may
// have bound it without asking the scheduler, or two at once for one place.
func (k *Kubelet) fits(pod *v1.Pod, others []*v1.Pod) *pods.Verdict {
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
			if !k.sysctlAllowed(s.Name) {
				return refuse("SysctlForbidden", fmt.Sprintf("forbidden sysctl: %q not allowlisted", s.Name))
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
	if pods.IsStatic(pod) {
		return nil
	}
	if node := k.keeper.Node(); node != nil {
		if sc := pod.Spec.SecurityContext; sc != nil && sc.SupplementalGroupsPolicy != nil && *sc.SupplementalGroupsPolicy == v1.SupplementalGroupsPolicyStrict {
			if f := node.Status.Features; f == nil || f.SupplementalGroupsPolicy == nil || !*f.SupplementalGroupsPolicy {
				return refuse("SupplementalGroupsPolicyNotSupported", "SupplementalGroupsPolicy=Strict is not supported in this node")
			}
		}
		if ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err == nil && !ok {
			return refuse("NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector")
		}
	}
	for _, o := range others {
		if portsClash(pod, o) {
			return refuse("NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports")
		}
	}
	if node := k.keeper.Node(); node != nil && unbearable(pod, node.Spec.Taints) {
		return refuse("TaintToleration", "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate")
	}
	missing := k.insufficient(pod, others)
	if len(missing) == 0 {
		return nil
	}
	if critical(pod) {
		if err := k.preempt(pod, others, missing); err != nil {
			return refuse("UnexpectedAdmissionError", "Unexpected error while attempting to recover from admission failure: "+err.Error())
		}
		return nil
	}
	m := missing[0]
	return refuse("OutOf"+string(m.Name), fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", m.Name, m.requested, m.used, m.capacity))
}

// unbearable tells whether the pod does not tolerate a taint for which it would be
// evicted at once.
func unbearable(pod *v1.Pod, taints []v1.Taint) bool {
	for i := range taints {
		tolerated := taints[i].Effect != v1.TaintEffectNoExecute || slices.ContainsFunc(pod.Spec.Tolerations, func(t v1.Toleration) bool {
			return t.ToleratesTaint(klog.Background(), &taints[i], true)
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
		if need := want[name]; need.IsZero() || !fixedResource(name) {
			// Extended resources are looked after by their own managers.
			continue
		}
		used := int64(0)
		for _, o := range others {
			used += preemption.Request(o, name)
		}
		all := allocatable[name]
		look(name, preemption.Request(pod, name), used, preemption.Amount(name, all))
	}
	return out
}

// preemptWithin is how long pods are awaited that make room, beyond the time that
// they may take to end.
const preemptWithin = 10 * time.Second

// preempt ends pods so that a critical one has room, and waits for their end.
func (k *Kubelet) preempt(pod *v1.Pod, others []*v1.Pod, missing []shortage) error {
	var need []preemption.Requirement
	for _, m := range missing {
		need = append(need, m.Requirement)
	}
	victims, err := preemption.Choose(pod, others, need, critical, pods.QOS)
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
			if c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways && !take(c.Ports) {
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

func (k *Kubelet) sysctlAllowed(name string) bool {
	name = strings.ReplaceAll(name, "/", ".")
	if safeSysctls[name] {
		return true
	}
	for _, allowed := range k.cfg.AllowedUnsafeSysctls {
		if prefix, ok := strings.CutSuffix(allowed, "*"); ok && strings.HasPrefix(name, prefix) || allowed == name {
			return true
		}
	}
	return false
}
