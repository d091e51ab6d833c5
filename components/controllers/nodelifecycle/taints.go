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

// byCondition maps a condition of a Node and its status to the key of the NoSchedule taint that they require. Other
// statuses require none.
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

// noScheduleKeys are the keys of the NoSchedule taints that this controller manages.
var noScheduleKeys = []string{
	corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeMemoryPressure, corev1.TaintNodeDiskPressure,
	corev1.TaintNodeNetworkUnavailable, corev1.TaintNodePIDPressure, corev1.TaintNodeUnschedulable,
}

// noScheduleFor returns the keys of the NoSchedule taints that a Node should have because of its conditions or because
// it is cordoned.
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

// conditionTaints adds and removes NoSchedule taints so that they match the Node's conditions and whether the Node is
// cordoned. It returns the updated Node, or n if nothing changed, and a conflict if n is outdated.
func (c *Controller) conditionTaints(ctx context.Context, n *corev1.Node) (*corev1.Node, error) {
	return c.setTaints(ctx, n, corev1.TaintEffectNoSchedule, noScheduleKeys, noScheduleFor(n))
}

// setTaints changes the taints of one effect so that, of the keys in ours, the Node has exactly those in want. Other
// taints are not changed. It returns the updated Node, or n if nothing changed or the Node was deleted. It returns a
// conflict if n is outdated.
func (c *Controller) setTaints(ctx context.Context, n *corev1.Node, effect corev1.TaintEffect, ours, want []string) (*corev1.Node, error) {
	taints, changed := replaceTaints(n.Spec.Taints, effect, ours, want, metav1.NewTime(c.env.Clock.Now()))
	if !changed {
		return n, nil
	}
	// The cache may be stale, so the patch requires the cached resource version.
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

// replaceTaints returns the taints that setTaints writes, and reports whether they differ from taints.
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

// noExecuteKeys are the keys of the NoExecute taints that this controller manages. A Node has at
// most one of them.
var noExecuteKeys = []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable}

// executeTaints reconciles the NoExecute taint of a Node, because of which its pods are evicted. ready is the status of
// its Ready condition; if it is "", because the Node never reported its status, the taints are not changed. A Node that
// is not ready is queued for the taint, which syncZone adds at the rate of the Node's zone; if it has the taint of the
// other kind, it is replaced immediately. A ready Node loses the taint, and so do all Nodes if no Node of the cluster
// is ready.
func (c *Controller) executeTaints(ctx context.Context, n *corev1.Node, ready corev1.ConditionStatus) error {
	key := map[corev1.ConditionStatus]string{
		corev1.ConditionFalse:   corev1.TaintNodeNotReady,
		corev1.ConditionUnknown: corev1.TaintNodeUnreachable,
	}[ready]
	c.mu.Lock()
	halted := c.zones.allDown
	if key == "" || halted {
		c.zones.unqueue(n.Name)
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
	zone := c.zones.queueTaint(n.Name)
	c.mu.Unlock()
	c.Add(zonePrefix + zone)
	return nil
}

// syncZone adds the NoExecute taint to the next waiting Node of a zone, if the zone's rate allows it now, and schedules
// the next call. A Node that has become ready in the meantime gets no taint. After an error the Node is queued again.
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
	// Use the API server, because the conditions may have just been written.
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
		// The taint was not added: queue the node again without waiting for the zone's rate.
		c.mu.Lock()
		c.zones.requeue(node)
		c.mu.Unlock()
	}
	return err
}

// reconcileLabels sets the deprecated labels for operating system and architecture of a Node to the values of the
// stable ones.
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
