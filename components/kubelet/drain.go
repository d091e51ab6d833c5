package kubelet

import (
	"context"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"hyperkube/components/kubelet/node/shutdown"
	"hyperkube/components/kubelet/pod/pods"
	"hyperkube/internal/host/hostjournal"
)

// newShutdown creates the manager of graceful node shutdowns. It returns nil if graceful shutdown
// is disabled.
func (k *Kubelet) newShutdown(events record.EventRecorder) *shutdown.Manager {
	if len(k.cfg.Machine.Shutdown) == 0 {
		return nil
	}
	ref := &v1.ObjectReference{Kind: "Node", Name: k.cfg.NodeName, UID: types.UID(k.cfg.NodeName)}
	return shutdown.New(shutdown.Config{
		Periods: k.cfg.Machine.Shutdown, LogindConf: "/etc/systemd/logind.conf.d",
		Recorded: func(path string) error {
			return k.deps.Journal.Record(hostjournal.Change{Kind: hostjournal.Dir, Name: path})
		},
		Pods: k.pods.Active, Terminate: k.terminateForShutdown, Changed: k.nodeStatus.Changed,
		Event: func(reason, message string) { events.Event(ref, v1.EventTypeNormal, reason, message) },
		State: filepath.Join(k.cfg.Layout.Kubelet, "graceful_node_shutdown_state"), Log: k.log,
	})
}

// terminateForShutdown terminates a pod because of a node shutdown.
func (k *Kubelet) terminateForShutdown(pod *v1.Pod, grace int64) <-chan struct{} {
	k.pods.Terminate(pod.UID, &pods.Verdict{
		Reason: shutdown.Reason, Message: shutdown.Message, Grace: &grace,
		Conditions: []v1.PodCondition{{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet, Message: shutdown.Message,
		}},
	})
	return k.pods.Cleaned(pod.UID)
}

// notReadyReasons returns reasons why the node is not ready even if its runtime is.
func (k *Kubelet) notReadyReasons() []string {
	if err := k.pods.RuntimeUnresponsive(time.Now()); err != nil {
		return []string{err.Error()}
	}
	if k.shutdown != nil && k.shutdown.Down() {
		return []string{shutdown.NodeMessage}
	}
	if ready := k.deps.ServicesReady; ready != nil {
		select {
		case <-ready:
		default:
			return []string{"service proxy not ready: the rules of services are not written yet"}
		}
	}
	return nil
}

// waitForServices updates the node's status when pods can reach services.
func (k *Kubelet) waitForServices(ctx context.Context) error {
	select {
	case <-k.deps.ServicesReady:
		k.nodeStatus.Changed()
	case <-ctx.Done():
	}
	return nil
}

// shutdownTimes returns the start and end of the last shutdown, in seconds since the epoch.
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
