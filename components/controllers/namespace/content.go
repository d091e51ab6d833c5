package namespace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/discovery"

	"hyperkube/internal/pod/podutil"
)

// finalizerEstimate is the estimated time until objects with finalizers, and pods whose grace period is over, are
// deleted.
const finalizerEstimate = 15 * time.Second

// podsGVR is the resource of pods, which are deleted before all other objects.
var podsGVR = corev1.SchemeGroupVersion.WithResource("pods")

// verbs are the verbs, besides delete, that a resource supports.
type verbs struct{ deleteCollection, list bool }

// report collects what prevents the deletion of a namespace: errors of discovery, of parsing a group version and of
// deletions, the number of remaining objects of each resource, and how many of them have each finalizer.
type report struct {
	discovery, groupVersion error
	deletion                []error
	remaining               map[schema.GroupVersionResource]int
	finalizers              map[string]int
}

// deleteContent deletes all pods in ns and then, if none remain and no deletion failed, all other objects. It updates
// the conditions of ns and returns an estimate of how long the deletion of the remaining objects will take, zero if
// none remain. It returns an error if discovery or a deletion failed; ns must not be finalized then.
func (c *Controller) deleteContent(ctx context.Context, ns *corev1.Namespace) (time.Duration, error) {
	r := &report{remaining: map[schema.GroupVersionResource]int{}, finalizers: map[string]int{}}
	resources, err := c.resources(r)
	errs := []error{}
	if err != nil {
		errs = append(errs, err)
	}
	var left time.Duration
	do := func(gvr schema.GroupVersionResource, v verbs) {
		d, err := c.deleteAll(ctx, ns, gvr, v, r)
		if err != nil {
			errs = append(errs, err)
			r.deletion = append(r.deletion, err)
			return
		}
		left = max(left, d)
	}
	// Delete pods first: running pods may need the other objects for a clean shutdown.
	if v, ok := resources[podsGVR]; ok {
		do(podsGVR, v)
	}
	if len(r.remaining) == 0 && len(r.deletion) == 0 {
		for gvr, v := range resources {
			if gvr != podsGVR {
				do(gvr, v)
			}
		}
	}
	conds := r.conditions()
	if _, err := c.update(ctx, ns, func(s *corev1.NamespaceStatus) { setConditions(s, conds, c.env.Clock.Now()) }); err != nil {
		errs = append(errs, err)
	}
	if len(r.remaining) > 0 && left == 0 {
		left = time.Second
	}
	return left, utilerrors.NewAggregate(errs)
}

// resources returns all namespaced resources whose objects can be deleted. If discovery fails for some groups, it
// returns the resources of the others and an error. It also stores errors in r.
func (c *Controller) resources(r *report) (map[schema.GroupVersionResource]verbs, error) {
	lists, err := discovery.ServerPreferredNamespacedResources(c.cfg.Discovery)
	if err != nil {
		// The discovered resources are still deleted. The namespace is kept until discovery is
		// complete.
		r.discovery = err
	}
	out := map[schema.GroupVersionResource]verbs{}
	for _, l := range lists {
		gv, parseErr := schema.ParseGroupVersion(l.GroupVersion)
		if parseErr != nil {
			r.groupVersion = parseErr
			err = errors.Join(err, parseErr)
			continue
		}
		for _, res := range l.APIResources {
			if !slices.Contains(res.Verbs, "delete") || strings.Contains(res.Name, "/") {
				continue
			}
			out[gv.WithResource(res.Name)] = verbs{
				deleteCollection: slices.Contains(res.Verbs, "deletecollection"),
				list:             slices.Contains(res.Verbs, "list"),
			}
		}
	}
	return out, err
}

// deleteAll deletes the objects of a resource in ns, with a single request if the resource supports it. It adds the
// objects that remain to r, and returns an estimate of how long their deletion will take. It returns an error if
// objects remain without a known reason.
func (c *Controller) deleteAll(ctx context.Context, ns *corev1.Namespace, gvr schema.GroupVersionResource, v verbs, r *report) (time.Duration, error) {
	estimate := time.Duration(0)
	if gvr == podsGVR {
		estimate = c.podGracePeriod(ns)
	}
	api := c.cfg.Metadata.Resource(gvr).Namespace(ns.Name)
	background := metav1.DeletePropagationBackground
	opts := metav1.DeleteOptions{PropagationPolicy: &background}
	if v.deleteCollection {
		err := api.DeleteCollection(ctx, opts, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			return 0, nil
		}
		if err != nil && !apierrors.IsMethodNotSupported(err) {
			return 0, err
		}
		v.deleteCollection = err == nil
	}
	if !v.list {
		return 0, nil
	}
	list, err := api.List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if !v.deleteCollection && len(list.Items) > 0 {
		var errs []error
		for i := range list.Items {
			if err := api.Delete(ctx, list.Items[i].Name, opts); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsMethodNotSupported(err) {
				errs = append(errs, err)
			}
		}
		if len(errs) > 0 {
			return 0, utilerrors.NewAggregate(errs)
		}
		if list, err = api.List(ctx, metav1.ListOptions{}); err != nil {
			return 0, err
		}
	}
	if len(list.Items) == 0 {
		return 0, nil
	}
	r.remaining[gvr] = len(list.Items)
	waits := false
	for i := range list.Items {
		for _, f := range list.Items[i].Finalizers {
			r.finalizers[f]++
			waits = true
		}
	}
	switch {
	case estimate > 0:
		return estimate, nil
	case waits:
		return finalizerEstimate, nil
	case gvr == podsGVR:
		// The grace period is over, but the kubelet has not confirmed the termination yet.
		return finalizerEstimate, nil
	}
	return 0, fmt.Errorf("unexpected items still remain in namespace: %s for gvr: %v", ns.Name, gvr)
}

// podGracePeriod returns how long the running pods of ns may still take to terminate: the longest grace period, minus
// the time since the deletion of ns.
func (c *Controller) podGracePeriod(ns *corev1.Namespace) time.Duration {
	pods, err := c.pods.Pods(ns.Name).List(labels.Everything())
	if err != nil {
		return 0
	}
	var most time.Duration
	for _, p := range pods {
		if g := p.Spec.TerminationGracePeriodSeconds; g != nil && !podutil.Terminal(p) {
			most = max(most, time.Duration(*g)*time.Second)
		}
	}
	since := c.env.Clock.Since(ns.DeletionTimestamp.Time)
	return max(0, most-max(0, since))
}

// conditionTypes are the conditions of a namespace that is being deleted, with the reason and
// message if there is no problem.
var conditionTypes = []struct {
	kind            corev1.NamespaceConditionType
	reason, message string
}{
	{corev1.NamespaceDeletionDiscoveryFailure, "ResourcesDiscovered", "All resources successfully discovered"},
	{corev1.NamespaceDeletionGVParsingFailure, "ParsedGroupVersions", "All legacy kube types successfully parsed"},
	{corev1.NamespaceDeletionContentFailure, "ContentDeleted", "All content successfully deleted, may be waiting on finalization"},
	{corev1.NamespaceContentRemaining, "ContentRemoved", "All content successfully removed"},
	{corev1.NamespaceFinalizersRemaining, "ContentHasNoFinalizers", "All content-preserving finalizers finished"},
}

// conditions returns all conditions of conditionTypes. A condition is true if the report contains the corresponding
// problem.
func (r *report) conditions() []corev1.NamespaceCondition {
	bad := map[corev1.NamespaceConditionType][2]string{}
	if r.discovery != nil {
		msg := r.discovery.Error()
		if failed, ok := errors.AsType[*discovery.ErrGroupDiscoveryFailed](r.discovery); ok {
			msg = fmt.Sprintf("Discovery failed for some groups, %d failing: %v", len(failed.Groups), r.discovery)
		}
		bad[corev1.NamespaceDeletionDiscoveryFailure] = [2]string{"DiscoveryFailed", msg}
	}
	if r.groupVersion != nil {
		bad[corev1.NamespaceDeletionGVParsingFailure] = [2]string{"GroupVersionParsingFailed", r.groupVersion.Error()}
	}
	if n := len(r.deletion); n > 0 {
		texts := make([]string, n)
		for i, err := range r.deletion {
			texts[i] = err.Error()
		}
		slices.Sort(texts)
		bad[corev1.NamespaceDeletionContentFailure] = [2]string{"ContentDeletionFailed",
			fmt.Sprintf("Failed to delete all resource types, %d remaining: %s", n, strings.Join(texts, ", "))}
	}
	var parts []string
	for gvr, n := range r.remaining {
		parts = append(parts, fmt.Sprintf("%s.%s has %d resource instances", gvr.Resource, gvr.Group, n))
	}
	if len(parts) > 0 {
		slices.Sort(parts)
		bad[corev1.NamespaceContentRemaining] = [2]string{"SomeResourcesRemain", "Some resources are remaining: " + strings.Join(parts, ", ")}
	}
	parts = nil
	for f, n := range r.finalizers {
		parts = append(parts, fmt.Sprintf("%s in %d resource instances", f, n))
	}
	if len(parts) > 0 {
		slices.Sort(parts)
		bad[corev1.NamespaceFinalizersRemaining] = [2]string{"SomeFinalizersRemain", "Some content in the namespace has finalizers remaining: " + strings.Join(parts, ", ")}
	}
	var out []corev1.NamespaceCondition
	for _, t := range conditionTypes {
		cond := corev1.NamespaceCondition{Type: t.kind, Status: corev1.ConditionFalse, Reason: t.reason, Message: t.message}
		if b, ok := bad[t.kind]; ok {
			cond.Status, cond.Reason, cond.Message = corev1.ConditionTrue, b[0], b[1]
		}
		out = append(out, cond)
	}
	return out
}

// setConditions adds or replaces conds in s. The transition time of a condition changes only with its status.
func setConditions(s *corev1.NamespaceStatus, conds []corev1.NamespaceCondition, now time.Time) {
	for _, cond := range conds {
		i := slices.IndexFunc(s.Conditions, func(c corev1.NamespaceCondition) bool { return c.Type == cond.Type })
		switch {
		case i < 0:
			cond.LastTransitionTime = metav1.NewTime(now)
			s.Conditions = append(s.Conditions, cond)
		case s.Conditions[i].Status != cond.Status || s.Conditions[i].Message != cond.Message || s.Conditions[i].Reason != cond.Reason:
			cond.LastTransitionTime = s.Conditions[i].LastTransitionTime
			if s.Conditions[i].Status != cond.Status {
				cond.LastTransitionTime = metav1.NewTime(now)
			}
			s.Conditions[i] = cond
		}
	}
}
