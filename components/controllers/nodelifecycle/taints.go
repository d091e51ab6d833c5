package nodelifecycle

import (
	"context"
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// byCondition tells which NoSchedule taint each status of a condition stands
// for.
var byCondition = map[corev1.NodeConditionType]map[corev1.ConditionStatus]string{
	corev1.NodeReady: {
		corev1.ConditionFalse:   corev1.TaintNodeNotReady,
		corev1.ConditionUnknown: corev1.TaintNodeUnreachable,
	},
	corev1.NodeMemoryPressure:     {corev1.ConditionTrue: corev1.TaintNodeMemoryPressure},
	corev1.NodeDiskPressure:       {corev1.ConditionTrue: corev1.TaintNodeDiskPressure},
	corev1.NodeNetworkUnavailable: {corev1.ConditionTrue: corev1.TaintNodeNetworkUnavailable},
	corev1.NodePIDPressure:        {corev1.ConditionTrue: corev1.TaintNodePIDPressure},
}

// noScheduleKeys are the keys of the NoSchedule taints that are ours.
var noScheduleKeys = []string{
	corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeMemoryPressure, corev1.TaintNodeDiskPressure,
	corev1.TaintNodeNetworkUnavailable, corev1.TaintNodePIDPressure, corev1.TaintNodeUnschedulable,
}

// noScheduleFor lists the NoSchedule taints that a Node's conditions ask for,
// in the order of noScheduleKeys.
func noScheduleFor(n *corev1.Node) []string {
	want := map[string]bool{corev1.TaintNodeUnschedulable: n.Spec.Unschedulable}
	for _, cond := range n.Status.Conditions {
		if key := byCondition[cond.Type][cond.Status]; key != "" {
			want[key] = true
		}
	}
	var out []string
	for _, key := range noScheduleKeys {
		if want[key] {
			out = append(out, key)
		}
	}
	return out
}

// conditionTaints makes the NoSchedule taints follow the conditions.
// It returns the Node as it is now.
func (c *Controller) conditionTaints(ctx context.Context, n *corev1.Node) (*corev1.Node, error) {
	return c.setTaints(ctx, n, corev1.TaintEffectNoSchedule, noScheduleKeys, noScheduleFor(n))
}

// setTaints makes, of the taints of one effect with keys that are ours, just
// those wanted stand on n; all other taints stay. It returns the Node as it is
// now.
func (c *Controller) setTaints(ctx context.Context, n *corev1.Node, effect corev1.TaintEffect, ours, want []string) (*corev1.Node, error) {
	taints, changed := replaceTaints(n.Spec.Taints, effect, ours, want, metav1.NewTime(c.env.Clock.Now()))
	if !changed {
		return n, nil
	}
	// The cache may be late; the patch holds only for the Node it was made for.
	if taints == nil {
		taints = []corev1.Taint{}
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": n.UID, "resourceVersion": n.ResourceVersion},
		"spec":     map[string]any{"taints": taints},
	})
	if err != nil {
		return n, err
	}
	written, err := c.env.Kube.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return n, nil
	}
	if err != nil {
		return n, err
	}
	return written, nil
}

// replaceTaints makes a new list and tells whether it differs.
func replaceTaints(taints []corev1.Taint, effect corev1.TaintEffect, ours, want []string, now metav1.Time) ([]corev1.Taint, bool) {
	var out []corev1.Taint
	have := map[string]bool{}
	changed := false
	for _, t := range taints {
		if t.Effect == effect && slices.Contains(ours, t.Key) {
			if !slices.Contains(want, t.Key) {
				changed = true
				continue
			}
			have[t.Key] = true
		}
		out = append(out, t)
	}
	for _, key := range want {
		if !have[key] {
			out = append(out, corev1.Taint{Key: key, Effect: effect, TimeAdded: &now})
			changed = true
		}
	}
	return out, changed
}

// noExecuteKeys are the keys of the NoExecute taints that are ours. At most one
// stands on a Node.
var noExecuteKeys = []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable}

// executeTaints takes NoExecute taints off a ready Node, and queues one that is
// not ready for its taint, in its zone's turn. The kind of a taint that stands
// already changes at once.
func (c *Controller) executeTaints(ctx context.Context, n *corev1.Node, ready corev1.ConditionStatus) error {
	key := map[corev1.ConditionStatus]string{
		corev1.ConditionFalse:   corev1.TaintNodeNotReady,
		corev1.ConditionUnknown: corev1.TaintNodeUnreachable,
	}[ready]
	c.mu.Lock()
	halted := c.zones.halted
	if key == "" || halted {
		c.zones.unwant(n.Name)
	}
	c.mu.Unlock()
	if ready == "" {
		return nil
	}
	if key == "" || halted {
		_, err := c.setTaints(ctx, n, corev1.TaintEffectNoExecute, noExecuteKeys, nil)
		return err
	}
	for _, t := range n.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoExecute && slices.Contains(noExecuteKeys, t.Key) {
			_, err := c.setTaints(ctx, n, corev1.TaintEffectNoExecute, noExecuteKeys, []string{key})
			return err
		}
	}
	c.mu.Lock()
	zone := c.zones.want(n.Name)
	c.mu.Unlock()
	c.Add(zonePrefix + zone)
	return nil
}

// syncZone gives the next Node of a zone its NoExecute taint.
func (c *Controller) syncZone(ctx context.Context, name string) error {
	c.mu.Lock()
	node, again := c.zones.pop(name, c.env.Clock.Now())
	c.mu.Unlock()
	if again > 0 {
		c.AddAfter(zonePrefix+name, again)
	}
	if node == "" {
		return nil
	}
	// Live: the conditions may have been written a moment ago.
	n, err := c.env.Kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		var want []string
		if cond := readyCondition(n); cond != nil {
			switch cond.Status {
			case corev1.ConditionFalse:
				want = []string{corev1.TaintNodeNotReady}
			case corev1.ConditionUnknown:
				want = []string{corev1.TaintNodeUnreachable}
			}
		}
		if _, err = c.setTaints(ctx, n, corev1.TaintEffectNoExecute, noExecuteKeys, want); err == nil && len(want) > 0 {
			c.evictions.WithLabelValues(name).Inc()
		}
	}
	if err != nil {
		// Its turn was taken; it shall not wait for another.
		c.mu.Lock()
		c.zones.requeue(node)
		c.mu.Unlock()
	}
	return err
}

// reconcileLabels keeps the deprecated names of the labels for system and
// architecture equal to the new ones.
func (c *Controller) reconcileLabels(ctx context.Context, n *corev1.Node) error {
	set := map[string]string{}
	for primary, secondary := range map[string]string{
		corev1.LabelOSStable:   "beta.kubernetes.io/os",
		corev1.LabelArchStable: "beta.kubernetes.io/arch",
	} {
		if v, ok := n.Labels[primary]; ok && n.Labels[secondary] != v {
			set[secondary] = v
		}
	}
	if len(set) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": set}})
	if err != nil {
		return err
	}
	_, err = c.env.Kube.CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
