package env

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Addresses are the IP addresses of a pod and its node, primary ones first, that the downward API exposes to
// containers.
type Addresses struct {
	PodIPs, HostIPs []string
}

// Field returns the value of a field of the pod for the downward API, whose path is that of a fieldRef, such as
// "metadata.name". at has the values of status.podIP and similar paths. All labels or annotations are formatted
// as sorted lines of key="value". A label or annotation that the pod does not have is "". An unsupported path
// is an error.
func Field(pod *v1.Pod, path string, at Addresses) (string, error) {
	if name, key, ok := subscript(path); ok {
		switch name {
		case "metadata.annotations":
			return pod.Annotations[key], nil
		case "metadata.labels":
			return pod.Labels[key], nil
		}
		return "", fmt.Errorf("fieldPath %q does not support subscript", path)
	}
	switch path {
	case "metadata.annotations":
		return formatMap(pod.Annotations), nil
	case "metadata.labels":
		return formatMap(pod.Labels), nil
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP":
		return first(at.HostIPs), nil
	case "status.hostIPs":
		return strings.Join(at.HostIPs, ","), nil
	case "status.podIP":
		return first(at.PodIPs), nil
	case "status.podIPs":
		return strings.Join(at.PodIPs, ","), nil
	}
	return "", fmt.Errorf("unsupported fieldPath: %v", path)
}

// first returns the first element of a list, or "".
func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// subscript splits a path such as metadata.labels['key'] into the name before the brackets and the key. ok is
// false if the path has no brackets.
func subscript(path string) (name, key string, ok bool) {
	rest, found := strings.CutSuffix(path, "']")
	if !found {
		return "", "", false
	}
	return strings.Cut(rest, "['")
}

// formatMap formats labels or annotations as sorted lines of key="value".
func formatMap(m map[string]string) string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	lines := make([]string, len(keys))
	for i, k := range keys {
		lines[i] = fmt.Sprintf("%v=%q", k, m[k])
	}
	return strings.Join(lines, "\n")
}

// available returns the resources that containers without limits may use: the pod-level limits of CPU and memory,
// and the node's allocatable resources where the pod has none.
func available(pod *v1.Pod, allocatable v1.ResourceList) v1.ResourceList {
	if pod.Spec.Resources == nil || len(pod.Spec.Resources.Limits) == 0 {
		return allocatable
	}
	out := allocatable.DeepCopy()
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		limit, ok := pod.Spec.Resources.Limits[name]
		if _, has := out[name]; ok && has && !limit.IsZero() {
			out[name] = limit.DeepCopy()
		}
	}
	return out
}

// Resource returns the value of the resourceFieldRef ref of the container c, rounded up to a multiple of the
// divisor, which is 1 by default. An unset limit defaults to the pod-level limit or, without one, to the node's
// allocatable resources; an unset request is 0. Resources other than CPU, memory, ephemeral storage and huge
// pages are an error.
func Resource(ref *v1.ResourceFieldSelector, pod *v1.Pod, c *v1.Container, allocatable v1.ResourceList) (string, error) {
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	which, name, _ := strings.Cut(ref.Resource, ".")
	var list v1.ResourceList
	switch which {
	case "limits":
		list = c.Resources.Limits
	case "requests":
		list = c.Resources.Requests
	default:
		return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
	}
	q, ok := list[v1.ResourceName(name)]
	if which == "limits" && (!ok || q.IsZero()) {
		q = available(pod, allocatable)[v1.ResourceName(name)]
	}
	switch v1.ResourceName(name) {
	case v1.ResourceCPU:
		return strconv.FormatInt(int64(math.Ceil(float64(q.MilliValue())/float64(divisor.MilliValue()))), 10), nil
	case v1.ResourceMemory, v1.ResourceEphemeralStorage:
		return strconv.FormatInt(int64(math.Ceil(float64(q.Value())/float64(divisor.Value()))), 10), nil
	}
	if strings.HasPrefix(name, v1.ResourceHugePagesPrefix) {
		return strconv.FormatInt(int64(math.Ceil(float64(q.Value())/float64(divisor.Value()))), 10), nil
	}
	return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
}
