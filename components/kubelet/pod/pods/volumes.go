package pods

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/pod/volume"
)

// mountTimeout is the time after which an event reports that a pod's volumes are not mounted, in
// addition to other events. As upstream, it is two minutes and three seconds.
const mountTimeout = 2*time.Minute + 3*time.Second

// mount sets up or updates all volumes. Volumes that may have to wait for other components are set
// up concurrently.
func (w *worker) mount(ctx context.Context, pod *v1.Pod, report bool) error {
	w.mu.Lock()
	w.stale = false
	if w.mountSince.IsZero() {
		w.mountSince = time.Now()
	}
	w.mu.Unlock()
	list := pod.Spec.Volumes
	results := make([]volume.Result, len(list))
	errs := make([]error, len(list))
	var wait sync.WaitGroup
	for i := range list {
		one := func() { results[i], errs[i] = w.host.Volumes.SetUp(ctx, pod, &list[i]) }
		if volume.MayBlock(&list[i]) && len(list) > 1 {
			wait.Go(one)
		} else {
			one()
		}
	}
	wait.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	made := make(map[string]volume.Result, len(list))
	var failed error
	var full bool
	var unmounted, unattached, unknown []string
	why := context.DeadlineExceeded
	for i := range list {
		name, err := list[i].Name, errs[i]
		if err == nil {
			made[name] = results[i]
			continue
		}
		failed = errors.Join(failed, fmt.Errorf("setting up volume %s: %w", name, err))
		unmounted = append(unmounted, name)
		full = full || errors.Is(err, volume.ErrAttachLimit)
		var step *volume.Failure
		switch {
		case errors.As(err, &step):
			w.emitMountFailure(report, pod, step, apiText(step.Err))
		case errors.Is(err, context.DeadlineExceeded):
			unattached = append(unattached, name)
		case volume.RefersToClaim(&list[i]):
			unknown, why = append(unknown, name), err
		default:
			w.emitMountFailure(report, pod, &volume.Failure{Operation: "MountVolume.SetUp", Volume: name}, apiText(err))
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if failed == nil {
		w.volumes, w.mounted, w.mountSince = made, true, time.Time{}
		return nil
	}
	slices.Sort(unmounted)
	names := func(list []string) string { return "[" + strings.Join(list, " ") + "]" }
	text := fmt.Sprintf("unmounted volumes=%s, unattached volumes=%s, failed to process volumes=%s: %v", names(unmounted), names(unattached), names(unknown), why)
	if full && !w.mounted && w.verdict == nil && w.stage == syncing && w.obs.Sandbox() == nil {
		w.verdict = &Verdict{Reason: attachLimitExceeded, Message: "Node has reached its volume attachment limit, rejecting pod. " + text, Rejected: true}
		w.host.event(pod, "", true, w.verdict.Reason, w.verdict.Message)
		w.host.Metrics.Rejected(w.verdict.Reason)
		w.kick()
		return failed
	}
	if late := time.Since(w.mountSince) > mountTimeout; report && (late || len(unattached)+len(unknown) > 0) {
		w.mountSince = time.Time{}
		w.host.event(pod, "", true, "FailedMount", "Unable to attach or mount volumes: "+text)
	}
	return failed
}

// attachLimitExceeded is the reason of pods that are rejected because a volume cannot be attached
// to this node.
const attachLimitExceeded = "VolumeAttachmentLimitExceeded"

func (w *worker) emitMountFailure(report bool, pod *v1.Pod, step *volume.Failure, why string) {
	if !report {
		return
	}
	reason := "FailedMount"
	if strings.HasPrefix(step.Operation, "MapVolume.") {
		reason = "FailedMapVolume"
	}
	w.host.event(pod, "", true, reason, step.Text(why))
}
