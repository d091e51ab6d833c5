package quota

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	resourcehelper "k8s.io/component-helpers/resource"

	"hyperkube/internal/api/core/pod"
	"hyperkube/internal/api/validate"
	"hyperkube/internal/pod/podutil"
)

const (
	requestsPrefix       = corev1.DefaultResourceRequestsPrefix
	countPods            = corev1.ResourceName("count/pods")
	requestsHugePages    = corev1.ResourceRequestsHugePagesPrefix
	hugePages            = corev1.ResourceHugePagesPrefix
	limitsEphemeral      = corev1.ResourceLimitsEphemeralStorage
	requestsEphemeral    = corev1.ResourceRequestsEphemeralStorage
	crossNamespaceScoped = corev1.ResourceQuotaScopeCrossNamespacePodAffinity
)

// podNames returns the resource names for which quotas limit pods, except those of huge pages and
// extended resources, which are recognized by their prefix.
func podNames() []corev1.ResourceName {
	return []corev1.ResourceName{
		countPods, corev1.ResourcePods,
		corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
		corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, requestsEphemeral,
		corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, limitsEphemeral,
	}
}

// pods creates the evaluator of pods, which counts pods and their requests and limits. now returns the current time.
func pods(list generic.ListFuncByNamespace, now func() time.Time) quota.Evaluator {
	return &evaluator{
		resource: corev1.Resource("pods"),
		list:     list,
		handles: func(a admission.Attributes) bool {
			switch a.GetSubresource() {
			case "":
				if a.GetOperation() == admission.Update {
					// Adding or removing a deadline moves a pod to another scope.
					now, err1 := as[*corev1.Pod](a.GetObject())
					old, err2 := as[*corev1.Pod](a.GetOldObject())
					return err1 == nil && err2 == nil && terminating(now) != terminating(old)
				}
				return a.GetOperation() == admission.Create
			case "resize":
				return a.GetOperation() == admission.Create || a.GetOperation() == admission.Update
			}
			return false
		},
		names: func(in []corev1.ResourceName) []corev1.ResourceName {
			out := quota.Intersection(in, podNames())
			for _, n := range in {
				s := string(n)
				if strings.HasPrefix(s, hugePages) || strings.HasPrefix(s, requestsHugePages) || extendedRequest(n) {
					out = append(out, n)
				}
			}
			return out
		},
		scope:       podScope,
		constraints: podConstraints,
		usage: func(item runtime.Object) (corev1.ResourceList, error) {
			p, err := as[*corev1.Pod](item)
			if err != nil {
				return nil, err
			}
			return podUsage(p, now()), nil
		},
	}
}

// as converts an object that quota's interfaces pass without a static type to the type T, or
// returns an error if it is of another type.
func as[T runtime.Object](item runtime.Object) (T, error) {
	t, ok := item.(T)
	if !ok {
		return t, fmt.Errorf("expect %T, got %T", t, item)
	}
	return t, nil
}

// podCounts reports whether a pod counts towards quotas. Pods in a terminal phase do not, and
// neither do pods whose deletion grace period has expired, because their node may be lost.
func podCounts(p *corev1.Pod, now time.Time) bool {
	if podutil.Terminal(p) {
		return false
	}
	if p.DeletionTimestamp != nil && p.DeletionGracePeriodSeconds != nil {
		return !now.After(p.DeletionTimestamp.Add(time.Duration(*p.DeletionGracePeriodSeconds) * time.Second))
	}
	return true
}

// podUsage returns the usage of one pod. A pod that has terminated counts only for count/pods.
func podUsage(p *corev1.Pod, now time.Time) corev1.ResourceList {
	used := corev1.ResourceList{countPods: one()}
	if !podCounts(p, now) {
		return used
	}
	opts := resourcehelper.PodResourcesOptions{UseStatusResources: true}
	return quota.Add(used, compute(resourcehelper.PodRequests(p, opts), resourcehelper.PodLimits(p, opts)))
}

// compute converts the requests and limits of a pod or container to usage under the resource names of quotas, such as
// cpu, requests.cpu and limits.cpu. The result also contains one pod.
func compute(requests, limits corev1.ResourceList) corev1.ResourceList {
	used := corev1.ResourceList{corev1.ResourcePods: one()}
	for name, q := range requests {
		switch {
		case name == corev1.ResourceCPU, name == corev1.ResourceMemory, name == corev1.ResourceEphemeralStorage, strings.HasPrefix(string(name), hugePages):
			used[name] = q
			used[requestsPrefix+name] = q
		case validate.IsExtended(name), strings.HasPrefix(string(name), resourcev1.ResourceDeviceClassPrefix):
			used[requestsPrefix+name] = q
		}
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		if q, ok := limits[name]; ok {
			used["limits."+name] = q
		}
	}
	return used
}

// podConstraints returns an error if a container does not specify the CPU or memory requests or
// limits in required, the resource names that a quota limits. Pods with pod-level resources are
// exempt.
func podConstraints(required []corev1.ResourceName, item runtime.Object) error {
	p, err := as[*corev1.Pod](item)
	if err != nil {
		return err
	}
	if resourcehelper.IsPodLevelResourcesSet(p) {
		return nil
	}
	missing := map[string][]string{}
	for _, list := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range list {
			has := compute(list[i].Resources.Requests, list[i].Resources.Limits)
			for _, name := range required {
				switch name {
				case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory,
					corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory:
					if _, ok := has[name]; !ok {
						missing[string(name)] = append(missing[string(name)], list[i].Name)
					}
				}
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	var says []string
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		slices.Sort(missing[name])
		says = append(says, name+" for: "+strings.Join(slices.Compact(missing[name]), ","))
	}
	return fmt.Errorf("must specify %s", strings.Join(says, "; "))
}

// terminating reports whether a pod is in the quota scope Terminating: it has an active deadline,
// which is not negative.
func terminating(p *corev1.Pod) bool {
	return p.Spec.ActiveDeadlineSeconds != nil && *p.Spec.ActiveDeadlineSeconds >= 0
}

// podScope reports whether a pod is in the scope of a quota. item must be a Pod.
func podScope(s corev1.ScopedResourceSelectorRequirement, item runtime.Object) (bool, error) {
	p, err := as[*corev1.Pod](item)
	if err != nil {
		return false, err
	}
	switch s.ScopeName {
	case corev1.ResourceQuotaScopeTerminating:
		return terminating(p), nil
	case corev1.ResourceQuotaScopeNotTerminating:
		return !terminating(p), nil
	case corev1.ResourceQuotaScopeBestEffort:
		return pod.QOS(p) == corev1.PodQOSBestEffort, nil
	case corev1.ResourceQuotaScopeNotBestEffort:
		return pod.QOS(p) != corev1.PodQOSBestEffort, nil
	case corev1.ResourceQuotaScopePriorityClass:
		var names []string
		if p.Spec.PriorityClassName != "" {
			names = []string{p.Spec.PriorityClassName}
		}
		return matchesName(s, names)
	case crossNamespaceScoped:
		return crossesNamespaces(p), nil
	}
	return false, nil
}

// crossesNamespaces reports whether p has affinity terms that refer to other namespaces.
func crossesNamespaces(p *corev1.Pod) bool {
	a := p.Spec.Affinity
	if a == nil {
		return false
	}
	crosses := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) bool {
		term := func(t *corev1.PodAffinityTerm) bool { return len(t.Namespaces) > 0 || t.NamespaceSelector != nil }
		for i := range required {
			if term(&required[i]) {
				return true
			}
		}
		for i := range preferred {
			if term(&preferred[i].PodAffinityTerm) {
				return true
			}
		}
		return false
	}
	return a.PodAffinity != nil && crosses(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution) ||
		a.PodAntiAffinity != nil && crosses(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
}
