package admission

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
)

// TolerationSeconds is the number of seconds that pods stay on a node that is not ready or
// unreachable, before they are evicted.
type TolerationSeconds struct{ NotReady, Unreachable int64 }

// defaultTolerations is the plugin DefaultTolerationSeconds. It adds tolerations of the taints
// not-ready and unreachable, by default for five minutes, to pods that do not tolerate them.
type defaultTolerations struct {
	operations
	seconds TolerationSeconds
}

// newDefaultTolerations creates the plugin DefaultTolerationSeconds, with 300 seconds unless cfg sets other values.
// It never fails.
func newDefaultTolerations(cfg *Config) (admission.Interface, error) {
	if cfg.TolerationSeconds != nil {
		return defaultTolerations{onCreateUpdate, *cfg.TolerationSeconds}, nil
	}
	return defaultTolerations{onCreateUpdate, TolerationSeconds{300, 300}}, nil
}

// Admit adds tolerations of the NoExecute taints not-ready and unreachable to a new or updated pod, each unless the
// pod already tolerates the taint.
func (p defaultTolerations) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if !isRequestFor(a, "", "pods") {
		return nil
	}
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok {
		return nil
	}
	for _, gone := range []struct {
		key     string
		seconds int64
	}{{corev1.TaintNodeNotReady, p.seconds.NotReady}, {corev1.TaintNodeUnreachable, p.seconds.Unreachable}} {
		key, seconds := gone.key, gone.seconds
		tolerated := slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
			return (t.Key == key || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "")
		})
		if !tolerated {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
				Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds,
			})
		}
	}
	return nil
}

// taintNodes is the plugin TaintNodesByCondition. It adds the not-ready taint to new nodes, so that
// no pods are scheduled on them until they are ready.
type taintNodes struct{ operations }

// newTaintNodes creates the plugin TaintNodesByCondition. It never fails.
func newTaintNodes(*Config) (admission.Interface, error) { return taintNodes{onCreate}, nil }

// Admit adds the taint not-ready to a new node, unless it has the taint.
func (taintNodes) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if !isRequestFor(a, "", "nodes") {
		return nil
	}
	node, ok := a.GetObject().(*corev1.Node)
	if !ok {
		return nil
	}
	taint := corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}
	if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) }) {
		node.Spec.Taints = append(node.Spec.Taints, taint)
	}
	return nil
}

// extendedResourceToleration is the plugin ExtendedResourceToleration. It adds tolerations to pods
// that request an extended resource, so that they run on nodes with a taint of the resource's name.
type extendedResourceToleration struct{ operations }

// newExtendedResourceToleration creates the plugin ExtendedResourceToleration. It never fails.
func newExtendedResourceToleration(*Config) (admission.Interface, error) {
	return extendedResourceToleration{onCreateUpdate}, nil
}

// Admit adds a toleration of the taint with the resource's name for each extended resource that the containers and
// init containers request, unless the pod has it.
func (extendedResourceToleration) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if !isRequestFor(a, "", "pods") {
		return nil
	}
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok {
		return nil
	}
	var resources []string
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for name := range list[i].Resources.Requests {
				n := string(name)
				if strings.Contains(n, "/") && !strings.Contains(n, corev1.ResourceDefaultNamespacePrefix) &&
					!strings.HasPrefix(n, corev1.DefaultResourceRequestsPrefix) && !slices.Contains(resources, n) {
					resources = append(resources, n)
				}
			}
		}
	}
	slices.Sort(resources)
	for _, r := range resources {
		want := corev1.Toleration{Key: r, Operator: corev1.TolerationOpExists}
		if !slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool { return t.MatchToleration(&want) && t.TolerationSeconds == nil }) {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, want)
		}
	}
	return nil
}
