package kubelet

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"hyperkube/components/kubelet/pods"
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
	if pods.IsStatic(pod) {
		return nil
	}
	if node := k.keeper.Node(); node != nil {
		if ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err == nil && !ok {
			return refuse("NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector")
		}
	}
	for _, o := range others {
		if portsClash(pod, o) {
			return refuse("NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports")
		}
	}
	allocatable := k.host.Allocatable()
	if n := allocatable.Pods().Value(); int64(len(others))+1 > n {
		return refuse("OutOfpods", fmt.Sprintf("Node didn't have enough resource: pods, requested: 1, used: %d, capacity: %d", len(others), n))
	}
	want := corev1helpers.PodRequests(pod, corev1helpers.PodResourcesOptions{})
	for _, name := range slices.Sorted(maps.Keys(want)) {
		need, all := want[name], allocatable[name]
		if need.IsZero() || !fixedResource(name) {
			// Extended resources are looked after by their own managers.
			continue
		}
		value := func(l v1.ResourceList) int64 {
			q := l[name]
			if name == v1.ResourceCPU {
				return q.MilliValue()
			}
			return q.Value()
		}
		used := int64(0)
		for _, o := range others {
			used += value(corev1helpers.PodRequests(o, corev1helpers.PodResourcesOptions{}))
		}
		have := value(v1.ResourceList{name: all})
		if asked := value(want); used+asked > have {
			return refuse("OutOf"+string(name), fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", name, asked, used, have))
		}
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
