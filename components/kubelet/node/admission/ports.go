package admission

import (
	"iter"

	"k8s.io/api/core/v1"

	"hyperkube/internal/pod/podutil"
)

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

// anyAddress is the host IP of ports that are bound to all addresses.
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
