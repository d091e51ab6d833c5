package pods

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"hyperkube/components/kubelet/pod/volume"
)

// mountTimeout is the time after which an event reports that a pod's volumes are not mounted, in
// addition to other events. As upstream, it is two minutes and three seconds.
const mountTimeout = 2*time.Minute + 3*time.Second

// mount sets up or updates all volumes of the pod. Volumes that may have to wait for other components are set up
// concurrently. If a volume fails, mount emits events and returns an error; the start of the pod is then retried
// with a back-off. A pod without containers is rejected if a volume exceeds the node's attach limit.
func (w *starter) mount(ctx context.Context) error {
	pod := w.pod
	w.mu.Lock()
	w.machine.Volumes.Updating()
	if w.volumes.failingSince.IsZero() {
		w.volumes.failingSince = time.Now()
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
			w.emitMountFailure(step, apiText(step.Err))
		case errors.Is(err, context.DeadlineExceeded):
			unattached = append(unattached, name)
		case volume.RefersToClaim(&list[i]):
			unknown, why = append(unknown, name), err
		default:
			w.emitMountFailure(&volume.Failure{Operation: "MountVolume.SetUp", Volume: name}, apiText(err))
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if failed == nil {
		w.volumes = volumeResults{byName: made}
		w.machine.Volumes.Updated(firstRefresh(made))
		return nil
	}
	slices.Sort(unmounted)
	names := func(list []string) string { return "[" + strings.Join(list, " ") + "]" }
	text := fmt.Sprintf("unmounted volumes=%s, unattached volumes=%s, failed to process volumes=%s: %v", names(unmounted), names(unattached), names(unknown), why)
	if full && !w.machine.Volumes.Mounted && w.machine.Containers.Observed.Sandbox() == nil {
		v := &Verdict{Reason: attachLimitExceeded, Message: "Node has reached its volume attachment limit, rejecting pod. " + text, Rejected: true}
		if w.machine.Terminate(v, time.Now()) {
			w.host.event(pod, "", true, v.Reason, v.Message)
			w.host.Metrics.Rejected(v.Reason)
			w.kick()
			return failed
		}
	}
	if late := time.Since(w.volumes.failingSince) > mountTimeout; late || len(unattached)+len(unknown) > 0 {
		w.volumes.failingSince = time.Time{}
		w.host.event(pod, "", true, "FailedMount", "Unable to attach or mount volumes: "+text)
	}
	return failed
}

// attachLimitExceeded is the status reason of a pod that is rejected because the node has reached its limit
// of attached volumes.
const attachLimitExceeded = "VolumeAttachmentLimitExceeded"

// firstRefresh returns the earliest time at which a volume must be updated, for example to renew a token. The
// zero time means never.
func firstRefresh(volumes map[string]volume.Result) time.Time {
	var next time.Time
	for _, r := range volumes {
		if !r.Refresh.IsZero() && (next.IsZero() || r.Refresh.Before(next)) {
			next = r.Refresh
		}
	}
	return next
}

// emitMountFailure emits the event of a volume whose setup has failed in a step. why is the cause.
func (w *starter) emitMountFailure(step *volume.Failure, why string) {
	reason := "FailedMount"
	if strings.HasPrefix(step.Operation, "MapVolume.") {
		reason = "FailedMapVolume"
	}
	w.host.event(w.pod, "", true, reason, step.Text(why))
}
