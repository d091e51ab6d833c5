package kubelet

import (
	"context"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"hyperkube/components/kubelet/pods"
	"hyperkube/components/kubelet/shutdown"
	"hyperkube/internal/hostchange"
)

// newShutdown makes what ends pods when the machine shuts down; nil when it is
// not to wait for them.
func (k *Kubelet) newShutdown(events record.EventRecorder) *shutdown.Manager {
	if len(k.cfg.Machine.Shutdown) == 0 {
		return nil
	}
	ref := &v1.ObjectReference{Kind: "Node", Name: k.cfg.NodeName, UID: types.UID(k.cfg.NodeName)}
	return shutdown.New(shutdown.Config{
		Periods: k.cfg.Machine.Shutdown, LogindConf: "/etc/systemd/logind.conf.d",
		Recorded: func(path string) error {
			return k.cfg.Journal.Record(hostchange.Change{Kind: hostchange.Dir, Name: path})
		},
		Pods: k.manager.Active, End: k.endForShutdown, Changed: k.keeper.Changed,
		Event: func(reason, message string) { events.Event(ref, v1.EventTypeNormal, reason, message) },
		State: filepath.Join(k.cfg.Layout.Kubelet, "graceful_node_shutdown_state"), Log: k.log,
	})
}

// endForShutdown ends a pod because the machine shuts down.
func (k *Kubelet) endForShutdown(pod *v1.Pod, grace int64) <-chan struct{} {
	k.manager.End(pod.UID, &pods.Verdict{
		Reason: shutdown.Reason, Message: shutdown.Message, Grace: &grace,
		Conditions: []v1.PodCondition{{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet, Message: shutdown.Message,
		}},
	})
	return k.manager.Cleaned(pod.UID)
}

// wrong is why the node is not ready though its runtime is.
func (k *Kubelet) wrong() []string {
	if k.manager != nil {
		if err := k.manager.Silent(time.Now()); err != nil {
			return []string{err.Error()}
		}
	}
	if k.shutdown != nil && k.shutdown.Down() {
		return []string{shutdown.NodeMessage}
	}
	if ready := k.cfg.ServicesReady; ready != nil {
		select {
		case <-ready:
		default:
			return []string{"service proxy not ready: the rules of services are not written yet"}
		}
	}
	return nil
}

// followServices has the node's status looked at again once pods reach services.
func (k *Kubelet) followServices(ctx context.Context) error {
	select {
	case <-k.cfg.ServicesReady:
		k.keeper.Changed()
	case <-ctx.Done():
	}
	return nil
}

// shutdownTimes are when the last shutdown began and ended, in seconds.
func (k *Kubelet) shutdownTimes() map[string]float64 {
	start, end := k.shutdown.Times()
	seconds := func(t time.Time) float64 {
		if t.IsZero() {
			return 0
		}
		return float64(t.UnixNano()) / 1e9
	}
	return map[string]float64{"start": seconds(start), "end": seconds(end)}
}
