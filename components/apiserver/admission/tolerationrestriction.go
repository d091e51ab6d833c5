package admission

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
)

// Annotations of a namespace with JSON lists of tolerations: those that are added to its pods, and the
// only ones that its pods may have.
const (
	defaultTolerationsAnnotation = "scheduler.alpha.kubernetes.io/defaultTolerations"
	allowedTolerationsAnnotation = "scheduler.alpha.kubernetes.io/tolerationsWhitelist"
)

// tolerationRestriction is the plugin PodTolerationRestriction. It adds the default tolerations of
// the namespace to its pods and rejects pods with tolerations that the namespace does not allow.
//
// https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#podtolerationrestriction
type tolerationRestriction struct {
	operations
	namespaces namespaces
	// clusterWide applies to namespaces without the annotations.
	clusterWide tolerationLists
}

// tolerationLists is the configuration of the plugin PodTolerationRestriction: the default and the allowed tolerations
// of pods in namespaces that do not have the annotations.
type tolerationLists struct {
	metav1.TypeMeta `json:",inline"`
	Default         []corev1.Toleration `json:"default,omitempty"`
	Whitelist       []corev1.Toleration `json:"whitelist,omitempty"`
}

// newTolerationRestriction creates the plugin PodTolerationRestriction. It returns an error if its configuration file
// is invalid; the file may be missing.
func newTolerationRestriction(cfg *Config) (admission.Interface, error) {
	p := &tolerationRestriction{operations: onCreateUpdate, namespaces: newNamespaces(cfg)}
	if data := cfg.Files["PodTolerationRestriction"]; len(data) > 0 {
		if err := decodeConfiguration(data, "podtolerationrestriction.admission.k8s.io/v1alpha1", &p.clusterWide); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// Admit adds the namespace's default tolerations to a new pod. To a new or updated pod with CPU or memory requests or
// limits it adds a toleration of memory pressure. It rejects the pod if the namespace does not allow one of its
// tolerations.
func (p *tolerationRestriction) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok || !isRequestFor(a, "", "pods") {
		return nil
	}
	var add []corev1.Toleration
	if a.GetOperation() == admission.Create {
		var err error
		if add, err = p.namespaceTolerations(ctx, a.GetNamespace(), defaultTolerationsAnnotation, p.clusterWide.Default); err != nil {
			return err
		}
	}
	add = append(slices.Clone(add), pod.Spec.Tolerations...)
	if hasComputeResources(pod) {
		// Only BestEffort pods are kept off nodes under memory pressure.
		add = append(add, corev1.Toleration{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
	}
	if len(add) > 0 {
		pod.Spec.Tolerations = mergeTolerations(add)
	}
	return p.Validate(ctx, a, o)
}

// Validate rejects a pod with a toleration that the namespace does not allow. It repeats the check of Admit because
// other plugins may have added tolerations. If the namespace has no list of allowed tolerations, or an empty one, all
// are allowed.
func (p *tolerationRestriction) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok || !isRequestFor(a, "", "pods") || len(pod.Spec.Tolerations) == 0 {
		return nil
	}
	allowed, err := p.namespaceTolerations(ctx, a.GetNamespace(), allowedTolerationsAnnotation, p.clusterWide.Whitelist)
	if err != nil || len(allowed) == 0 {
		return err
	}
	for i := range pod.Spec.Tolerations {
		if !slices.ContainsFunc(allowed, func(w corev1.Toleration) bool { return covers(&w, &pod.Spec.Tolerations[i]) }) {
			return errors.New("pod tolerations (possibly merged with namespace default tolerations) conflict with its namespace whitelist")
		}
	}
	return nil
}

// namespaceTolerations returns the tolerations that an annotation of the namespace contains, which are none if it is
// empty. If the namespace does not have the annotation, it returns the tolerations otherwise. It returns an error if
// the namespace cannot be read or the annotation is not valid JSON.
func (p *tolerationRestriction) namespaceTolerations(ctx context.Context, namespace, annotation string, otherwise []corev1.Toleration) ([]corev1.Toleration, error) {
	ns, err := p.namespaces.get(ctx, namespace)
	if err != nil {
		return nil, err
	}
	text, ok := ns.Annotations[annotation]
	if !ok {
		return otherwise, nil
	}
	if text == "" {
		return nil, nil
	}
	var out []corev1.Toleration
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		return nil, err
	}
	return out, nil
}

// hasComputeResources reports whether the pod as a whole, a container or an init container has a CPU or memory
// request or limit other than zero.
func hasComputeResources(pod *corev1.Pod) bool {
	asks := func(r corev1.ResourceRequirements) bool {
		for _, list := range []corev1.ResourceList{r.Requests, r.Limits} {
			for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
				if q, ok := list[name]; ok && !q.IsZero() {
					return true
				}
			}
		}
		return false
	}
	if pod.Spec.Resources != nil && asks(*pod.Spec.Resources) {
		return true
	}
	return slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), func(c corev1.Container) bool { return asks(c.Resources) })
}

// mergeTolerations returns the tolerations in all without those that another one in the list
// covers. Of equal ones the first is kept.
func mergeTolerations(all []corev1.Toleration) []corev1.Toleration {
	var out []corev1.Toleration
	for i := range all {
		t := &all[i]
		covered := slices.ContainsFunc(out, func(o corev1.Toleration) bool { return covers(&o, t) }) ||
			slices.ContainsFunc(all[i+1:], func(o corev1.Toleration) bool { return !apiequality.Semantic.DeepEqual(&o, t) && covers(&o, t) })
		if !covered {
			out = append(out, *t)
		}
	}
	return out
}

// covers reports whether the toleration wide tolerates everything that t tolerates, for at least as
// long.
func covers(wide, t *corev1.Toleration) bool {
	switch {
	case apiequality.Semantic.DeepEqual(wide, t):
		return true
	case t.Key != wide.Key && (wide.Key != "" || wide.Operator != corev1.TolerationOpExists):
		return false
	case t.Effect != wide.Effect && wide.Effect != "":
		return false
	case wide.Effect == corev1.TaintEffectNoExecute && wide.TolerationSeconds != nil &&
		(t.TolerationSeconds == nil || *t.TolerationSeconds > *wide.TolerationSeconds):
		return false
	}
	switch wide.Operator {
	case corev1.TolerationOpEqual, "":
		return t.Operator == corev1.TolerationOpEqual && t.Value == wide.Value
	case corev1.TolerationOpExists:
		return true
	default:
		return false
	}
}
