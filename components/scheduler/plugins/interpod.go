package plugins

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
)

// InterPodAffinity keeps pods near to or away from other pods, both as the pod
// itself wishes and as those that are there already do.
// https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/
type InterPodAffinity struct{}

// Name of the plugin.
func (InterPodAffinity) Name() string { return "InterPodAffinity" }

// Wakes as framework.Waker.
func (InterPodAffinity) Wakes() framework.Event {
	return framework.NodeAdded | framework.NodeLabelsChanged | framework.PodAdded | framework.PodRemoved | framework.PodChanged
}

// term is an affinity term made ready for matching.
type term struct {
	key        string
	namespaces map[string]bool // nil with allNamespaces or a selector
	inLabels   labels.Selector // of namespaces; nil: none
	selector   labels.Selector
	weight     int64
}

func newTerm(owner *corev1.Pod, t *corev1.PodAffinityTerm, weight int64) (*term, error) {
	selector, err := metav1.LabelSelectorAsSelector(t.LabelSelector)
	if err != nil {
		return nil, fmt.Errorf("pod affinity term: %w", err)
	}
	add := func(keys []string, op selection.Operator) error {
		for _, key := range keys {
			if value, ok := owner.Labels[key]; ok {
				r, err := labels.NewRequirement(key, op, []string{value})
				if err != nil {
					return fmt.Errorf("pod affinity term: %w", err)
				}
				selector = selector.Add(*r)
			}
		}
		return nil
	}
	if err := add(t.MatchLabelKeys, selection.In); err != nil {
		return nil, err
	}
	if err := add(t.MismatchLabelKeys, selection.NotIn); err != nil {
		return nil, err
	}
	out := &term{key: t.TopologyKey, selector: selector, weight: weight}
	if t.NamespaceSelector != nil {
		if out.inLabels, err = metav1.LabelSelectorAsSelector(t.NamespaceSelector); err != nil {
			return nil, fmt.Errorf("pod affinity term: %w", err)
		}
	}
	out.namespaces = map[string]bool{}
	for _, ns := range t.Namespaces {
		out.namespaces[ns] = true
	}
	if len(t.Namespaces) == 0 && t.NamespaceSelector == nil {
		out.namespaces[owner.Namespace] = true
	}
	return out, nil
}

// matches tells whether a pod is one that the term speaks of.
func (t *term) matches(c *framework.Cycle, pod *corev1.Pod) bool {
	if !t.namespaces[pod.Namespace] {
		if t.inLabels == nil || c.Namespaces == nil || !t.inLabels.Matches(labels.Set(c.Namespaces(pod.Namespace))) {
			return false
		}
	}
	return t.selector.Matches(labels.Set(pod.Labels))
}

func terms(owner *corev1.Pod, list []corev1.PodAffinityTerm) ([]*term, error) {
	var out []*term
	for i := range list {
		t, err := newTerm(owner, &list[i], 1)
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

func preferred(owner *corev1.Pod, list []corev1.WeightedPodAffinityTerm, sign int64) ([]*term, error) {
	var out []*term
	for i := range list {
		t, err := newTerm(owner, &list[i].PodAffinityTerm, sign*int64(list[i].Weight))
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

// domain is a value of a topology label.
type domain struct{ key, value string }

// Filter as framework.Filter.
func (InterPodAffinity) Filter(c *framework.Cycle) (framework.Check, error) {
	pod := c.Pod.Object
	var near, away []*term
	var err error
	if a := pod.Spec.Affinity; a != nil {
		if a.PodAffinity != nil {
			if near, err = terms(pod, a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution); err != nil {
				return nil, err
			}
		}
		if a.PodAntiAffinity != nil {
			if away, err = terms(pod, a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution); err != nil {
				return nil, err
			}
		}
	}
	// Domains in which a pod that is there does not want this one, those in
	// which this one does not want to be, and for each of its own near
	// terms, those in which its pods are.
	unwelcome, avoided := map[domain]bool{}, map[domain]bool{}
	wanted := make([]map[string]bool, len(near))
	for i := range wanted {
		wanted[i] = map[string]bool{}
	}
	anyNear := false
	for _, n := range c.State.Nodes() {
		for _, p := range n.Pods {
			if a := p.Object.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
				existing, err := terms(p.Object, a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
				if err == nil {
					for _, t := range existing {
						if value, ok := n.Object.Labels[t.key]; ok && t.matches(c, pod) {
							unwelcome[domain{t.key, value}] = true
						}
					}
				}
			}
			for _, t := range away {
				if value, ok := n.Object.Labels[t.key]; ok && t.matches(c, p.Object) {
					avoided[domain{t.key, value}] = true
				}
			}
			if len(near) > 0 && matchesAll(c, near, p.Object) {
				for i, t := range near {
					if value, ok := n.Object.Labels[t.key]; ok {
						wanted[i][value] = true
						anyNear = true
					}
				}
			}
		}
	}
	if len(near) == 0 && len(away) == 0 && len(unwelcome) == 0 {
		return nil, nil
	}
	// The first of a group that wants to be near itself may go anywhere.
	first := !anyNear && len(near) > 0 && matchesAll(c, near, pod)
	return func(n *state.Node) []framework.Reason {
		for i, t := range near {
			value, ok := n.Object.Labels[t.key]
			if !ok || !wanted[i][value] && !first {
				return reason("node(s) didn't match pod affinity rules", true)
			}
		}
		for _, t := range away {
			if value, ok := n.Object.Labels[t.key]; ok && avoided[domain{t.key, value}] {
				return reason("node(s) didn't match pod anti-affinity rules", false)
			}
		}
		for d := range unwelcome {
			if n.Object.Labels[d.key] == d.value {
				return reason("node(s) didn't satisfy existing pods anti-affinity rules", false)
			}
		}
		return nil
	}, nil
}

func matchesAll(c *framework.Cycle, all []*term, pod *corev1.Pod) bool {
	for _, t := range all {
		if !t.matches(c, pod) {
			return false
		}
	}
	return true
}

// hardPodAffinityWeight is what a required affinity of a pod that is there
// counts for one that it would be near to.
const hardPodAffinityWeight = 1

// Score as framework.Score.
func (InterPodAffinity) Score(c *framework.Cycle, nodes []*state.Node, out []int64) bool {
	pod := c.Pod.Object
	own, err := wishes(pod, false)
	if err != nil {
		return false
	}
	scores := map[domain]int64{}
	for _, n := range c.State.Nodes() {
		for _, p := range n.Pods {
			for _, t := range own {
				if value, ok := n.Object.Labels[t.key]; ok && t.matches(c, p.Object) {
					scores[domain{t.key, value}] += t.weight
				}
			}
			if p.Object.Spec.Affinity == nil {
				continue
			}
			theirs, err := wishes(p.Object, true)
			if err != nil {
				continue
			}
			for _, t := range theirs {
				if value, ok := n.Object.Labels[t.key]; ok && t.matches(c, pod) {
					scores[domain{t.key, value}] += t.weight
				}
			}
		}
	}
	if len(scores) == 0 {
		return false
	}
	var lowest, highest int64
	for i, n := range nodes {
		out[i] = 0
		for d, v := range scores {
			if value, ok := n.Object.Labels[d.key]; ok && value == d.value {
				out[i] += v
			}
		}
		if i == 0 {
			lowest, highest = out[i], out[i]
		}
		lowest, highest = min(lowest, out[i]), max(highest, out[i])
	}
	for i := range out {
		if highest == lowest {
			out[i] = 0
			continue
		}
		out[i] = framework.MaxScore * (out[i] - lowest) / (highest - lowest)
	}
	return true
}

// wishes are the preferred terms of a pod and, of one that is there, also the
// required ones for nearness.
func wishes(pod *corev1.Pod, there bool) ([]*term, error) {
	a := pod.Spec.Affinity
	if a == nil {
		return nil, nil
	}
	var out []*term
	if a.PodAffinity != nil {
		list, err := preferred(pod, a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution, 1)
		if err != nil {
			return nil, err
		}
		out = append(out, list...)
		if there {
			required, err := terms(pod, a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
			if err != nil {
				return nil, err
			}
			for _, t := range required {
				t.weight = hardPodAffinityWeight
			}
			out = append(out, required...)
		}
	}
	if a.PodAntiAffinity != nil {
		list, err := preferred(pod, a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution, -1)
		if err != nil {
			return nil, err
		}
		out = append(out, list...)
	}
	return out, nil
}
