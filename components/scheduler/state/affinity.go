package state

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// Term is a parsed term of inter-pod affinity or anti-affinity: it selects pods by namespace and labels, in the
// topology domain of a node.
type Term struct {
	// Key is the topology key.
	Key string
	// Weight is 1 for required terms, and negative for preferred anti-affinity.
	Weight     int64
	namespaces map[string]bool
	inLabels   labels.Selector // namespace selector; nil matches none
	selector   labels.Selector
}

// Matches reports whether the term selects pods with the labels l in a namespace. namespaceOf returns the labels of a
// namespace for the term's namespace selector. If it is nil, the selector matches no namespace.
func (t *Term) Matches(namespaceOf func(name string) map[string]string, namespace string, l labels.Set) bool {
	if !t.namespaces[namespace] {
		if t.inLabels == nil || namespaceOf == nil || !t.inLabels.Matches(labels.Set(namespaceOf(namespace))) {
			return false
		}
	}
	return t.selector.Matches(l)
}

// Terms are the parsed terms of inter-pod affinity and anti-affinity of one pod: the required and the preferred ones.
type Terms struct {
	// Near and Away are required affinity and anti-affinity terms, Preferred are preferred terms of
	// both.
	Near, Away, Preferred []*Term
	// Err is the parse error; the terms are then empty.
	Err error
}

// newTerms parses the inter-pod affinity of a pod. It returns nil for a pod without terms. If a term is invalid, it
// returns Terms with Err.
func newTerms(pod *corev1.Pod) *Terms {
	a := pod.Spec.Affinity
	if a == nil || a.PodAffinity == nil && a.PodAntiAffinity == nil {
		return nil
	}
	t := &Terms{}
	add := func(to *[]*Term, term *corev1.PodAffinityTerm, weight int64) {
		if t.Err != nil {
			return
		}
		made, err := newTerm(pod, term, weight)
		if err != nil {
			*t = Terms{Err: err}
			return
		}
		*to = append(*to, made)
	}
	if a.PodAffinity != nil {
		for i := range a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			add(&t.Near, &a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution[i], 1)
		}
		for i := range a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			w := &a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution[i]
			add(&t.Preferred, &w.PodAffinityTerm, int64(w.Weight))
		}
	}
	if a.PodAntiAffinity != nil {
		for i := range a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			add(&t.Away, &a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[i], 1)
		}
		for i := range a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			w := &a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution[i]
			add(&t.Preferred, &w.PodAffinityTerm, -int64(w.Weight))
		}
	}
	if t.Err == nil && len(t.Near)+len(t.Away)+len(t.Preferred) == 0 {
		return nil
	}
	return t
}

// newTerm parses a term of the pod owner, with its matchLabelKeys and mismatchLabelKeys. A term without namespaces
// selects pods in the namespace of owner.
func newTerm(owner *corev1.Pod, t *corev1.PodAffinityTerm, weight int64) (*Term, error) {
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
	out := &Term{Key: t.TopologyKey, selector: selector, Weight: weight}
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
