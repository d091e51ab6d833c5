package eviction

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"hyperkube/internal/podfacts"
)

// Files is how many bytes and inodes files take.
type Files struct{ Bytes, Inodes int64 }

// Usage is what one container uses.
type Usage struct {
	Name string // of the container
	// Memory is the working set in bytes.
	Memory int64
	// Layer is what was written to the container's own layer, Logs to its logs.
	Layer, Logs Files
}

// Candidate is a pod that may have to go, and what it uses.
type Candidate struct {
	Pod        *v1.Pod
	Containers []Usage
	// Memory and Processes are the whole pod's.
	Memory, Processes int64
	// Volumes are those on the node's disk.
	Volumes Files
	// Measured: the usage is known. A pod of which nothing is known goes first.
	Measured bool
}

func (c *Candidate) usage(short v1.ResourceName, of parts) int64 {
	switch short {
	case v1.ResourceMemory:
		return c.Memory
	case v1.ResourceEphemeralStorage:
		return c.files(of).Bytes
	case ResourceInodes:
		return c.files(of).Inodes
	case ResourcePIDs:
		return c.Processes
	}
	return 0
}

// files are those of the pod that count.
func (c *Candidate) files(of parts) Files {
	var sum Files
	add := func(counts bool, f Files) {
		if counts {
			sum.Bytes, sum.Inodes = sum.Bytes+f.Bytes, sum.Inodes+f.Inodes
		}
	}
	for _, u := range c.Containers {
		add(of.layers, u.Layer)
		add(of.logs, u.Logs)
	}
	add(of.volumes, c.Volumes)
	return sum
}

// over is how much more the pod uses than it asked for.
func (c *Candidate) over(short v1.ResourceName, of parts) int64 {
	used := c.usage(short, of)
	if short == v1.ResourceMemory || short == v1.ResourceEphemeralStorage {
		q := resourcehelper.PodRequests(c.Pod, resourcehelper.PodResourcesOptions{})[short]
		used -= q.Value()
	}
	return used
}

// rank sorts so that the pod that is to go first comes first: those that use
// more than they asked for, then the lower priority, then what exceeds its
// request most. Process numbers and inodes cannot be asked for. Of files those
// count that are on the file system of the signal.
func rank(list []*Candidate, signal Signal, disks Disks) {
	short, of := signals[signal].resource, disks.parts(signal)
	slices.SortStableFunc(list, func(a, b *Candidate) int {
		if a.Measured != b.Measured {
			return yesFirst(!a.Measured)
		}
		if short != ResourcePIDs {
			if x, y := a.over(short, of) > 0, b.over(short, of) > 0; x != y {
				return yesFirst(x)
			}
		}
		if n := cmp.Compare(podfacts.Priority(a.Pod), podfacts.Priority(b.Pod)); n != 0 {
			return n
		}
		return cmp.Compare(b.over(short, of), a.over(short, of))
	})
}

func yesFirst(yes bool) int {
	if yes {
		return -1
	}
	return 1
}

// Annotations of the event of an eviction.
const (
	offendingKey = "offending_containers"
	usageKey     = "offending_containers_usage"
	podKey       = "offending_pod"
	podUsageKey  = "offending_pod_usage"
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
	notes := map[string]string{}
	if !c.Measured {
		return b.String(), notes
	}
	if r := c.Pod.Spec.Resources; r != nil && short == v1.ResourceMemory {
		if asked, ok := r.Requests[short]; ok {
			used := amount(short, c.Memory).String()
			fmt.Fprintf(&b, "Pod %s was using %s, request is %s, has larger consumption of %v. ", c.Pod.Name, used, asked.String(), short)
			notes[podKey], notes[podUsageKey] = c.Pod.Name, used
		}
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
			used = u.Layer.Bytes + u.Logs.Bytes
		default:
			continue
		}
		asked := spec.Resources.Requests[short]
		if used > asked.Value() {
			fmt.Fprintf(&b, "Container %s was using %s, request is %s, has larger consumption of %v. ", u.Name, amount(short, used), asked.String(), short)
			names, uses = append(names, u.Name), append(uses, amount(short, used).String())
		}
	}
	notes[offendingKey], notes[usageKey], notes[starvedKey] = strings.Join(names, ","), strings.Join(uses, ","), string(short)
	return b.String(), notes
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
