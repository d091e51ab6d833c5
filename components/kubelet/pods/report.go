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

	"hyperkube/components/kubelet/podstate"
	"hyperkube/internal/client"
	"hyperkube/internal/lifecycle"
)

// reporter tells the API the pod's status: at once when something has changed,
// and while one answer is awaited everything else waits and goes as one. All
// fields but wait are guarded by the worker's mu.
type reporter struct {
	// last is the status that the API is known to have, of version.
	last    *v1.PodStatus
	version string
	// want is the newest status; dirty while the API does not have it.
	want  v1.PodStatus
	dirty bool
	busy  bool
	// halted: the API refused the status; nothing is sent until the source
	// tells something new or, when it was for what the status says, refused,
	// there is another to tell.
	halted  bool
	refused *v1.PodStatus
	// told is the pod that Host.Told was last told of.
	told *v1.Pod
	// wait counts all goroutines of the worker.
	wait sync.WaitGroup
}

// seen takes in the pod as the API has it, unless something newer is known.
func (r *reporter) seen(pod *v1.Pod) {
	if client.Newer(pod.ResourceVersion, r.version) && !IsStatic(pod) {
		r.halted = false
		r.last, r.version = &pod.Status, pod.ResourceVersion
	}
}

// settled tells whether the API has all that there is to tell.
func (r *reporter) settled() bool { return r.halted || !r.dirty && !r.busy }

// statusInput is what the status is made of now. The caller holds mu.
func (w *worker) statusInput(now time.Time) podstate.StatusInput {
	in := podstate.StatusInput{
		Input:       w.input(now),
		Last:        w.report.last,
		RuntimeName: w.host.RuntimeName,
		HostIPs:     w.host.NodeIPs(),
		Terminating: w.stage != syncing,
		Stopped:     w.stage == stopped,
		QOS:         QOS(w.pod),
		Actuated:    w.actuated,
		Recursive: func(m *v1.VolumeMount) bool {
			all, err := w.host.recursive(w.pod, m)
			return err == nil && all
		},
	}
	if w.host.Hooks.DeviceHealth != nil {
		in.Devices = func(container string) []v1.ResourceStatus { return w.host.Hooks.DeviceHealth(w.pod, container) }
	}
	if w.resize != nil {
		in.Conditions = append(in.Conditions, w.resize.condition())
		in.Pending = w.resize.kind == v1.PodResizePending
	}
	in.Resources, in.Allocated = w.podLevel()
	if w.verdict != nil {
		in.Reason, in.Message, in.Rejected = w.verdict.Reason, w.verdict.Message, w.verdict.Rejected
		if in.Rejected {
			in.Message = "Pod was rejected: " + in.Message
		}
		in.Conditions = append(in.Conditions, w.verdict.Conditions...)
	}
	return in
}

// replacePause is for how long nobody is told that a container has ended whose
// replacement is on its way: as long as upstream takes to notice. Who has changed
// an image sees a pod that stays ready if the new container comes at once.
const replacePause = time.Second

// replacing returns until when the status waits for a container that was stopped to
// be started anew; zero: it does not wait. The caller holds mu.
func (w *worker) replacing(now time.Time) time.Time {
	if w.stage != syncing || w.verdict != nil {
		return time.Time{}
	}
	for _, slot := range w.slots {
		old := w.obs.ByID(slot.ForceRestart)
		if old == nil || old.State != podstate.Exited || slot.Waiting != nil {
			continue
		}
		if until := old.FinishedAt.Add(replacePause); now.Before(until) {
			return until
		}
	}
	return time.Time{}
}

// report1 computes the status and sends it if it is news. The caller holds mu.
func (w *worker) report1(ctx context.Context, now time.Time) {
	if IsStatic(w.pod) {
		w.mirrored()
	}
	before := w.report.want
	if before.Phase == "" {
		before = *w.report.last
	}
	w.report.want = podstate.Status(w.statusInput(now))
	w.timeStatus(&before, &w.report.want, now)
	w.tellFamilies(before.HostIP, w.report.want.HostIP)
	if tell := w.host.Hooks.Told; tell != nil && !w.gone && (w.report.told != w.pod || !apiequality.Semantic.DeepEqual(&w.report.want, &before)) {
		w.report.told = w.pod
		now := w.report.want
		tell(w.pod, &now)
	}
	if w.host.Kube == nil || w.gone {
		// Nobody else remembers since when things are as they are.
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
		w.send(ctx)
	})
}

// tellFamilies tells that the node has an address of another family than it had.
func (w *worker) tellFamilies(before, now string) {
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

// send patches until the API has the newest status.
func (w *worker) send(ctx context.Context) {
	pause := 50 * time.Millisecond
	for {
		w.mu.Lock()
		pod := w.pod
		if IsStatic(pod) {
			pod = w.mirrored()
		}
		if !w.report.dirty || w.report.halted || w.gone || ctx.Err() != nil || pod == nil {
			w.report.busy = false
			// A static pod waits for its mirror.
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
			// What was added since, or by others, is found by the next step.
			w.report.dirty = !apiequality.Semantic.DeepEqual(&w.report.want, &want)
			w.host.Metrics.StatusTold(time.Since(w.timing.changed))
			w.timing.changed = time.Time{}
			if w.report.dirty {
				w.timing.changed = time.Now()
			}
			pause = 50 * time.Millisecond
		case apierrors.IsNotFound(err), apierrors.IsConflict(err):
			// It is gone, or another of that name is there: the source will say.
			w.report.halted = true
		case apierrors.IsInvalid(err), apierrors.IsForbidden(err) && pause > 5*time.Second:
			w.log.Error("the API refuses a pod's status", "error", err)
			w.report.halted, w.report.refused = true, &want
		default:
			if ctx.Err() == nil {
				w.log.Warn("reporting a pod's status failed, trying again", "error", err)
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

// mirrored returns the mirror of a static pod, nil while there is none, and takes in
// what it tells: one that was made anew knows nothing. The caller holds mu.
func (w *worker) mirrored() *v1.Pod {
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

// statusPatch is the strategic merge patch from one status to the other, for
// the pod of that UID alone.
func statusPatch(uid types.UID, last, want *v1.PodStatus) ([]byte, error) {
	encode := func(s *v1.PodStatus, id types.UID) ([]byte, error) {
		return json.Marshal(v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: id}, Status: *s})
	}
	old, err := encode(last, "")
	if err != nil {
		return nil, fmt.Errorf("encoding a pod's status: %w", err)
	}
	fresh, err := encode(want, uid)
	if err != nil {
		return nil, fmt.Errorf("encoding a pod's status: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(old, fresh, v1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("making the patch of a pod's status: %w", err)
	}
	return patch, nil
}
