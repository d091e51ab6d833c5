package podactions

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"hyperkube/components/apiserver/registry"
	"hyperkube/components/apiserver/rest"
	"hyperkube/internal/api"
	"hyperkube/internal/store"
)

// maxDisrupted bounds the evictions that the budget's controller has not
// confirmed yet.
const maxDisrupted = 2000

// attempts to take from a budget that others take from too.
const attempts = 20

var budgets = policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets")

func evictAction(reg *registry.Registry) *registry.Action {
	e := &evictor{reg}
	return &registry.Action{
		Resource: pods, Subresource: "eviction", Kind: policyv1.SchemeGroupVersion.WithKind("Eviction"),
		New: func() runtime.Object { return &policyv1.Eviction{} },
		Run: e.run,
	}
}

type evictor struct{ registry *registry.Registry }

// run deletes a pod, if the disruption budgets allow it.
//
// https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/
func (e *evictor) run(ctx context.Context, call registry.ActionCall) (runtime.Object, error) {
	eviction, ok := call.Object.(*policyv1.Eviction)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Eviction object: %T", call.Object))
	}
	if eviction.Name != call.Name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	opts := eviction.DeleteOptions
	if opts == nil {
		opts = &metav1.DeleteOptions{}
	}
	// Either of the two asks for it.
	call.DryRun = call.DryRun || len(opts.DryRun) > 0
	if call.DryRun {
		opts.DryRun = []string{metav1.DryRunAll}
	}
	if err := call.Validate(ctx, eviction); err != nil {
		return nil, err
	}
	pod, err := e.pod(ctx, call)
	if err != nil {
		return nil, err
	}
	if !finished(pod) {
		if err := e.ask(ctx, pod, call.DryRun); err != nil {
			return nil, err
		}
	}
	if !call.DryRun {
		_, err := call.Change(ctx, registry.OwnChange{Resource: pods, Name: call.Name}, func(obj api.Object) error {
			p, ok := obj.(*corev1.Pod)
			if !ok {
				return fmt.Errorf("eviction: %s is a %T", call.Name, obj)
			}
			if p.UID != pod.UID {
				return apierrors.NewNotFound(pods.GroupResource(), call.Name)
			}
			setCondition(p, corev1.PodCondition{
				Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
				Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting",
			})
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if opts.Preconditions == nil {
		opts.Preconditions = &metav1.Preconditions{}
	}
	if opts.Preconditions.UID == nil {
		opts.Preconditions.UID = &pod.UID
	}
	if err := call.Delete(ctx, opts); err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

func (e *evictor) pod(ctx context.Context, call registry.ActionCall) (*corev1.Pod, error) {
	res := e.registry.Lookup(pods)
	entry, err := res.Collection.Get(ctx, res.Key(call.Namespace, call.Name), -1)
	if err != nil {
		return nil, rest.StoreError(res, call.Name, err)
	}
	obj, err := res.Read(entry)
	if err != nil {
		return nil, err
	}
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("eviction: %s is a %T", call.Name, obj)
	}
	return pod, nil
}

// finished pods, those that have not begun and those that go already count for
// no budget.
func finished(pod *corev1.Pod) bool {
	switch pod.Status.Phase {
	case corev1.PodSucceeded, corev1.PodFailed, corev1.PodPending:
		return true
	}
	return pod.DeletionTimestamp != nil
}

// ask takes one disruption from the pod's budget, if it has one.
func (e *evictor) ask(ctx context.Context, pod *corev1.Pod, dryRun bool) error {
	res := e.registry.Lookup(budgets)
	if res == nil || len(pod.Labels) == 0 {
		return nil
	}
	page, err := res.Collection.List(ctx, store.ListOptions{Prefix: pod.Namespace + "/", Revision: -1})
	if err != nil {
		return rest.StoreError(res, "", err)
	}
	var mine *store.Entry
	for _, entry := range page.Entries {
		b, err := budgetOf(res, entry)
		if err != nil {
			return err
		}
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || !selector.Matches(labels.Set(pod.Labels)) {
			continue // what cannot be parsed is nobody's budget
		}
		if mine != nil {
			return apierrors.NewInternalError(errors.New("This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."))
		}
		mine = entry
	}
	if mine == nil {
		return nil
	}
	for range attempts {
		b, err := budgetOf(res, mine)
		if err != nil {
			return err
		}
		if spared(pod, b) {
			return nil
		}
		b = b.DeepCopy()
		if err := take(b, pod.Name); err != nil || dryRun {
			return err
		}
		stored, err := res.Stored(b)
		if err != nil {
			return err
		}
		_, _, err = res.Collection.Store().Commit(ctx, res.Collection.Update(mine, stored, 0))
		var lost *store.ConflictError
		switch {
		case err == nil:
			return nil
		case !errors.As(err, &lost):
			return rest.StoreError(res, b.Name, err)
		case lost.Current == nil:
			return nil // the budget is gone
		}
		mine = lost.Current
	}
	return tooMany(fmt.Sprintf("couldn't update PodDisruptionBudget %q due to conflicts", mine.Key()), "", 10)
}

func budgetOf(res *registry.Resource, entry *store.Entry) (*policyv1.PodDisruptionBudget, error) {
	obj, err := res.Read(entry)
	if err != nil {
		return nil, err
	}
	b, ok := obj.(*policyv1.PodDisruptionBudget)
	if !ok {
		return nil, fmt.Errorf("eviction: %s is a %T", entry.Key(), obj)
	}
	return b, nil
}

// spared pods are not ready and may go whatever the budget says, because it
// does not count them.
func spared(pod *corev1.Pod, b *policyv1.PodDisruptionBudget) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return false
		}
	}
	if p := b.Spec.UnhealthyPodEvictionPolicy; p != nil && *p == policyv1.AlwaysAllow {
		return true
	}
	return b.Status.CurrentHealthy >= b.Status.DesiredHealthy && b.Status.DesiredHealthy > 0
}

func take(b *policyv1.PodDisruptionBudget, pod string) error {
	gr := schema.GroupResource{Group: policyv1.GroupName, Resource: "poddisruptionbudget"}
	switch {
	case b.Status.ObservedGeneration < b.Generation:
		return tooMany("Cannot evict pod as it would violate the pod's disruption budget.",
			fmt.Sprintf("The disruption budget %s is still being processed by the server.", b.Name), 10)
	case b.Status.DisruptionsAllowed < 0:
		return apierrors.NewForbidden(gr, b.Name, errors.New("pdb disruptions allowed is negative"))
	case len(b.Status.DisruptedPods) > maxDisrupted:
		return apierrors.NewForbidden(gr, b.Name, errors.New("DisruptedPods map too big - too many evictions not confirmed by PDB controller"))
	case b.Status.DisruptionsAllowed == 0:
		return tooMany("Cannot evict pod as it would violate the pod's disruption budget.",
			whyNot(b), 0)
	}
	b.Status.DisruptionsAllowed--
	if b.Status.DisruptionsAllowed == 0 {
		meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{
			Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse,
			Reason: policyv1.InsufficientPodsReason, ObservedGeneration: b.Status.ObservedGeneration,
		})
	}
	if b.Status.DisruptedPods == nil {
		b.Status.DisruptedPods = map[string]metav1.Time{}
	}
	b.Status.DisruptedPods[pod] = metav1.NewTime(time.Now().Truncate(time.Second))
	return nil
}

// whyNot says why a budget allows no eviction. Its numbers mean nothing while
// its pods cannot be counted.
func whyNot(b *policyv1.PodDisruptionBudget) string {
	cond := meta.FindStatusCondition(b.Status.Conditions, policyv1.DisruptionAllowedCondition)
	says := cond != nil && cond.Status == metav1.ConditionFalse && cond.Message != ""
	switch {
	case says && cond.Reason == policyv1.SyncFailedReason:
		return fmt.Sprintf("The disruption budget %s does not allow evicting pods currently because it failed sync: %s", b.Name, cond.Message)
	case b.Status.CurrentHealthy <= b.Status.DesiredHealthy:
		return fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", b.Name, b.Status.DesiredHealthy, b.Status.CurrentHealthy)
	case says:
		return fmt.Sprintf("The disruption budget %s does not allow evicting pods currently (%s): %s", b.Name, cond.Reason, cond.Message)
	}
	return fmt.Sprintf("The disruption budget %s does not allow evicting pods currently", b.Name)
}

func tooMany(message, cause string, retry int) error {
	err := apierrors.NewTooManyRequests(message, retry)
	if cause != "" {
		err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
			Type: policyv1.DisruptionBudgetCause, Message: cause,
		})
	}
	return err
}
