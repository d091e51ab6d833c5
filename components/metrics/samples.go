// Package metrics is the add-on that tells how much pods and nodes use: the API
// metrics.k8s.io/v1beta1, behind the API server, of what kubelets tell at
// /metrics/resource. `kubectl top` and autoscalers live by it.
//
// https://kubernetes.io/docs/tasks/debug/debug-cluster/resource-metrics-pipeline/
package metrics

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// sample is what somebody has used at an instant.
type sample struct {
	at time.Time
	// cpu is in seconds since the start, memory in bytes.
	cpu, memory float64
	// known tells which of the two have been told.
	cpuKnown, memoryKnown bool
}

// usage is what somebody uses.
type usage struct {
	list corev1.ResourceList
	// at is the end of the window over which the CPU was measured.
	at     time.Time
	window time.Duration
}

// who is a container, or with an empty container and pod the node itself.
type who struct{ namespace, pod, container string }

// scrape is all that a kubelet told once.
type scrape map[who]*sample

// parse reads the text of /metrics/resource. Samples without a time are of now.
func parse(text io.Reader, now time.Time) (scrape, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(text)
	if err != nil {
		return nil, fmt.Errorf("reading metrics: %w", err)
	}
	out := scrape{}
	read := func(name string, set func(*sample, float64)) {
		for _, m := range families[name].GetMetric() {
			var w who
			for _, l := range m.GetLabel() {
				switch l.GetName() {
				case "namespace":
					w.namespace = l.GetValue()
				case "pod":
					w.pod = l.GetValue()
				case "container":
					w.container = l.GetValue()
				}
			}
			s := out[w]
			if s == nil {
				s = &sample{at: now}
				out[w] = s
			}
			set(s, valueOf(m))
			if ms := m.GetTimestampMs(); ms != 0 && s.cpuKnown && !s.memoryKnown {
				s.at = time.UnixMilli(ms)
			}
		}
	}
	for _, prefix := range []string{"node", "container"} {
		read(prefix+"_cpu_usage_seconds_total", func(s *sample, v float64) { s.cpu, s.cpuKnown = v, true })
		read(prefix+"_memory_working_set_bytes", func(s *sample, v float64) { s.memory, s.memoryKnown = v, true })
	}
	return out, nil
}

func valueOf(m *dto.Metric) float64 {
	switch {
	case m.GetCounter() != nil:
		return m.GetCounter().GetValue()
	case m.GetGauge() != nil:
		return m.GetGauge().GetValue()
	default:
		return m.GetUntyped().GetValue()
	}
}

// book has the last two scrapes of each node. It is safe for several
// goroutines.
type book struct {
	mu    sync.RWMutex // guards nodes
	nodes map[string][2]scrape
}

// add notes what a node told now.
func (b *book) add(node string, s scrape) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.nodes == nil {
		b.nodes = map[string][2]scrape{}
	}
	pair := b.nodes[node]
	// Kubelets measure now and then: the same measurement is not two.
	last, next := pair[1][who{}], s[who{}]
	if last != nil && next != nil && !next.at.After(last.at) {
		return
	}
	b.nodes[node] = [2]scrape{pair[1], s}
}

// keep forgets nodes that are not among names.
func (b *book) keep(names map[string]bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name := range b.nodes {
		if !names[name] {
			delete(b.nodes, name)
		}
	}
}

// node is what a node uses, false when that is not known.
func (b *book) node(name string) (usage, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	pair := b.nodes[name]
	return between(pair[0][who{}], pair[1][who{}])
}

// container is what one of them uses.
type container struct {
	name string
	usage
}

// pod is what the containers of a pod on a node use, by name; those of which
// nothing is known yet are left out.
func (b *book) pod(node, namespace, name string) []container {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var out []container
	pair := b.nodes[node]
	for w, last := range pair[1] {
		if w.namespace != namespace || w.pod != name || w.container == "" {
			continue
		}
		if u, ok := between(pair[0][w], last); ok {
			out = append(out, container{w.container, u})
		}
	}
	slices.SortFunc(out, func(a, b container) int { return cmp.Compare(a.name, b.name) })
	return out
}

// between is what was used from one sample to the next. A container that has
// started anew meanwhile has used less than before: nothing is known of it.
func between(from, to *sample) (usage, bool) {
	if from == nil || to == nil || !from.cpuKnown || !to.cpuKnown || !to.memoryKnown || !to.at.After(from.at) || to.cpu < from.cpu {
		return usage{}, false
	}
	window := to.at.Sub(from.at)
	cores := (to.cpu - from.cpu) / window.Seconds()
	return usage{
		list: corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewScaledQuantity(int64(cores*1e9), resource.Nano),
			corev1.ResourceMemory: *resource.NewQuantity(int64(to.memory), resource.BinarySI),
		},
		at: to.at, window: window,
	}, true
}
