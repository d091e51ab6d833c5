package devicetainteviction

import (
	"context"
	"fmt"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// selectedClaims returns the claims with an allocated device that a rule selects.
func (c *Controller) selectedClaims(r *resourcev1.DeviceTaintRule) []*resourcev1.ResourceClaim {
	all, err := c.claims.List(labels.Everything())
	if err != nil {
		return nil
	}
	var out []*resourcev1.ResourceClaim
	for _, claim := range all {
		if countDevices(r, claim) > 0 {
			out = append(out, claim)
		}
	}
	return out
}

// countDevices returns how many of the allocated devices of a claim a rule selects.
func countDevices(r *resourcev1.DeviceTaintRule, claim *resourcev1.ResourceClaim) int {
	n := 0
	if claim.Status.Allocation != nil {
		for _, d := range claim.Status.Allocation.Devices.Results {
			if selects(r.Spec.DeviceSelector, d.Driver, d.Pool, d.Device) {
				n++
			}
		}
	}
	return n
}

// syncRule updates the condition EvictionInProgress of the rule with this name. For a rule with effect None, the
// condition states once, for each change of the rule, which pods would be evicted.
func (c *Controller) syncRule(ctx context.Context, name string) error {
	r, err := c.rules.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	was := meta.FindStatusCondition(r.Status.Conditions, resourcev1.DeviceTaintConditionEvictionInProgress)
	if was != nil && was.ObservedGeneration == r.Generation && r.Spec.Taint.Effect == resourcev1.DeviceTaintEffectNone {
		return nil
	}
	cond := c.condition(r)
	next := r.DeepCopy()
	if !meta.SetStatusCondition(&next.Status.Conditions, cond) {
		return nil
	}
	_, err = c.env.Kube.ResourceV1().DeviceTaintRules().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// condition returns the condition EvictionInProgress of a rule, with the numbers of pods that are evicted or would be.
func (c *Controller) condition(r *resourcev1.DeviceTaintRule) metav1.Condition {
	// Compute the pods as if the effect was NoExecute.
	t := r.Spec.Taint
	t.Effect = resourcev1.DeviceTaintEffectNoExecute
	pods, namespaces, allocated := map[types.UID]bool{}, map[string]bool{}, 0
	for _, claim := range c.selectedClaims(r) {
		allocated += countDevices(r, claim)
		for _, d := range claim.Status.Allocation.Devices.Results {
			if !selects(r.Spec.DeviceSelector, d.Driver, d.Pool, d.Device) {
				continue
			}
			if _, evicts := evictsAt(t, d.Tolerations); !evicts {
				continue
			}
			for _, p := range c.claimUsers(claim) {
				pods[p.UID], namespaces[p.Namespace] = true, true
			}
		}
	}
	out := metav1.Condition{
		Type: resourcev1.DeviceTaintConditionEvictionInProgress, Status: metav1.ConditionFalse, ObservedGeneration: r.Generation,
		LastTransitionTime: metav1.NewTime(c.env.Clock.Now()),
	}
	where := fmt.Sprintf("%s in %s", count(len(pods), "pod"), count(len(namespaces), "namespace"))
	switch r.Spec.Taint.Effect {
	case resourcev1.DeviceTaintEffectNoExecute:
		c.mu.Lock()
		done := c.evicted[r.UID]
		c.mu.Unlock()
		var parts []string
		if out.Reason = "NoPodsPendingEviction"; len(pods) > 0 {
			out.Status, out.Reason = metav1.ConditionTrue, "PodsPendingEviction"
			parts = append(parts, where+" to be evicted.")
		}
		out.Message = strings.Join(append(parts, fmt.Sprintf("%s evicted since starting the controller.", count(done, "pod"))), " ")
	case resourcev1.DeviceTaintEffectNone:
		out.Reason = "NoEffect"
		out.Message = fmt.Sprintf("%s selected. %s would be evicted if the effect was NoExecute. This information is updated only when the rule changes.", count(allocated, "allocated device"), where)
	default:
		out.Reason = "NotNoExecute"
		out.Message = "The effect of the taint does not end pods."
	}
	return out
}

// count formats a number with a noun in singular or plural.
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
