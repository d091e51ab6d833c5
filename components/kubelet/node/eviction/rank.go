package eviction

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"hyperkube/internal/pod/podutil"
)

// Files is the disk usage of files in bytes and inodes.
type Files struct{ Bytes, Inodes int64 }

// Usage is the memory and disk usage of one container, which the message of an eviction states.
type Usage struct {
	Name string // of the container
	// Memory is the working set in bytes.
	Memory int64
	// Layer is the usage of the container's writable layer, Logs that of its logs.
	Layer, Logs Files
}

// Candidate is a pod that may be evicted, and its resource usage.
type Candidate struct {
	Pod        *v1.Pod
	Containers []Usage
	// Memory and Processes are those of the whole pod.
	Memory, Processes int64
	// Volumes is the usage of volumes on the node's disk.
	Volumes Files
	// Measured means that the usage is known. A pod whose usage is unknown is evicted first.
	Measured bool
}

// usage returns how much of the resource short, which the node is short of, the pod uses. For disk space and inodes
// it counts only the files of the kinds in of. It returns 0 for resources of which pods have no usage.
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

// files returns the disk usage of the selected parts of the pod: writable layers, logs and volumes.
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

// over returns by how much the pod's usage of the resource exceeds its request. Only memory and ephemeral
// storage have requests; for other resources it returns the usage.
func (c *Candidate) over(short v1.ResourceName, of parts) int64 {
	used := c.usage(short, of)
	if short == v1.ResourceMemory || short == v1.ResourceEphemeralStorage {
		q := resourcehelper.PodRequests(c.Pod, resourcehelper.PodResourcesOptions{})[short]
		used -= q.Value()
	}
	return used
}

// rank sorts the pods in the order in which they are evicted for the signal: pods whose usage is unknown first,
// then those that exceed their requests, then by ascending priority, then by descending excess over the request.
// Inodes and processes have no requests: any usage of inodes exceeds them, and processes do not count as exceeding
// them. For disk signals, only files on the file system of the signal count.
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
		if n := cmp.Compare(podutil.Priority(a.Pod), podutil.Priority(b.Pod)); n != 0 {
			return n
		}
		return cmp.Compare(b.over(short, of), a.over(short, of))
	})
}

// yesFirst returns the result of comparing two elements of which exactly one has a property, so that
// slices.SortFunc sorts the one with the property first. yes is true if the first element has the property.
func yesFirst(yes bool) int {
	if yes {
		return -1
	}
	return 1
}

// offendingKey and the other constants are the annotations of eviction events, as in upstream: which containers and
// which pod use how much, and the resource under pressure.
const (
	offendingKey = "offending_containers"
	usageKey     = "offending_containers_usage"
	podKey       = "offending_pod"
	podUsageKey  = "offending_pod_usage"
	starvedKey   = "starved_resource"
)

// explain returns the message and the event annotations of the eviction of c because of the threshold t. They
// name the containers whose usage exceeds their requests and, for memory, the pod if it has its own request.
// Without a measurement of c they name none. now are the measured signals.
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

// amount returns n of the resource short as a quantity, in the format of upstream's messages.
func amount(short v1.ResourceName, n int64) *resource.Quantity {
	if short == ResourceInodes || short == ResourcePIDs {
		return resource.NewQuantity(n, resource.DecimalSI)
	}
	return resource.NewQuantity(n, resource.BinarySI)
}

// container returns the app or init container of that name in the pod spec, or nil.
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
