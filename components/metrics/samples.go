// Package metrics is the metrics server add-on. It reads the endpoint /stats/summary of kubelets and serves two APIs,
// behind the API server's aggregation layer: metrics.k8s.io/v1beta1 with the current usage, for `kubectl top` and autoscalers,
// and history.metrics.hyperkube.io/v1alpha1 with the usage of the last hour and day.
//
// https://kubernetes.io/docs/tasks/debug/debug-cluster/resource-metrics-pipeline/
package metrics

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// sample is what one scrape contains about a container or node at a point in time.
type sample struct {
	at time.Time
	// cpu is the cumulative CPU time in seconds, memory the working set in bytes.
	cpu, memory float64
	// cpuKnown and memoryKnown report whether the scrape contained the value.
	cpuKnown, memoryKnown bool
}

// usage is the resource usage of a container or node that the API reports: average CPU usage over a
// window, and memory at its end.
type usage struct {
	list corev1.ResourceList
	// at is the end of the window over which CPU usage was measured.
	at     time.Time
	window time.Duration
}

// target identifies what a sample describes: a container, or the node itself if all fields are
// empty.
type target struct{ namespace, pod, container string }

// scrape contains the samples that one scrape of a kubelet has returned.
type scrape map[target]*sample

// samplesOf returns the samples of the node and of all containers in a summary.
func samplesOf(s *summary) scrape {
	out := scrape{target{}: s.Node.sample()}
	for i := range s.Pods {
		pod := &s.Pods[i]
		for j := range pod.Containers {
			out[target{pod.PodRef.Namespace, pod.PodRef.Name, pod.Containers[j].Name}] = pod.Containers[j].sample()
		}
	}
	return out
}

// scrapeStore stores the last two scrapes of each node, from which usage is computed. It is safe
// for concurrent use.
type scrapeStore struct {
	mu    sync.RWMutex // guards nodes
	nodes map[string][2]scrape
}

// add stores a scrape of a node and drops the oldest one. It ignores a scrape in which the kubelet
// has not measured again.
func (b *scrapeStore) add(node string, s scrape) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.nodes == nil {
		b.nodes = map[string][2]scrape{}
	}
	pair := b.nodes[node]
	// Kubelets measure periodically. A scrape with the previous measurement is dropped.
	last, next := pair[1][target{}], s[target{}]
	if last != nil && next != nil && !next.at.After(last.at) {
		return
	}
	b.nodes[node] = [2]scrape{pair[1], s}
}

// retain removes all nodes that are not in names.
func (b *scrapeStore) retain(names map[string]bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name := range b.nodes {
		if !names[name] {
			delete(b.nodes, name)
		}
	}
}

// clear removes the scrapes of all nodes.
func (b *scrapeStore) clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nodes = nil
}

// node returns the usage of the node name, or false if there are not two scrapes yet.
func (b *scrapeStore) node(name string) (usage, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	pair := b.nodes[name]
	return usageBetween(pair[0][target{}], pair[1][target{}])
}

// container is the usage of one container.
type container struct {
	name string
	usage
}

// pod returns the usage of the containers of the pod name on a node, sorted by container name.
// Containers without two samples are omitted.
func (b *scrapeStore) pod(node, namespace, name string) []container {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var out []container
	pair := b.nodes[node]
	for w, last := range pair[1] {
		if w.namespace != namespace || w.pod != name || w.container == "" {
			continue
		}
		if u, ok := usageBetween(pair[0][w], last); ok {
			out = append(out, container{w.container, u})
		}
	}
	slices.SortFunc(out, func(a, b container) int { return cmp.Compare(a.name, b.name) })
	return out
}

// usageBetween computes the usage between two samples of the same target. It returns false if one
// is nil or incomplete, or if the CPU counter decreased because the container was restarted.
func usageBetween(from, to *sample) (usage, bool) {
	if from == nil || to == nil || !from.cpuKnown || !to.cpuKnown || !to.memoryKnown || !to.at.After(from.at) || to.cpu < from.cpu {
		return usage{}, false
	}
	window := to.at.Sub(from.at)
	cores := (to.cpu - from.cpu) / window.Seconds()
	return usage{
		list: corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewScaledQuantity(int64(math.Round(cores*1e9)), resource.Nano),
			corev1.ResourceMemory: *resource.NewQuantity(int64(to.memory), resource.BinarySI),
		},
		at: to.at, window: window,
	}, true
}
