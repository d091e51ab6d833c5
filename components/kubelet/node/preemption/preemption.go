// Package preemption chooses which pods of a node are preempted to free resources for a critical
// pod at admission. This is independent of the scheduler's preemption.
//
// https://kubernetes.io/docs/tasks/administer-cluster/guaranteed-scheduling-critical-addon-pods/
package preemption

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"hyperkube/internal/pod/podutil"
)

// Reason and Message are those of the status of a preempted pod and of the event about it, as in upstream.
const (
	Reason  = "Preempting"
	Message = "Preempted in order to admit critical pod"
)

// Requirement is the missing quantity of a resource, in millicores for CPU, pods for the number of pods,
// otherwise in the resource's unit, such as bytes.
type Requirement struct {
	Name     v1.ResourceName
	Quantity int64
}

// Amount converts a quantity of the resource to the unit of Requirement.
func Amount(name v1.ResourceName, q resource.Quantity) int64 {
	if name == v1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// Request returns how much of the resource the pod requests, in the unit of Requirement.
func Request(pod *v1.Pod, name v1.ResourceName) int64 {
	if name == v1.ResourcePods {
		return 1
	}
	return Amount(name, resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})[name])
}

// Choose returns the pods of others to preempt for pod, so that their total requests cover need: as few as
// possible, the lowest QoS class first. A critical pod preempts pods that are not critical, and any pod
// preempts those of lower priority. critical and class return the properties of a pod. It returns an error if
// all such pods do not suffice. The slices are not modified.
func Choose(pod *v1.Pod, others []*v1.Pod, need []Requirement, critical func(*v1.Pod) bool, class func(*v1.Pod) v1.PodQOSClass) ([]*v1.Pod, error) {
	of := map[v1.PodQOSClass][]*v1.Pod{}
	var all []*v1.Pod
	for _, o := range others {
		if critical(pod) && !critical(o) || podutil.Priority(pod) > podutil.Priority(o) {
			of[class(o)] = append(of[class(o)], o)
			all = append(all, o)
		}
	}
	if left := subtract(need, all...); len(left) > 0 {
		return nil, fmt.Errorf("no set of running pods found to reclaim resources: %s", text(left))
	}
	// From each class, choose what is missing when all pods of lower classes are preempted. What
	// the chosen pods of higher classes free in excess reduces the number of pods of lower classes.
	low, middle, high := of[v1.PodQOSBestEffort], of[v1.PodQOSBurstable], of[v1.PodQOSGuaranteed]
	fromHigh := nearest(high, subtract(need, slices.Concat(low, middle)...))
	fromMiddle := nearest(middle, subtract(need, slices.Concat(low, fromHigh)...))
	fromLow := nearest(low, subtract(need, slices.Concat(fromMiddle, fromHigh)...))
	return slices.Concat(fromLow, fromMiddle, fromHigh), nil
}

// nearest chooses pods until their requests cover need, or all are chosen. Each time it takes the pod after
// which the least is missing, and among equal ones the one with the smallest requests.
func nearest(pods []*v1.Pod, need []Requirement) []*v1.Pod {
	var out []*v1.Pod
	pods = slices.Clone(pods)
	for len(need) > 0 && len(pods) > 0 {
		best := 0
		for i := range pods[1:] {
			a, b := distance(need, pods[i+1]), distance(need, pods[best])
			if a < b || a == b && smaller(pods[i+1], pods[best]) {
				best = i + 1
			}
		}
		out = append(out, pods[best])
		need = subtract(need, pods[best])
		pods = slices.Delete(pods, best, best+1)
	}
	return out
}

// distance returns how much of need would still be missing after the preemption of pod, as the sum of the
// squared fractions of each resource.
func distance(need []Requirement, pod *v1.Pod) float64 {
	sum := 0.0
	for _, n := range need {
		if left := float64(n.Quantity - Request(pod, n.Name)); left > 0 {
			sum += left / float64(n.Quantity) * left / float64(n.Quantity)
		}
	}
	return sum
}

// smaller reports whether a requests less memory than b or, if they are equal, less CPU.
func smaller(a, b *v1.Pod) bool {
	for _, name := range []v1.ResourceName{v1.ResourceMemory, v1.ResourceCPU} {
		if x, y := Request(a, name), Request(b, name); x != y {
			return x < y
		}
	}
	return false
}

// subtract returns what is still missing of need after the preemption of pods.
func subtract(need []Requirement, pods ...*v1.Pod) []Requirement {
	var left []Requirement
	for _, n := range need {
		for _, p := range pods {
			n.Quantity -= Request(p, n.Name)
		}
		if n.Quantity > 0 {
			left = append(left, n)
		}
	}
	return left
}

// text formats missing resources as in upstream's error message: "[(res: cpu, q: 500), ]".
func text(need []Requirement) string {
	out := "["
	for _, n := range need {
		out += fmt.Sprintf("(res: %v, q: %d), ", n.Name, n.Quantity)
	}
	return out + "]"
}
