package pods

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"hyperkube/components/kubelet/pod/podstate"
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/client"
)

// reporter writes the pod's status to the API. A change is sent immediately; changes during a
// request are combined in the next one. The worker's mu guards all fields except wait.
type reporter struct {
	// last is the latest status known from the API, and version its resource version.
	last    *v1.PodStatus
	version string
	// want is the current status. dirty is set while the API does not have it.
	want  v1.PodStatus
	dirty bool
	busy  bool
	// halted: the API server rejected the status. Nothing is sent until the pod changes or, if the
	// rejection was caused by the content in refused, until the status changes.
	halted  bool
	refused *v1.PodStatus
	// reportedPod is the pod last passed to the Observer.
	reportedPod *v1.Pod
	// wait waits for all goroutines of the worker.
	wait sync.WaitGroup
}

// observe updates the status known from the API, unless a newer one is known.
func (r *reporter) observe(pod *v1.Pod) {
	if client.Newer(pod.ResourceVersion, r.version) && !IsStatic(pod) {
		r.halted = false
		r.last, r.version = &pod.Status, pod.ResourceVersion
	}
}

// settled reports whether the API has the current status.
func (r *reporter) settled() bool { return r.halted || !r.dirty && !r.busy }

// statusInput returns the current input of podstate.Status. The caller must hold mu.
func (w *worker) statusInput(now time.Time) podstate.StatusInput {
	in := podstate.StatusInput{
		Input:       w.input(now),
		Last:        w.report.last,
		RuntimeName: w.host.Platform.RuntimeName(),
		HostIPs:     w.host.Node.IPs(),
		Terminating: w.stage != syncing,
		Stopped:     w.stage == stopped,
		QOS:         QOS(w.pod),
		Actuated:    w.actuated,
		Recursive: func(m *v1.VolumeMount) bool {
			all, err := w.host.recursive(w.pod, m)
			return err == nil && all
		},
	}
	if w.host.Resources != nil {
		in.Devices = func(container string) []v1.ResourceStatus { return w.host.Resources.DeviceHealth(w.pod, container) }
	}
	if w.resize != nil {
		in.Conditions = append(in.Conditions, w.resize.condition())
		in.Pending = w.resize.kind == v1.PodResizePending
	}
	in.Resources, in.Allocated = w.statusResources()
	if w.verdict != nil {
		in.Reason, in.Message, in.Rejected = w.verdict.Reason, w.verdict.Message, w.verdict.Rejected
		if in.Rejected {
			in.Message = "Pod was rejected: " + in.Message
		}
		in.Conditions = append(in.Conditions, w.verdict.Conditions...)
	}
	return in
}

// replaceDelay is how long the exit of a container is not reported if the container is being
// replaced. It equals upstream's delay. If the new container starts within it, a pod whose image
// was changed stays ready.
const replaceDelay = time.Second

// replacementDeadline returns until when the status update waits for a container to be replaced. Zero means
// that it does not wait. The caller must hold mu.
func (w *worker) replacementDeadline(now time.Time) time.Time {
	if w.stage != syncing || w.verdict != nil {
		return time.Time{}
	}
	for _, slot := range w.slots {
		old := w.obs.ByID(slot.ForceRestart)
		if old == nil || old.State != podstate.Exited || slot.Waiting != nil {
			continue
		}
		if until := old.FinishedAt.Add(replaceDelay); now.Before(until) {
			return until
		}
	}
	return time.Time{}
}

// updateStatus computes the status and sends it if it has changed. The caller must hold mu.
func (w *worker) updateStatus(ctx context.Context, now time.Time) {
	if IsStatic(w.pod) {
		w.mirrorPod()
	}
	before := w.report.want
	if before.Phase == "" {
		before = *w.report.last
	}
	w.report.want = podstate.Status(w.statusInput(now))
	w.timeStatus(&before, &w.report.want, now)
	w.reportIPFamilyChange(before.HostIP, w.report.want.HostIP)
	if observer := w.host.Observer; observer != nil && !w.removed && (w.report.reportedPod != w.pod || !apiequality.Semantic.DeepEqual(&w.report.want, &before)) {
		w.report.reportedPod = w.pod
		now := w.report.want
		observer.Updated(w.pod, &now)
	}
	if w.host.Kube == nil || w.removed {
		// Without the API, the worker itself must remember the transition times.
		last := w.report.want
		w.report.last, w.report.dirty = &last, false
		return
	}
	w.report.dirty = !apiequality.Semantic.DeepEqual(&w.report.want, w.report.last)
	if w.report.dirty && w.timing.changed.IsZero() {
		w.timing.changed = now
	}
	if r := &w.report; r.halted && r.refused != nil && !apiequality.Semantic.DeepEqual(&r.want, r.refused) {
		r.halted = false
	}
	if !w.report.dirty || w.report.busy || w.report.halted {
		return
	}
	w.report.busy, w.report.refused = true, nil
	w.report.wait.Go(func() {
		w.sendStatus(ctx)
	})
}

// reportIPFamilyChange emits an event if the IP family of the node's address has changed.
func (w *worker) reportIPFamilyChange(before, now string) {
	old, errOld := netip.ParseAddr(before)
	fresh, errNew := netip.ParseAddr(now)
	if errOld != nil || errNew != nil || old.Is4() == fresh.Is4() {
		return
	}
	family := func(a netip.Addr) string {
		if a.Is4() {
			return "4"
		}
		return "6"
	}
	w.host.event(w.pod, "", true, "HostIPsIPFamilyMismatch", fmt.Sprintf(
		"Kubelet detected an IPv%s node IP (%s), but the cloud provider selected an IPv%s node IP (%s); pass an explicit `--node-ip` to kubelet to fix this.",
		family(old), old, family(fresh), fresh))
}

// sendStatus patches the status until the API has the current one.
func (w *worker) sendStatus(ctx context.Context) {
	pause := 50 * time.Millisecond
	for {
		w.mu.Lock()
		pod := w.pod
		if IsStatic(pod) {
			pod = w.mirrorPod()
		}
		if !w.report.dirty || w.report.halted || w.removed || ctx.Err() != nil || pod == nil {
			w.report.busy = false
			// The status of a static pod waits for the mirror pod.
			w.report.halted = w.report.halted || pod == nil
			w.mu.Unlock()
			w.kick()
			return
		}
		last, want := w.report.last, w.report.want
		w.mu.Unlock()
		patch, err := statusPatch(pod.UID, last, &want)
		var result *v1.Pod
		if err == nil {
			result, err = w.host.Kube.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		}
		w.mu.Lock()
		switch {
		case err == nil:
			if !client.Newer(w.report.version, result.ResourceVersion) || result.ResourceVersion == w.report.version {
				w.report.last, w.report.version = &result.Status, result.ResourceVersion
			}
			// The next step detects changes since then, and by other clients.
			w.report.dirty = !apiequality.Semantic.DeepEqual(&w.report.want, &want)
			w.host.Metrics.StatusSynced(time.Since(w.timing.changed))
			w.timing.changed = time.Time{}
			if w.report.dirty {
				w.timing.changed = time.Now()
			}
			pause = 50 * time.Millisecond
		case apierrors.IsNotFound(err), apierrors.IsConflict(err):
			// The pod was deleted or replaced by another one of its name. The source will report
			// that.
			w.report.halted = true
		case apierrors.IsInvalid(err), apierrors.IsForbidden(err) && pause > 5*time.Second:
			w.log.Error("API server rejected pod status", "err", err)
			w.report.halted, w.report.refused = true, &want
		default:
			if ctx.Err() == nil {
				w.log.Warn("patching pod status failed, will retry", "err", err)
			}
		}
		w.mu.Unlock()
		if err == nil || w.halted() {
			continue
		}
		lifecycle.Pause(ctx, pause)
		pause = min(2*pause, 10*time.Second)
	}
}

// mirrorPod returns the mirror pod of a static pod, or nil if there is none. It takes the status
// known from the API from the mirror pod, because a recreated one has no status. The caller must
// hold mu.
func (w *worker) mirrorPod() *v1.Pod {
	if w.host.Mirror == nil {
		return nil
	}
	pod := w.host.Mirror.Of(w.pod)
	if pod != nil && client.Newer(pod.ResourceVersion, w.report.version) {
		w.report.last, w.report.version = &pod.Status, pod.ResourceVersion
	}
	return pod
}

func (w *worker) halted() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.report.halted
}

// statusPatch returns the strategic merge patch between two statuses. The patch applies only to the
// pod with the UID.
func statusPatch(uid types.UID, last, want *v1.PodStatus) ([]byte, error) {
	encode := func(s *v1.PodStatus, id types.UID) ([]byte, error) {
		return json.Marshal(v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: id}, Status: *s})
	}
	old, err := encode(last, "")
	if err != nil {
		return nil, fmt.Errorf("encoding pod status: %w", err)
	}
	fresh, err := encode(want, uid)
	if err != nil {
		return nil, fmt.Errorf("encoding pod status: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(old, fresh, v1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("creating pod status patch: %w", err)
	}
	return patch, nil
}
