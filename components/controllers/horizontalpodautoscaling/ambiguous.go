package horizontalpodautoscaling

import (
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// selectors tracks which pods each autoscaler scales, in order to detect several autoscalers with
// the same pods. It is safe for concurrent use.
type selectors struct {
	mu    sync.Mutex
	byKey map[string]labels.Selector // by the autoscaler's namespace/name; guarded by mu
}

// set stores the selector of an autoscaler.
func (s *selectors) set(key string, selector labels.Selector) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey == nil {
		s.byKey = map[string]labels.Selector{}
	}
	s.byKey[key] = selector
}

// forget removes an autoscaler that was deleted or whose target was not found.
func (s *selectors) forget(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byKey, key)
}

// of returns the autoscalers of a namespace that select any of pods, as namespace/name, sorted.
func (s *selectors) of(namespace string, pods []*corev1.Pod) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.byKey) < 2 {
		return nil
	}
	var out []string
	for key, selector := range s.byKey {
		if strings.HasPrefix(key, namespace+"/") && slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return selector.Matches(labels.Set(p.Labels)) }) {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return out
}
