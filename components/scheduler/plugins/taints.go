package plugins

import (
	corev1 "k8s.io/api/core/v1"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
)

// TaintToleration excludes nodes with taints that the pod does not tolerate, and prefers nodes with
// the fewest untolerated PreferNoSchedule taints.
// https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
type TaintToleration struct{}

// Name returns the name of the plugin in configuration files.
func (TaintToleration) Name() string { return "TaintToleration" }

// Wakes implements framework.Waker. After one of the returned events in the cluster, the scheduler tries a pod again
// that this plugin has rejected.
func (TaintToleration) Wakes() framework.Event {
	return framework.NodeAdded | framework.NodeTaintsChanged
}

// Filter rejects nodes with a NoSchedule or NoExecute taint that the pod does not tolerate.
func (TaintToleration) Filter(c *framework.Cycle) (*framework.Check, error) {
	tolerations := c.Pod.Object.Spec.Tolerations
	return &framework.Check{Node: func(n *state.Node) []framework.Reason {
		for i := range n.Object.Spec.Taints {
			taint := &n.Object.Spec.Taints[i]
			if taint.Effect != corev1.TaintEffectNoSchedule && taint.Effect != corev1.TaintEffectNoExecute {
				continue
			}
			if !tolerated(tolerations, taint) {
				return reason("node(s) had untolerated taint(s)", true)
			}
		}
		return nil
	}}, nil
}

// Score prefers nodes with fewer PreferNoSchedule taints that the pod does not tolerate. It gives no scores and
// returns false if no node has one.
func (TaintToleration) Score(c *framework.Cycle, nodes []*state.Node, out []int64) bool {
	any := false
	for i, n := range nodes {
		out[i] = 0
		for j := range n.Object.Spec.Taints {
			taint := &n.Object.Spec.Taints[j]
			if taint.Effect == corev1.TaintEffectPreferNoSchedule && !tolerated(c.Pod.Object.Spec.Tolerations, taint) {
				out[i]++
				any = true
			}
		}
	}
	if any {
		framework.Normalize(out, true)
	}
	return any
}

// tolerated reports whether one of the tolerations matches the taint. Only the operators Exists and Equal can match.
func tolerated(tolerations []corev1.Toleration, taint *corev1.Taint) bool {
	for i := range tolerations {
		t := &tolerations[i]
		if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
			continue
		}
		switch t.Operator {
		case corev1.TolerationOpExists:
			return true
		case "", corev1.TolerationOpEqual:
			// A toleration without a key matches all taints only with operator Exists.
			if t.Key != "" && t.Value == taint.Value {
				return true
			}
		}
	}
	return false
}
