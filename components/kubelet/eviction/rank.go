package eviction

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Usage is what one container uses, or a pod beyond its containers.
type Usage struct {
	Name string // of the container
	// Memory is the working set in bytes, Disk what was written to layers and
	// logs in bytes.
	Memory, Disk, Inodes int64
}

// Candidate is a pod that may have to go, and what it uses.
type Candidate struct {
	Pod        *v1.Pod
	Containers []Usage
	// Memory, Disk, Inodes and Processes are the whole pod's, volumes included.
	Memory, Disk, Inodes, Processes int64
	// Measured: the usage is known. A pod of which nothing is known goes first.
	Measured bool
}

func (c *Candidate) usage(short v1.ResourceName) int64 {
	switch short {
	case v1.ResourceMemory:
		return c.Memory
	case v1.ResourceEphemeralStorage:
		return c.Disk
	case ResourceInodes:
		return c.Inodes
	case ResourcePIDs:
		return c.Processes
	}
	return 0
}

// over is how much more the pod uses than it asked for.
func (c *Candidate) over(short v1.ResourceName) int64 {
	used := c.usage(short)
	if short == v1.ResourceMemory || short == v1.ResourceEphemeralStorage {
		q := resourcehelper.PodRequests(c.Pod, resourcehelper.PodResourcesOptions{})[short]
		used -= q.Value()
	}
	return used
}

// Rank sorts so that the pod that is to go first comes first: those that use
// more than they asked for, then the lower priority, then what exceeds its
// request most. Process numbers and inodes cannot be asked for.
func Rank(list []*Candidate, short v1.ResourceName) {
	slices.SortStableFunc(list, func(a, b *Candidate) int {
		if a.Measured != b.Measured {
			return yesFirst(!a.Measured)
		}
		if short != ResourcePIDs {
			if x, y := a.over(short) > 0, b.over(short) > 0; x != y {
				return yesFirst(x)
			}
		}
		if n := cmp.Compare(priority(a.Pod), priority(b.Pod)); n != 0 {
			return n
		}
		return cmp.Compare(b.over(short), a.over(short))
	})
}

func yesFirst(yes bool) int {
	if yes {
		return -1
	}
	return 1
}

func priority(p *v1.Pod) int32 {
	if p.Spec.Priority == nil {
		return 0
	}
	return *p.Spec.Priority
}

// Annotations of the event of an eviction.
const (
	offendingKey = "offending_containers"
	usageKey     = "offending_containers_usage"
	starvedKey   = "starved_resource"
)

// explain is the message and the event's annotations of an eviction.
func explain(c *Candidate, t Threshold, now map[Signal]Observation) (string, map[string]string) {
	short := signals[t.Signal].resource
	var b strings.Builder
	fmt.Fprintf(&b, "The node was low on resource: %v. ", short)
	if o, ok := now[t.Signal]; ok {
		fmt.Fprintf(&b, "Threshold quantity: %v, available: %v. ", t.Value.quantity(o.Capacity), amount(short, o.Available))
	}
	var names, uses []string
	for _, u := range c.Containers {
		spec := container(c.Pod, u.Name)
		if spec == nil {
			continue
		}
		var used int64
		switch short {
		case v1.ResourceMemory:
			used = u.Memory
		case v1.ResourceEphemeralStorage:
			used = u.Disk
		default:
			continue
		}
		asked := spec.Resources.Requests[short]
		if used > asked.Value() {
			fmt.Fprintf(&b, "Container %s was using %s, request is %s, has larger consumption of %v. ", u.Name, amount(short, used), asked.String(), short)
			names, uses = append(names, u.Name), append(uses, amount(short, used).String())
		}
	}
	return b.String(), map[string]string{
		offendingKey: strings.Join(names, ","), usageKey: strings.Join(uses, ","), starvedKey: string(short),
	}
}

// amount is shown as the kubelet's own statistics are.
func amount(short v1.ResourceName, n int64) *resource.Quantity {
	if short == ResourceInodes || short == ResourcePIDs {
		return resource.NewQuantity(n, resource.DecimalSI)
	}
	return resource.NewQuantity(n, resource.BinarySI)
}

func container(pod *v1.Pod, name string) *v1.Container {
	for _, list := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}
