package admission

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"hyperkube/components/apiserver/syncgate"
)

// limitRanger is the plugin LimitRanger. It sets the default requests and limits of the namespace's LimitRanges in
// new pods. It enforces their minimums, maximums and ratios for new and resized pods and for claims.
//
// https://kubernetes.io/docs/concepts/policy/limit-range/
type limitRanger struct {
	operations
	lister   corelisters.LimitRangeLister
	gate     *syncgate.Gate
	kube     kubernetes.Interface
	apiCache *namespaceCache[*corev1.LimitRange]
}

// newLimitRanger creates the plugin LimitRanger. It returns nil, which disables the plugin, if LimitRanges are not
// served.
func newLimitRanger(cfg *Config) (admission.Interface, error) {
	if !cfg.Serves(corev1.SchemeGroupVersion.WithResource("limitranges")) {
		return nil, nil
	}
	inf := cfg.Informers.Core().V1().LimitRanges()
	return &limitRanger{operations: onCreateUpdate, lister: inf.Lister(), gate: syncgate.NewGate(inf.Informer().HasSyncedChecker()), kube: cfg.Kube, apiCache: newNamespaceCache[*corev1.LimitRange]()}, nil
}

// ranges returns the LimitRanges of the namespace that apply to the request, sorted by name. It returns nil unless
// the request creates or resizes a pod, or creates or updates a claim that is not being deleted. It waits until the
// informer has synced, and lists through the API if the informer has none.
func (p *limitRanger) ranges(ctx context.Context, a admission.Attributes) ([]*corev1.LimitRange, error) {
	switch {
	case a.GetOperation() == admission.Create && isRequestFor(a, "", "pods"):
	case a.GetOperation() == admission.Update && a.GetResource().Group == "" && a.GetResource().Resource == "pods" && a.GetSubresource() == "resize":
	case isRequestFor(a, "", "persistentvolumeclaims"):
		if old, ok := a.GetOldObject().(*corev1.PersistentVolumeClaim); ok && old != nil && old.DeletionTimestamp != nil {
			return nil, nil
		}
	default:
		return nil, nil
	}
	if err := p.gate.Wait(ctx); err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	found, err := p.lister.LimitRanges(a.GetNamespace()).List(labels.Everything())
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if len(found) == 0 {
		if found, err = p.listFromAPI(ctx, a.GetNamespace()); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(found, func(x, y *corev1.LimitRange) int { return strings.Compare(x.Name, y.Name) })
	return found, nil
}

// listFromAPI lists the LimitRanges of a namespace through the API. ranges uses it if the informer
// has none, because a client that has just created the first LimitRange of a namespace expects it
// to take effect. The caller owns the slice, but the objects are shared.
func (p *limitRanger) listFromAPI(ctx context.Context, namespace string) ([]*corev1.LimitRange, error) {
	found, err := p.apiCache.get(namespace, func() (found []*corev1.LimitRange, _ error) {
		list, err := p.kube.CoreV1().LimitRanges(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			found = append(found, &list.Items[i])
		}
		return found, nil
	})
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return found, nil
}

// Admit sets the default requests and limits of the namespace's LimitRanges in the containers of a new pod.
func (p *limitRanger) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok || a.GetOperation() != admission.Create {
		return nil
	}
	ranges, err := p.ranges(ctx, a)
	if err != nil {
		return err
	}
	for _, r := range ranges {
		fillDefaults(pod, r)
	}
	return nil
}

// fillDefaults sets the default requests and limits of lr in the containers and init containers that do not set them.
// It lists what it has set in the annotation kubernetes.io/limit-ranger of the pod.
func fillDefaults(pod *corev1.Pod, lr *corev1.LimitRange) {
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	for i := range lr.Spec.Limits {
		item := &lr.Spec.Limits[i]
		if item.Type != corev1.LimitTypeContainer {
			continue
		}
		for k, v := range item.DefaultRequest {
			requests[k] = v.DeepCopy()
		}
		for k, v := range item.Default {
			limits[k] = v.DeepCopy()
		}
	}
	var notes []string
	fill := func(what string, containers []corev1.Container) {
		for i := range containers {
			c := &containers[i]
			if set := fillList(&c.Resources.Requests, requests); len(set) > 0 {
				notes = append(notes, fmt.Sprintf("%s request for %s %s", strings.Join(set, ", "), what, c.Name))
			}
			if set := fillList(&c.Resources.Limits, limits); len(set) > 0 {
				notes = append(notes, fmt.Sprintf("%s limit for %s %s", strings.Join(set, ", "), what, c.Name))
			}
		}
	}
	fill("container", pod.Spec.Containers)
	fill("init container", pod.Spec.InitContainers)
	if len(notes) > 0 {
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		pod.Annotations["kubernetes.io/limit-ranger"] = "LimitRanger plugin set: " + strings.Join(notes, "; ")
	}
}

// fillList adds the defaults that are missing to list and returns their names, sorted. It creates the list if it is
// nil and something is missing.
func fillList(list *corev1.ResourceList, defaults corev1.ResourceList) []string {
	var set []string
	for k, v := range defaults {
		if _, has := (*list)[k]; has {
			continue
		}
		if *list == nil {
			*list = corev1.ResourceList{}
		}
		(*list)[k] = v.DeepCopy()
		set = append(set, string(k))
	}
	slices.Sort(set)
	return set
}

// Validate rejects a pod or claim that violates a minimum, a maximum or a ratio of a LimitRange.
func (p *limitRanger) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	ranges, err := p.ranges(ctx, a)
	if err != nil {
		return err
	}
	for _, r := range ranges {
		var errs []error
		switch obj := a.GetObject().(type) {
		case *corev1.Pod:
			errs = checkPod(r, obj)
		case *corev1.PersistentVolumeClaim:
			errs = checkClaim(r, obj)
		}
		if len(errs) > 0 {
			return admission.NewForbidden(a, utilerrors.NewAggregate(errs))
		}
	}
	return nil
}

// checkPod returns how the requests and limits of a pod and of its containers and init containers violate the
// LimitRange lr. The overhead of the pod does not count.
func checkPod(lr *corev1.LimitRange, pod *corev1.Pod) []error {
	var errs []error
	for i := range lr.Spec.Limits {
		item := &lr.Spec.Limits[i]
		switch item.Type {
		case corev1.LimitTypeContainer:
			for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
				for j := range list {
					errs = append(errs, checkItem(item, list[j].Resources.Requests, list[j].Resources.Limits)...)
				}
			}
		case corev1.LimitTypePod:
			// The overhead of the runtime class does not count against the pod's limits.
			opts := resourcehelper.PodResourcesOptions{ExcludeOverhead: true}
			errs = append(errs, checkItem(item, resourcehelper.PodRequests(pod, opts), resourcehelper.PodLimits(pod, opts))...)
		}
	}
	return errs
}

// checkClaim returns how the requests of a claim violate the minimums and maximums of the LimitRange lr.
func checkClaim(lr *corev1.LimitRange, pvc *corev1.PersistentVolumeClaim) []error {
	var errs []error
	for i := range lr.Spec.Limits {
		item := &lr.Spec.Limits[i]
		if item.Type != corev1.LimitTypePersistentVolumeClaim {
			continue
		}
		requests := pvc.Spec.Resources.Requests
		errs = forEachResource(errs, item.Min, func(name corev1.ResourceName, want resource.Quantity) error {
			return checkMin(item.Type, name, want, requests, nil)
		})
		errs = forEachResource(errs, item.Max, func(name corev1.ResourceName, want resource.Quantity) error {
			req, ok := requests[name]
			switch {
			case !ok:
				return fmt.Errorf("maximum %s usage per %s is %s.  No request is specified", name, item.Type, want.String())
			case req.Cmp(want) > 0:
				return fmt.Errorf("maximum %s usage per %s is %s, but request is %s", name, item.Type, want.String(), req.String())
			}
			return nil
		})
	}
	return errs
}

// forEachResource calls check for every resource in list, sorted by name. It returns errs with the
// returned errors appended.
func forEachResource(errs []error, list corev1.ResourceList, check func(corev1.ResourceName, resource.Quantity) error) []error {
	names := make([]corev1.ResourceName, 0, len(list))
	for name := range list {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := check(name, list[name]); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// checkItem returns how requests and limits violate the minimums, maximums and ratios of one item of a LimitRange. A
// missing limit violates a maximum, a missing request a minimum.
func checkItem(item *corev1.LimitRangeItem, requests, limits corev1.ResourceList) []error {
	var errs []error
	errs = forEachResource(errs, item.Min, func(name corev1.ResourceName, want resource.Quantity) error {
		return checkMin(item.Type, name, want, requests, limits)
	})
	errs = forEachResource(errs, item.Max, func(name corev1.ResourceName, want resource.Quantity) error {
		req, hasReq := requests[name]
		lim, hasLim := limits[name]
		switch {
		case !hasLim:
			return fmt.Errorf("maximum %s usage per %s is %s.  No limit is specified", name, item.Type, want.String())
		case lim.Cmp(want) > 0:
			return fmt.Errorf("maximum %s usage per %s is %s, but limit is %s", name, item.Type, want.String(), lim.String())
		case hasReq && req.Cmp(want) > 0:
			return fmt.Errorf("maximum %s usage per %s is %s, but request is %s", name, item.Type, want.String(), req.String())
		}
		return nil
	})
	return forEachResource(errs, item.MaxLimitRequestRatio, func(name corev1.ResourceName, want resource.Quantity) error {
		return checkRatio(item.Type, name, want, requests, limits)
	})
}

// checkMin returns an error if the request of the resource name is missing or it or its limit is less than the
// minimum want.
func checkMin(kind corev1.LimitType, name corev1.ResourceName, want resource.Quantity, requests, limits corev1.ResourceList) error {
	req, hasReq := requests[name]
	lim, hasLim := limits[name]
	switch {
	case !hasReq:
		return fmt.Errorf("minimum %s usage per %s is %s.  No request is specified", name, kind, want.String())
	case req.Cmp(want) < 0:
		return fmt.Errorf("minimum %s usage per %s is %s, but request is %s", name, kind, want.String(), req.String())
	case hasLim && lim.Cmp(want) < 0:
		return fmt.Errorf("minimum %s usage per %s is %s, but limit is %s", name, kind, want.String(), lim.String())
	}
	return nil
}

// checkRatio returns an error if the limit of the resource name divided by its request is more than want, or if one
// of them is missing or 0.
func checkRatio(kind corev1.LimitType, name corev1.ResourceName, want resource.Quantity, requests, limits corev1.ResourceList) error {
	req, hasReq := requests[name]
	lim, hasLim := limits[name]
	if !hasReq || req.IsZero() {
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but no request is specified or request is 0", name, kind, want.String())
	}
	if !hasLim || lim.IsZero() {
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but no limit is specified or limit is 0", name, kind, want.String())
	}
	ratio := lim.AsApproximateFloat64() / req.AsApproximateFloat64()
	if ratio > want.AsApproximateFloat64() {
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but provided ratio is %f", name, kind, want.String(), ratio)
	}
	return nil
}
