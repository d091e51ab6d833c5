package horizontalpodautoscaling

import (
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// selectors stores which pods each autoscaler scales, to detect several autoscalers that scale the same pods. The zero
// value is ready to use. It is safe for concurrent use.
type selectors struct {
	mu    sync.Mutex
	byKey map[string]labels.Selector // by the autoscaler's namespace/name; guarded by mu
}

// set stores the pod selector of the autoscaler with this key, its namespace/name.
func (s *selectors) set(key string, selector labels.Selector) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey == nil {
		s.byKey = map[string]labels.Selector{}
	}
	s.byKey[key] = selector
}

// forget removes an autoscaler that was deleted.
func (s *selectors) forget(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byKey, key)
}

// of returns the keys of the autoscalers of a namespace whose selector matches any of pods, sorted. It returns nil if
// there are fewer than two autoscalers.
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
