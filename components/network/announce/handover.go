package announce

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"hyperkube/internal/pod/netannotation"
)

// handoverTimeout is how long a stopping node waits until the controller has assigned its addresses to other nodes.
const handoverTimeout = time.Second

// handOver requests that other nodes announce the addresses of this node, and waits until that is the case. The
// responders answer until then, so that the addresses are always reachable. It returns immediately if this node has no
// addresses, or if there is no other node that could announce them.
func (a *Announcer) handOver(ctx context.Context) {
	if len(a.services()) == 0 || !a.hasSuccessor() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), handoverTimeout)
	defer cancel()
	if err := a.annotate(ctx, new("true")); err != nil {
		a.cfg.Log.Warn("requesting another node for the load balancer addresses of this node failed; they are not reachable until the controller detects that this node does not announce them, no retry", "err", err)
		return
	}
	for len(a.services()) > 0 {
		select {
		case <-a.changed:
		case <-ctx.Done():
			return
		}
	}
}

// hasSuccessor reports whether there is another node to which the controller may assign the addresses of this one.
func (a *Announcer) hasSuccessor() bool {
	for _, obj := range a.cfg.Nodes.GetStore().List() {
		n, ok := obj.(*corev1.Node)
		if !ok || n.Name == a.cfg.NodeName {
			continue
		}
		_, excluded := n.Labels[corev1.LabelNodeExcludeBalancers]
		_, stopping := n.Annotations[netannotation.LoadBalancerStopping]
		if excluded || stopping {
			continue
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return true
			}
		}
	}
	return false
}

// removeStopping removes the annotation that an earlier process has written when it stopped, so that the controller
// assigns addresses to this node again. It returns false if it failed.
func (a *Announcer) removeStopping(ctx context.Context) bool {
	n := a.self()
	if n == nil {
		return true // a Node that is created has no annotation
	}
	if _, stopping := n.Annotations[netannotation.LoadBalancerStopping]; !stopping {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := a.annotate(ctx, nil); err != nil && !apierrors.IsNotFound(err) {
		a.cfg.Log.Warn("removing the annotation of this Node about its stop failed; no load balancer addresses are assigned to this node until a retry succeeds, retrying", "retryAfter", retryInterval, "err", err)
		return false
	}
	return true
}

// annotate sets the annotation of this Node about its stop. Nil removes it.
func (a *Announcer) annotate(ctx context.Context, value *string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{netannotation.LoadBalancerStopping: value}}})
	if err != nil {
		return fmt.Errorf("encoding the annotation: %w", err)
	}
	if _, err := a.cfg.Kube.CoreV1().Nodes().Patch(ctx, a.cfg.NodeName, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("annotating Node %s: %w", a.cfg.NodeName, err)
	}
	return nil
}
