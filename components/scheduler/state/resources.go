package state

import (
	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/resource"

	"hyperkube/internal/pod/podutil"
)

// Resources are amounts of resources: CPU in milli-CPUs, memory and ephemeral storage in bytes, and others as counts or
// bytes.
type Resources struct {
	CPU, Memory, Ephemeral, Pods int64
	// Scalar contains huge pages and extended resources; nil if there are none.
	Scalar map[corev1.ResourceName]int64
}

// fromList converts a Kubernetes resource list to Resources.
func fromList(list corev1.ResourceList) Resources {
	var r Resources
	for name, q := range list {
		switch name {
		case corev1.ResourceCPU:
			r.CPU = q.MilliValue()
		case corev1.ResourceMemory:
			r.Memory = q.Value()
		case corev1.ResourceEphemeralStorage:
			r.Ephemeral = q.Value()
		case corev1.ResourcePods:
			r.Pods = q.Value()
		default:
			if r.Scalar == nil {
				r.Scalar = map[corev1.ResourceName]int64{}
			}
			r.Scalar[name] = q.Value()
		}
	}
	return r
}

// Get returns the amount of a resource, or 0 if there is none.
func (r *Resources) Get(name corev1.ResourceName) int64 {
	switch name {
	case corev1.ResourceCPU:
		return r.CPU
	case corev1.ResourceMemory:
		return r.Memory
	case corev1.ResourceEphemeralStorage:
		return r.Ephemeral
	case corev1.ResourcePods:
		return r.Pods
	}
	return r.Scalar[name]
}

// Covers reports whether no amount in o is greater than that in r.
func (r *Resources) Covers(o Resources) bool {
	for name, v := range o.Scalar {
		if v > r.Scalar[name] {
			return false
		}
	}
	return o.CPU <= r.CPU && o.Memory <= r.Memory && o.Ephemeral <= r.Ephemeral && o.Pods <= r.Pods
}

// Add adds the amounts in o, multiplied by sign, which is 1 or -1.
func (r *Resources) Add(o Resources, sign int64) {
	r.CPU += sign * o.CPU
	r.Memory += sign * o.Memory
	r.Ephemeral += sign * o.Ephemeral
	r.Pods += sign * o.Pods
	for name, v := range o.Scalar {
		if r.Scalar == nil {
			r.Scalar = map[corev1.ResourceName]int64{}
		}
		r.Scalar[name] += sign * v
	}
}

// The default requests of containers that request no CPU or memory: a tenth of a CPU and 200 MiB. They are only used
// for scores. These are upstream's values.
const (
	defaultMilliCPU = 100
	defaultMemory   = 200 * 1024 * 1024
)

// NewPod returns a Pod with the properties of obj that the scheduler needs, which it computes once. The Pod is not in a
// State; see SetPod. It refers to obj and does not modify it.
func NewPod(obj *corev1.Pod) *Pod {
	p := &Pod{Object: obj, Terms: newTerms(obj), Priority: podutil.Priority(obj)}
	p.key = classKey(obj, p.Terms)
	bound := obj.Spec.NodeName != ""
	p.Requests = fromList(resource.PodRequests(obj, resource.PodResourcesOptions{
		UseStatusResources: bound, InPlacePodLevelResourcesVerticalScalingEnabled: bound,
	}))
	p.Requests.Pods = 1
	assumed := &p.Requests
	if !requestsAll(obj) {
		list := fromList(resource.PodRequests(obj, resource.PodResourcesOptions{
			UseStatusResources: bound, InPlacePodLevelResourcesVerticalScalingEnabled: bound,
			NonMissingContainerRequests: corev1.ResourceList{
				corev1.ResourceCPU:    *resourceMilli(defaultMilliCPU),
				corev1.ResourceMemory: *resourceBytes(defaultMemory),
			},
		}))
		assumed = &list
	}
	p.NonZeroCPU, p.NonZeroMemory = assumed.CPU, assumed.Memory
	for _, containers := range [][]corev1.Container{obj.Spec.Containers, obj.Spec.InitContainers} {
		for i := range containers {
			c := &containers[i]
			for _, port := range c.Ports {
				if port.HostPort <= 0 {
					continue
				}
				ip := port.HostIP
				if ip == "" {
					ip = "0.0.0.0"
				}
				protocol := port.Protocol
				if protocol == "" {
					protocol = corev1.ProtocolTCP
				}
				p.Ports = append(p.Ports, Port{IP: ip, Protocol: protocol, Port: port.HostPort})
			}
		}
	}
	return p
}

// requestsAll reports whether every container of a pod requests CPU and memory, so that no defaults
// are needed. It returns false for pods with a container status, whose resources may differ from
// the spec.
func requestsAll(pod *corev1.Pod) bool {
	if len(pod.Status.ContainerStatuses)+len(pod.Status.InitContainerStatuses) > 0 {
		return false
	}
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range containers {
			asked := containers[i].Resources.Requests
			_, cpu := asked[corev1.ResourceCPU]
			_, memory := asked[corev1.ResourceMemory]
			if !cpu || !memory {
				return false
			}
		}
	}
	return true
}

// Conflicts reports whether a pod on the node uses the host port, on the same address or on all addresses.
func (n *Node) Conflicts(port Port) bool {
	if len(n.Ports) == 0 {
		return false
	}
	if port.IP != "0.0.0.0" {
		all := port
		all.IP = "0.0.0.0"
		return n.Ports[port] > 0 || n.Ports[all] > 0
	}
	for taken := range n.Ports {
		if taken.Protocol == port.Protocol && taken.Port == port.Port {
			return true
		}
	}
	return false
}

// resourceMilli returns v thousandths, such as millicores, as a quantity.
func resourceMilli(v int64) *apiresource.Quantity {
	return apiresource.NewMilliQuantity(v, apiresource.DecimalSI)
}

// resourceBytes returns v bytes as a quantity.
func resourceBytes(v int64) *apiresource.Quantity {
	return apiresource.NewQuantity(v, apiresource.BinarySI)
}
