package pods

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"hyperkube/components/kubelet/pod/podmachine"
	"hyperkube/components/kubelet/pod/podstate"
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/base/tracing"
	"hyperkube/internal/client"
)

// reporter writes the pod's status to the API. A change is sent immediately; changes during a
// request are combined in the next one. The worker's mu guards all fields except worker.
type reporter struct {
	worker *worker
	// last is the latest status known from the API, and version its resource version.
	last    *v1.PodStatus
	version string
	// want is the status as computed last. dirty is set while the API does not have it, and busy while send
	// is running.
	want  v1.PodStatus
	dirty bool
	busy  bool
	// halted: the API server rejected the status. Nothing is sent until the pod changes or, if the
	// rejection was caused by the content in refused, until the status changes.
	halted  bool
	refused *v1.PodStatus
	// reportedPod is the pod last passed to the Observer.
	reportedPod *v1.Pod
}

// newReporter returns the reporter of a pod that starts from the status in pod, which an earlier kubelet may
// have written.
func newReporter(w *worker, pod *v1.Pod) reporter {
	return reporter{worker: w, last: pod.Status.DeepCopy(), version: pod.ResourceVersion}
}

// startTime returns the start time in the pod's status, or nil if the kubelet has not started the pod yet.
func (r *reporter) startTime() *metav1.Time {
	if r.want.StartTime != nil {
		return r.want.StartTime
	}
	return r.last.StartTime
}

// observe stores the status in pod, received from the API, as the last known one, unless a newer one is known. If
// the API server has rejected a status before, it may then be sent again. The status of static pods is ignored,
// because the API has the status of their mirror pods.
func (r *reporter) observe(pod *v1.Pod) {
	if client.Newer(pod.ResourceVersion, r.version) && !IsStatic(pod) {
		r.halted = false
		r.last, r.version = &pod.Status, pod.ResourceVersion
	}
}

// settled reports whether there is no status to send: the API has the current one or has rejected it.
func (r *reporter) settled() bool { return r.halted || !r.dirty && !r.busy }

// statusInput returns the input from which podstate.Status computes the pod's status: the state of the pod's state
// machine, the probe results, and the properties of the node. The caller must hold the worker's mu.
func (r *reporter) statusInput(now time.Time) podstate.StatusInput {
	w, m, h := r.worker, r.worker.machine, r.worker.host
	in := podstate.StatusInput{
		Input:       m.NextInput(now, w.health()),
		Last:        r.last,
		RuntimeName: h.Platform.RuntimeName(),
		HostIPs:     h.Node.IPs(),
		Terminating: m.Stage != podmachine.Syncing,
		Stopped:     m.Stage == podmachine.Stopped,
		QOS:         QOS(m.Pod),
		Actuated:    m.Resize.Actuated,
		Recursive: func(mount *v1.VolumeMount) bool {
			all, err := h.configs.recursive(m.Pod, mount)
			return err == nil && all
		},
	}
	if h.Resources != nil {
		in.Devices = func(container string) []v1.ResourceStatus { return h.Resources.DeviceHealth(m.Pod, container) }
	}
	if s := m.Resize.State; s != nil {
		in.Conditions = append(in.Conditions, s.Condition())
		in.Pending = s.Kind == v1.PodResizePending
	}
	in.Resources, in.Allocated = r.statusResources()
	if v := m.Verdict; v != nil {
		in.Reason, in.Message, in.Rejected = v.Reason, v.Message, v.Rejected
		if in.Rejected {
			in.Message = "Pod was rejected: " + in.Message
		}
		in.Conditions = append(in.Conditions, v.Conditions...)
	}
	return in
}

// update computes the status, notifies the Observer, and starts send if the API has another status and no
// request is in progress. Without an API server, and for a pod that was removed from its source, nothing is
// sent. The caller must hold the worker's mu.
func (r *reporter) update(ctx context.Context, now time.Time) {
	w, m, h := r.worker, r.worker.machine, r.worker.host
	if IsStatic(m.Pod) {
		r.mirrorPod()
	}
	before := r.want
	if before.Phase == "" {
		before = *r.last
	}
	r.want = podstate.Status(r.statusInput(now))
	w.timing.statusChanged(&before, &r.want, now)
	r.reportIPFamilyChange(before.HostIP, r.want.HostIP)
	if h.Observer != nil && !m.Removed && (r.reportedPod != m.Pod || !apiequality.Semantic.DeepEqual(&r.want, &before)) {
		r.reportedPod = m.Pod
		now := r.want
		h.Observer.Updated(m.Pod, &now)
	}
	if h.Kube == nil || m.Removed {
		// Without the API, the worker itself must remember the transition times.
		last := r.want
		r.last, r.dirty = &last, false
		return
	}
	r.dirty = !apiequality.Semantic.DeepEqual(&r.want, r.last)
	if r.dirty && w.timing.changed.IsZero() {
		w.timing.changed = now
	}
	if r.halted && r.refused != nil && !apiequality.Semantic.DeepEqual(&r.want, r.refused) {
		r.halted = false
	}
	if !r.dirty || r.busy || r.halted {
		return
	}
	r.busy, r.refused = true, nil
	w.wait.Go(func() { r.send(ctx) })
}

// reportIPFamilyChange emits an event if the host IPs before and now belong to different IP families. Invalid
// addresses are ignored.
func (r *reporter) reportIPFamilyChange(before, now string) {
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
	r.worker.host.event(r.worker.machine.Pod, "", true, "HostIPsIPFamilyMismatch", fmt.Sprintf(
		"Kubelet detected an IPv%s node IP (%s), but the cloud provider selected an IPv%s node IP (%s); pass an explicit `--node-ip` to kubelet to fix this.",
		family(old), old, family(fresh), fresh))
}

// minSendPause and maxSendPause are the first and the longest delay before a failed update of a pod's status in the
// API is retried.
const (
	minSendPause = 50 * time.Millisecond
	maxSendPause = 10 * time.Second
)

// send patches the status of the pod, or of the mirror pod of a static pod, until the API has the current one.
// It returns early if the API server has rejected it, the pod was removed, a static pod has no mirror pod, or
// ctx is done. After other errors it retries with a back-off.
func (r *reporter) send(ctx context.Context) {
	w := r.worker
	pause := minSendPause
	for {
		w.mu.Lock()
		pod := w.machine.Pod
		if IsStatic(pod) {
			pod = r.mirrorPod()
		}
		if !r.dirty || r.halted || w.machine.Removed || ctx.Err() != nil || pod == nil {
			r.busy = false
			// The status of a static pod waits for the mirror pod.
			r.halted = r.halted || pod == nil
			w.mu.Unlock()
			w.kick()
			return
		}
		last, want := r.last, r.want
		w.mu.Unlock()
		patch, err := statusPatch(pod.UID, last, &want)
		var result *v1.Pod
		if err == nil {
			traced, _ := tracing.Continue(ctx, pod)
			result, err = w.host.Kube.CoreV1().Pods(pod.Namespace).Patch(traced, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		}
		w.mu.Lock()
		r.sent(ctx, &want, result, err, pause)
		again := err == nil || r.halted
		w.mu.Unlock()
		if again {
			pause = minSendPause
			continue
		}
		lifecycle.Pause(ctx, pause)
		pause = min(2*pause, maxSendPause)
	}
}

// sent records the result of the patch to the status want: result is the patched pod, or err is not nil. pause
// is the back-off before the next attempt after an error. A status that is invalid, or still forbidden after
// several attempts, is not sent again until the status or the pod changes. If the pod does not exist or was
// replaced, nothing is sent until its source reports a change. The caller must hold the worker's mu.
func (r *reporter) sent(ctx context.Context, want *v1.PodStatus, result *v1.Pod, err error, pause time.Duration) {
	w := r.worker
	switch {
	case err == nil:
		if !client.Newer(r.version, result.ResourceVersion) || result.ResourceVersion == r.version {
			r.last, r.version = &result.Status, result.ResourceVersion
		}
		// The next step detects changes since then, and by other clients.
		r.dirty = !apiequality.Semantic.DeepEqual(&r.want, want)
		w.host.Metrics.StatusSynced(time.Since(w.timing.changed))
		w.timing.changed = time.Time{}
		if r.dirty {
			w.timing.changed = time.Now()
		}
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		// The pod was deleted or replaced by another one of its name. The source will report
		// that.
		r.halted = true
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err) && pause > 5*time.Second:
		w.log.Error("API server rejected status of pod as invalid or forbidden; the API shows an outdated status, sending it again when the status or the pod changes", "podUID", w.uid, "err", err)
		r.halted, r.refused = true, want
	default:
		if ctx.Err() == nil {
			w.log.Warn("patching status of pod failed; the API shows an outdated status until a retry succeeds", "podUID", w.uid, "retryIn", pause, "err", err)
		}
	}
}

// mirrorPod returns the mirror pod of a static pod, or nil if there is none. It also stores the status of the
// mirror pod as the last known one, because a recreated mirror pod has no status. The caller must hold the
// worker's mu.
func (r *reporter) mirrorPod() *v1.Pod {
	if r.worker.host.Mirror == nil {
		return nil
	}
	pod := r.worker.host.Mirror.Of(r.worker.machine.Pod)
	if pod != nil && client.Newer(pod.ResourceVersion, r.version) {
		r.last, r.version = &pod.Status, pod.ResourceVersion
	}
	return pod
}

// statusPatch returns the strategic merge patch from the status last to the status want. It contains the UID,
// so that the API server rejects it for another pod of the same name.
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
