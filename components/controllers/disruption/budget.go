package disruption

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"hyperkube/internal/pod/podutil"
)

// syncBudget counts the pods that the budget b selects and writes the numbers to its status. It emits events if b
// selects no pods, or if the number of pods that should exist cannot be determined.
func (c *Controller) syncBudget(ctx context.Context, b *policyv1.PodDisruptionBudget) error {
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	var pods []*corev1.Pod
	if err == nil {
		pods, err = c.pods.Pods(b.Namespace).List(selector)
	}
	if err != nil {
		c.env.Events.Eventf(b, corev1.EventTypeWarning, "NoPods", "Failed to get pods: %v", err)
		return err
	}
	if len(pods) == 0 {
		c.env.Events.Event(b, corev1.EventTypeNormal, "NoPods", "No matching pods found")
	}
	expected, desired, unmanaged, err := c.expectedCounts(ctx, b, pods)
	if err != nil {
		c.env.Events.Eventf(b, corev1.EventTypeWarning, "CalculateExpectedPodCountFailed", "Failed to calculate the number of expected pods: %v", err)
		return err
	}
	if unmanaged {
		c.env.Events.Eventf(b, corev1.EventTypeWarning, "UnmanagedPods",
			"Pods selected by this PodDisruptionBudget (selector: %v) were found to be unmanaged. As a result, the status of the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods please set \".spec.minAvailable\" field of the PDB to an integer value.", b.Spec.Selector)
	}
	now := c.env.Clock.Now()
	leaving, recheck := c.pendingEvictions(b, pods, now)
	var healthy int32
	for _, p := range pods {
		if _, goes := leaving[p.Name]; !goes && p.DeletionTimestamp == nil && podutil.Ready(p) {
			healthy++
		}
	}
	if err := c.write(ctx, b, count{healthy: healthy, desired: desired, expected: expected}, leaving); err != nil {
		return err
	}
	if recheck > 0 {
		c.AddAfter(b.Namespace+"/"+b.Name, recheck)
	}
	return nil
}

// pendingEvictions returns the pods that were evicted but whose deletion has not started yet, by name, with the times
// of their evictions. They do not count as healthy. Pods whose deletion does not start within deletionTimeout are
// omitted, with an event. recheck is the delay until the next pod times out, or zero.
func (c *Controller) pendingEvictions(b *policyv1.PodDisruptionBudget, pods []*corev1.Pod, now time.Time) (left map[string]metav1.Time, recheck time.Duration) {
	left = map[string]metav1.Time{}
	for _, p := range pods {
		at, ok := b.Status.DisruptedPods[p.Name]
		if !ok || p.DeletionTimestamp != nil {
			continue
		}
		wait := at.Add(deletionTimeout).Sub(now)
		if wait < 0 {
			c.env.Events.Eventf(p, corev1.EventTypeWarning, "NotDeleted", "Pod was expected by PDB %s/%s to be deleted but it wasn't", b.Namespace, b.Name)
			continue
		}
		left[p.Name] = at
		// Add a moment, so that the timeout is over then.
		if wait += time.Millisecond; recheck == 0 || wait < recheck {
			recheck = wait
		}
	}
	return left, recheck
}

// expectedCounts returns the expected number of pods of a budget and the desired number of healthy ones. Both are 0 for
// a budget with neither minAvailable nor maxUnavailable. unmanaged is true if the size of the pods' controllers is
// needed and some pods have no controller; the result is then inaccurate.
func (c *Controller) expectedCounts(ctx context.Context, b *policyv1.PodDisruptionBudget, pods []*corev1.Pod) (expected, desired int32, unmanaged bool, err error) {
	switch least, most := b.Spec.MinAvailable, b.Spec.MaxUnavailable; {
	case most != nil:
		if expected, unmanaged, err = c.expectedSize(ctx, pods); err != nil {
			return 0, 0, unmanaged, err
		}
		n, err := intstr.GetScaledValueFromIntOrPercent(most, int(expected), true)
		if err != nil {
			return 0, 0, unmanaged, err
		}
		return expected, max(0, expected-int32(n)), unmanaged, nil
	case least == nil:
		return 0, 0, false, nil
	case least.Type == intstr.Int:
		return int32(len(pods)), least.IntVal, false, nil
	default:
		if expected, unmanaged, err = c.expectedSize(ctx, pods); err != nil {
			return 0, 0, unmanaged, err
		}
		n, err := intstr.GetScaledValueFromIntOrPercent(least, int(expected), true)
		if err != nil {
			return 0, 0, unmanaged, err
		}
		return expected, int32(n), unmanaged, nil
	}
}

// count contains the numbers of pods for the status of a budget: the healthy ones, the healthy ones that the budget
// requires, and all that should exist.
type count struct{ healthy, desired, expected int32 }

// write writes the status of the budget b. leaving are the evicted pods whose deletion has not started yet.
func (c *Controller) write(ctx context.Context, b *policyv1.PodDisruptionBudget, n count, leaving map[string]metav1.Time) error {
	next := b.DeepCopy()
	next.Status = policyv1.PodDisruptionBudgetStatus{
		ObservedGeneration: b.Generation,
		DisruptedPods:      leaving,
		CurrentHealthy:     n.healthy,
		DesiredHealthy:     n.desired,
		ExpectedPods:       n.expected,
		Conditions:         next.Status.Conditions,
	}
	// A budget without expected pods allows no disruption, because its first pods may exist before
	// they are counted.
	if n.expected > 0 {
		next.Status.DisruptionsAllowed = max(0, n.healthy-n.desired)
	}
	cond := metav1.Condition{
		Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.InsufficientPodsReason,
		ObservedGeneration: next.Status.ObservedGeneration, LastTransitionTime: metav1.NewTime(c.env.Clock.Now()),
	}
	if next.Status.DisruptionsAllowed > 0 {
		cond.Status, cond.Reason = metav1.ConditionTrue, policyv1.SufficientPodsReason
	}
	meta.SetStatusCondition(&next.Status.Conditions, cond)
	return c.update(ctx, b, next)
}

// fail writes to the status of the budget b that its pods cannot be counted because of cause. No disruption is allowed
// then.
func (c *Controller) fail(ctx context.Context, b *policyv1.PodDisruptionBudget, cause error) error {
	next := b.DeepCopy()
	next.Status.DisruptionsAllowed = 0
	meta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{
		Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason,
		Message: cause.Error(), ObservedGeneration: next.Status.ObservedGeneration, LastTransitionTime: metav1.NewTime(c.env.Clock.Now()),
	})
	if err := c.update(ctx, b, next); err != nil {
		return fmt.Errorf("recording failure: %w", err)
	}
	return nil
}

// update writes the status of next if it differs from that of b. It is not an error if the budget was deleted.
func (c *Controller) update(ctx context.Context, b, next *policyv1.PodDisruptionBudget) error {
	if equality.Semantic.DeepEqual(b.Status, next.Status) {
		return nil
	}
	_, err := c.env.Kube.PolicyV1().PodDisruptionBudgets(b.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
