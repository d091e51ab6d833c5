package podactions

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/components/apiserver/registry"
	"hyperkube/components/apiserver/request"
	"hyperkube/components/apiserver/rest"
	"hyperkube/internal/api"
	"hyperkube/internal/pod/podutil"
	"hyperkube/internal/store"
)

// maxDisrupted is the maximum number of evicted pods of a budget that the disruption controller has
// not processed yet. Further evictions are rejected.
const maxDisrupted = 2000

// maxAttempts is the maximum number of attempts to update a budget or pod after conflicts with
// other writers.
const maxAttempts = 20

// budgets is the resource of PodDisruptionBudgets, which limit evictions.
var budgets = policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets")

// evictAction returns the registry's action for POST to pods/eviction.
func evictAction(reg *registry.Registry) *registry.Action {
	e := &evictor{reg}
	return &registry.Action{
		Resource: pods, Subresource: "eviction", Kind: policyv1.SchemeGroupVersion.WithKind("Eviction"),
		FormerVersion: "v1beta1",
		New:           func() runtime.Object { return &policyv1.Eviction{} },
		Run:           e.run,
	}
}

// evictor handles POST requests to pods/eviction. It finds the resources of pods and disruption budgets in the
// registry.
type evictor struct{ registry *registry.Registry }

// run handles a POST to pods/eviction: it deletes the pod if its PodDisruptionBudget allows that, if it has none, or
// if no budget counts the pod. Otherwise it returns an error 429.
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
	if unread := opts.IgnoreStoreReadErrorWithClusterBreakingPotential; unread != nil && *unread {
		return nil, apierrors.NewInvalid(policyv1.SchemeGroupVersion.WithKind("Eviction").GroupKind(), call.Name, field.ErrorList{
			field.Invalid(field.NewPath("deleteOptions", "ignoreStoreReadErrorWithClusterBreakingPotential"), true, "can not be set for pod eviction, try after removing the option"),
		})
	}
	// Dry run can be requested in the query or in the body. If both are set, they must be equal.
	switch {
	case len(opts.DryRun) == 0:
		opts.DryRun = call.DryRuns
	case len(call.DryRuns) > 0 && !slices.Equal(call.DryRuns, opts.DryRun):
		return nil, fmt.Errorf("Non-matching dry-run options in request and content: %v and %v", call.DryRuns, opts.DryRun)
	}
	if err := request.CheckDeleteOptions(opts); err != nil {
		return nil, err
	}
	call.DryRun = len(opts.DryRun) > 0
	if err := call.Validate(ctx, eviction); err != nil {
		return nil, err
	}
	pod, gone, err := e.evictUncounted(ctx, call, opts)
	if err != nil {
		return nil, err
	}
	if gone {
		return &metav1.Status{Status: metav1.StatusSuccess}, nil
	}
	budget, err := e.budget(ctx, pod)
	if several, ok := errors.AsType[*multipleBudgetsError](err); ok {
		return several.status(), nil
	}
	if err != nil {
		return nil, err
	}
	if budget != nil {
		guarded, err := e.takeDisruption(ctx, pod, budget, call.DryRun)
		if err != nil {
			return nil, err
		}
		if !guarded {
			// The pod may have become ready since, so delete only this version of it.
			err := evict(ctx, call, pod, withResourceVersion(opts, pod.ResourceVersion))
			if apierrors.IsConflict(err) && anyVersion(opts) {
				return nil, budgetNotReady(budget.Key()[len(pod.Namespace)+1:])
			}
			if err != nil {
				return nil, err
			}
			return &metav1.Status{Status: metav1.StatusSuccess}, nil
		}
	}
	if err := evict(ctx, call, pod, opts); err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

// evictUncounted evicts the pod if no budget counts it, because it has terminated, is being deleted or is pending,
// and returns gone true. Otherwise it only returns the pod. A pending pod may start in the meantime, so only its
// current version is deleted; after a conflict it tries again, up to maxAttempts times.
func (e *evictor) evictUncounted(ctx context.Context, call registry.ActionCall, opts *metav1.DeleteOptions) (pod *corev1.Pod, gone bool, err error) {
	for range maxAttempts {
		if pod, err = e.pod(ctx, call); err != nil {
			return nil, false, err
		}
		as := opts
		switch {
		case finished(pod):
		case pod.Status.Phase != corev1.PodPending:
			return pod, false, nil
		case anyVersion(opts):
			as = withResourceVersion(opts, pod.ResourceVersion)
		}
		if err = evict(ctx, call, pod, as); err == nil {
			return pod, true, nil
		}
		if !apierrors.IsConflict(err) || !anyVersion(opts) {
			return nil, false, err
		}
	}
	return nil, false, err
}

// anyVersion reports whether the delete options apply to any resource version of the pod.
func anyVersion(opts *metav1.DeleteOptions) bool {
	return opts.Preconditions == nil || opts.Preconditions.ResourceVersion == nil
}

// withResourceVersion returns a copy of opts that only allows deleting the given resource version
// of the pod.
func withResourceVersion(opts *metav1.DeleteOptions, version string) *metav1.DeleteOptions {
	opts = opts.DeepCopy()
	if opts.Preconditions == nil {
		opts.Preconditions = &metav1.Preconditions{}
	}
	opts.Preconditions.ResourceVersion = &version
	return opts
}

// evict adds the condition DisruptionTarget to a pod and deletes it. On a dry run it only simulates the deletion. It
// returns a conflict if the pod does not meet the preconditions of opts, or was deleted and created again.
func evict(ctx context.Context, call registry.ActionCall, pod *corev1.Pod, opts *metav1.DeleteOptions) error {
	opts = opts.DeepCopy()
	if opts.Preconditions == nil {
		opts.Preconditions = &metav1.Preconditions{}
	}
	must := opts.Preconditions
	if must.UID == nil {
		must.UID = &pod.UID
	}
	if !call.DryRun {
		version, err := call.Change(ctx, registry.ServerChange{Resource: pods, Name: call.Name}, func(obj api.Object) error {
			p, ok := obj.(*corev1.Pod)
			if !ok {
				return fmt.Errorf("eviction: %s is a %T", call.Name, obj)
			}
			if err := checkPreconditions(p, must); err != nil {
				return err
			}
			setCondition(p, corev1.PodCondition{
				Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
				Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting",
			})
			return nil
		})
		if err != nil {
			return err
		}
		if must.ResourceVersion != nil {
			must.ResourceVersion = &version
		}
	}
	return call.Delete(ctx, opts)
}

// checkPreconditions returns a conflict if the pod does not have the UID and resource version that must contains. A
// nil or empty value matches all.
func checkPreconditions(p *corev1.Pod, must *metav1.Preconditions) error {
	conflict := func(format string, args ...any) error {
		return apierrors.NewConflict(schema.GroupResource{Resource: "Pod"}, p.Name, fmt.Errorf(format, args...))
	}
	if uid := must.UID; uid != nil && *uid != "" && *uid != p.UID {
		return conflict("the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated", *uid, p.UID)
	}
	if v := must.ResourceVersion; v != nil && *v != "" && *v != p.ResourceVersion {
		return conflict("the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). The object might have been modified", *v, p.ResourceVersion)
	}
	return nil
}

// pod returns the pod of an eviction, after all completed writes, or a NotFound error. It is shared and must not be
// modified.
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

// finished reports whether a pod has terminated or is being deleted. No disruption budget counts
// such pods.
func finished(pod *corev1.Pod) bool {
	return podutil.Terminal(pod) || pod.DeletionTimestamp != nil
}

// multipleBudgetsError is the error for evicting a pod that several budgets select, which the API
// does not support.
type multipleBudgetsError struct{}

// Error returns upstream's text.
func (*multipleBudgetsError) Error() string {
	return "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
}

// status returns the response for the error. As in upstream it has the code 500 and no reason.
func (e *multipleBudgetsError) status() *metav1.Status {
	return &metav1.Status{Status: metav1.StatusFailure, Message: e.Error(), Code: http.StatusInternalServerError}
}

// budget returns the entry of the disruption budget that selects the pod, or nil if there is none.
// It returns a *multipleBudgetsError if there are several.
func (e *evictor) budget(ctx context.Context, pod *corev1.Pod) (*store.Entry, error) {
	res := e.registry.Lookup(budgets)
	if res == nil {
		return nil, nil
	}
	page, err := res.Collection.List(ctx, store.ListOptions{Prefix: pod.Namespace + "/", Revision: -1})
	if err != nil {
		return nil, rest.StoreError(res, "", err)
	}
	var mine *store.Entry
	for _, entry := range page.Entries {
		b, err := budgetOf(res, entry)
		if err != nil {
			return nil, err
		}
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || !selector.Matches(labels.Set(pod.Labels)) {
			continue // a budget with an invalid selector applies to no pod
		}
		if mine != nil {
			return nil, &multipleBudgetsError{}
		}
		mine = entry
	}
	return mine, nil
}

// takeDisruption decrements the allowed disruptions of the budget mine in the store (not on a dry run). It returns an
// error if the budget allows no disruption, or after maxAttempts conflicts. guarded is false if the pod is unready
// and can be evicted regardless of the budget; nothing is written then.
func (e *evictor) takeDisruption(ctx context.Context, pod *corev1.Pod, mine *store.Entry, dryRun bool) (guarded bool, err error) {
	res := e.registry.Lookup(budgets)
	var lost *store.ConflictError
	for n := range maxAttempts {
		b, err := budgetOf(res, mine)
		if err != nil {
			return true, err
		}
		if n == 0 && evictableUnready(pod, b) {
			return false, nil
		}
		b = b.DeepCopy()
		if err := take(b, pod.Name); err != nil || dryRun {
			return true, err
		}
		stored, err := res.Stored(b)
		if err != nil {
			return true, err
		}
		_, _, err = res.Collection.Store().Commit(ctx, res.Collection.Update(mine, stored, 0))
		switch {
		case err == nil:
			return true, nil
		case !errors.As(err, &lost), lost.Current == nil:
			return true, rest.StoreError(res, b.Name, err)
		}
		mine = lost.Current
	}
	return true, rest.StoreError(res, lost.Current.Key()[len(pod.Namespace)+1:], lost)
}

// budgetOf returns the PodDisruptionBudget of an entry. It is shared and must not be modified.
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

// evictableUnready reports whether a pod is unready and its budget allows evicting it regardless of the allowed
// disruptions: unhealthyPodEvictionPolicy is AlwaysAllow, or enough other pods are healthy.
func evictableUnready(pod *corev1.Pod, b *policyv1.PodDisruptionBudget) bool {
	if podutil.Ready(pod) {
		return false
	}
	if p := b.Spec.UnhealthyPodEvictionPolicy; p != nil && *p == policyv1.AlwaysAllow {
		return true
	}
	return b.Status.CurrentHealthy >= b.Status.DesiredHealthy && b.Status.DesiredHealthy > 0
}

// take records in the status of the budget b that the pod is evicted, without writing it. It returns an error if the
// status is outdated, too many evictions are pending, or the budget allows no disruption.
func take(b *policyv1.PodDisruptionBudget, pod string) error {
	gr := schema.GroupResource{Group: policyv1.GroupName, Resource: "poddisruptionbudget"}
	forbidden := func(reason, why string) error {
		err := apierrors.NewForbidden(gr, b.Name, errors.New(reason))
		return withBudgetCause(err, fmt.Sprintf("The disruption budget %s does not allow evicting pods currently: %s", b.Name, why))
	}
	switch {
	case b.Status.ObservedGeneration < b.Generation:
		return budgetNotReady(b.Name)
	case b.Status.DisruptionsAllowed < 0:
		return forbidden("pdb disruptions allowed is negative", "pdb disruptions allowed is negative")
	case len(b.Status.DisruptedPods) > maxDisrupted:
		return forbidden("DisruptedPods map too big - too many evictions not confirmed by PDB controller", "too many pending evictions not confirmed by PDB controller")
	case b.Status.DisruptionsAllowed == 0:
		return tooMany(blockedReason(b), 0)
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

// blockedReason returns the message why a budget allows no eviction. If the disruption controller's
// last sync failed, the numbers in the status are invalid, and the message contains the failure
// instead.
func blockedReason(b *policyv1.PodDisruptionBudget) string {
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

// tooMany returns the error 429 for a budget that allows no eviction. cause is the detailed reason,
// retry the number of seconds after which the client retries.
func tooMany(cause string, retry int) error {
	return withBudgetCause(apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", retry), cause)
}

// budgetNotReady returns the error 429 for a budget whose status the disruption controller has not
// updated yet.
func budgetNotReady(budget string) error {
	return tooMany(fmt.Sprintf("The disruption budget %s is still being processed by the server.", budget), 10)
}

// withBudgetCause adds a cause of the type DisruptionBudget to err and returns err.
func withBudgetCause(err *apierrors.StatusError, cause string) error {
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: cause})
	return err
}
