package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"

	"hyperkube/components/scheduler/framework"
)

// decision is the result of an attempt to schedule a pod, which a writer writes to the API server: a node, or the
// reason why there is none and the resulting actions. The goroutine of Run does not access it after passing it to a
// writer.
type decision struct {
	item     *item // only passed back
	pod      *corev1.Pod
	profile  string
	start    time.Time // start of the attempt
	first    time.Time // start of the first attempt
	attempts int
	flushed  bool // the pod was retried without an event

	node string // the node to bind the pod to
	// reservation is written before the binding; may be nil.
	reservation *framework.Reservation

	reason string // reason, if there is no node
	failed bool   // an error occurred
	// nominated is the pod's new nominated node, "" for none. If nil, the nomination is not
	// changed.
	nominated *string
	// victims are the preemption victims.
	victims []*corev1.Pod
	// deallocated is a claim to deallocate, so that other devices can be allocated; may be nil.
	deallocated *resourcev1.ResourceClaim
	// nominationCleared are pods whose nomination is removed.
	nominationCleared []*corev1.Pod
}

// nominate sets the new nominated node of the pod; "" removes the nomination.
func (d *decision) nominate(node string) { d.nominated = &node }

// writers write decisions to the API server concurrently, so that scheduling does not wait for requests. The decisions
// about one pod are written in order.
type writers struct {
	kube     kubernetes.Interface
	log      *slog.Logger
	metrics  *metrics
	inbox    *inbox
	extended []*extender
	claims   *claimBinder
	volumes  *volumeBinder
	tracer   trace.Tracer // nil if no traces are exported
	// reserving are the pods whose reservations are being written.
	reserving reserving

	work []chan *decision
	done sync.WaitGroup
}

// newWriters returns writers without goroutines, which startWriters starts.
func (s *Scheduler) newWriters() *writers {
	kube, log := s.cfg.Clients.Kube, s.cfg.Log
	return &writers{
		kube: kube, log: log, metrics: s.metrics, inbox: s.inbox, extended: s.extended, work: make([]chan *decision, s.cfg.Binders),
		claims:  &claimBinder{kube: kube, log: log, inbox: s.inbox, devices: s.devices},
		volumes: &volumeBinder{kube: kube, volumes: s.volumes, nodes: s.listers.nodes},
		tracer:  s.traces.Tracer(instrumentationScope),
	}
}

// startWriters starts Config.Binders goroutines that write decisions. recorders are the event recorders by profile. The
// goroutines exit after stop.
func (s *Scheduler) startWriters(ctx context.Context, recorders map[string]events.EventRecorder) *writers {
	w := s.newWriters()
	for i := range w.work {
		work := make(chan *decision, 64)
		w.work[i] = work
		w.done.Go(func() {
			for d := range work {
				w.apply(ctx, d, recorders[d.profile])
			}
		})
	}
	return w
}

// write passes a decision to the goroutine for its pod. It blocks while that goroutine has too many decisions to write,
// and returns false if ctx is done.
func (w *writers) write(ctx context.Context, d *decision) bool {
	h := fnv.New32a()
	_, _ = h.Write([]byte(d.pod.UID))
	select {
	case w.work[h.Sum32()%uint32(len(w.work))] <- d:
		return true
	case <-ctx.Done():
		return false
	}
}

// stop waits until all decisions are written. write must not be called any more.
func (w *writers) stop() {
	for _, work := range w.work {
		close(work)
	}
	w.done.Wait()
}

// apply writes one decision: it binds the pod, or it updates the pod's status and evicts its preemption victims.
// Failures are logged; where the pod must be tried again, the goroutine of Run gets a message.
func (w *writers) apply(ctx context.Context, d *decision, recorder events.EventRecorder) {
	switch {
	case d.node != "" && d.reservation != nil:
		// The pod may wait long for its volumes; do not block other pods.
		w.done.Go(func() { w.bind(ctx, d, recorder) })
		return
	case d.node != "":
		w.bind(ctx, d, recorder)
		return
	case d.failed:
		w.metrics.attempt(d.profile, "error", time.Since(d.start))
	default:
		w.metrics.attempt(d.profile, "unschedulable", time.Since(d.start))
	}
	recorder.Eventf(d.pod, nil, corev1.EventTypeWarning, "FailedScheduling", "Scheduling", "%s", note(d.reason))
	traced, end := w.startSpan(ctx, d)
	err := w.setUnschedulable(traced, d)
	end(errors.New(d.reason))
	if err != nil && ctx.Err() == nil {
		w.log.Warn("updating condition PodScheduled of unschedulable pod failed; its status does not show why the pod is pending, retrying at its next scheduling attempt", "pod", name(d.pod), "err", err)
	}
	if d.deallocated != nil {
		if err := w.claims.free(ctx, d.deallocated); err != nil && ctx.Err() == nil {
			w.log.Warn("deallocating ResourceClaim of unschedulable pod failed; its devices stay allocated and the pod stays pending, retrying at the next scheduling attempt of the pod", "pod", name(d.pod), "resourceClaim", d.deallocated.Namespace+"/"+d.deallocated.Name, "err", err)
		}
	}
	for _, pod := range d.nominationCleared {
		if err := patchStatus(ctx, w.kube, pod, map[string]any{"nominatedNodeName": nil}); err != nil && ctx.Err() == nil {
			w.log.Warn("clearing status.nominatedNodeName of pod failed; only its status is outdated, retrying at its next scheduling attempt", "pod", name(pod), "err", err)
		}
	}
	if d.nominated == nil || *d.nominated == "" {
		return
	}
	err = w.evict(ctx, d, recorder)
	if err != nil && ctx.Err() == nil {
		w.log.Warn("evicting preemption victims for pod failed; some may still run, and the pod stays pending until it is scheduled again after its back-off", "pod", name(d.pod), "node", *d.nominated, "err", err)
	}
	w.inbox.put(message{evicted: d.pod, err: err})
}

// bind binds the pod of a decision to its node and records the result. If binding fails, it releases the reservation
// and sends a message, so that the pod is scheduled again.
func (w *writers) bind(ctx context.Context, d *decision, recorder events.EventRecorder) {
	pod := d.pod
	traced, end := w.startSpan(ctx, d)
	err := w.place(traced, d, recorder)
	end(err)
	if err != nil {
		if d.reservation != nil {
			w.claims.release(ctx, d.reservation)
		}
		w.metrics.attempt(d.profile, "error", time.Since(d.start))
		if ctx.Err() == nil {
			w.reportBindFailure(ctx, d, err, recorder)
		}
		// The pod is queued again. Later decisions about it are written after this one.
		w.inbox.put(message{failed: d.item})
		return
	}
	w.metrics.attempt(d.profile, "scheduled", time.Since(d.start))
	w.metrics.scheduled(d.attempts, time.Since(d.first))
	if d.flushed {
		w.metrics.flushed.Inc()
	}
	recorder.Eventf(pod, nil, corev1.EventTypeNormal, "Scheduled", "Binding",
		"Successfully assigned %v/%v to %v", pod.Namespace, pod.Name, d.node)
}

// place writes the reservation of a decision, and then the binding, by an extender that binds or by the API server.
func (w *writers) place(ctx context.Context, d *decision, recorder events.EventRecorder) error {
	pod := d.pod
	if d.reservation != nil {
		w.expect(ctx, d)
		within, done := w.reserving.begin(ctx, pod.UID)
		err := w.reserve(within, d, recorder)
		if off := done(); off != nil {
			err = off
		}
		if err != nil {
			return err
		}
	}
	b := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: d.node},
	}
	for _, e := range w.extended {
		if e.cfg.BindVerb == "" || !e.interested(pod) {
			continue
		}
		err := e.bind(ctx, b)
		if err == nil || !e.cfg.Ignorable {
			return err
		}
		w.log.Warn("scheduler extender failed to bind pod; the scheduler binds the pod itself, because the extender is configured as ignorable", "extender", e.cfg.URLPrefix, "pod", name(pod), "node", d.node, "err", err)
	}
	w.metrics.binding.Inc()
	defer w.metrics.binding.Dec()
	began := time.Now()
	if err := w.kube.CoreV1().Pods(pod.Namespace).Bind(ctx, b, metav1.CreateOptions{}); err != nil {
		w.metrics.point(d.profile, "Bind", "Error", began)
		return fmt.Errorf("running Bind plugin %q: %w", "DefaultBinder", err)
	}
	w.metrics.point(d.profile, "Bind", "Success", began)
	return nil
}

// reportBindFailure reports with a log message, an event and the pod's condition that a pod could not be bound because
// of why. It does nothing if the pod was deleted.
func (w *writers) reportBindFailure(ctx context.Context, d *decision, why error, recorder events.EventRecorder) {
	now, err := w.kube.CoreV1().Pods(d.pod.Namespace).Get(ctx, d.pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && now.UID != d.pod.UID {
		return
	}
	w.log.Warn("binding pod to node failed; the pod stays pending until it is scheduled again after its back-off", "pod", name(d.pod), "node", d.node, "err", why)
	recorder.Eventf(d.pod, nil, corev1.EventTypeWarning, "FailedScheduling", "Scheduling", "%s", note(why.Error()))
	if err == nil && now.Spec.NodeName == "" {
		d.pod, d.reason, d.failed = now, why.Error(), true
		d.nominate("")
		err = w.setUnschedulable(ctx, d)
	}
	if err != nil && ctx.Err() == nil {
		w.log.Warn("updating condition PodScheduled of pod that could not be bound failed; its status does not show why the pod is pending, retrying at its next scheduling attempt", "pod", name(d.pod), "err", err)
	}
}

// maxNote is the maximum length of an Event's note in bytes, which the API server enforces.
const maxNote = 1024

// note truncates the text of an Event to maxNote bytes.
func note(text string) string {
	const rest = " ..."
	if len(text) <= maxNote {
		return text
	}
	return strings.ToValidUTF8(text[:maxNote-len(rest)], "") + rest
}

// expect sets the nominated node of a pod before its volumes or devices are reserved, which may take long. If the
// scheduler restarts in the meantime, the new one keeps the resources on the node reserved for the pod. A failure is
// logged and does not stop the binding.
//
// https://kep.k8s.io/5278
func (w *writers) expect(ctx context.Context, d *decision) {
	r := d.reservation
	if len(r.Bind)+len(r.Provision)+len(r.Claims) == 0 || d.pod.Status.NominatedNodeName == d.node {
		return
	}
	if err := patchStatus(ctx, w.kube, d.pod, map[string]any{"nominatedNodeName": d.node}); err != nil && ctx.Err() == nil {
		w.log.Warn("setting status.nominatedNodeName of pod failed; binding continues, but if the scheduler restarts before the pod is bound, resources of the node are not reserved for the pod; no retry", "pod", name(d.pod), "node", d.node, "err", err)
	}
}

// reserve writes a reservation and waits until its volumes are bound and its devices are prepared. After an error, the
// scheduler no longer assumes that the volumes are bound; bind releases the devices.
func (w *writers) reserve(ctx context.Context, d *decision, recorder events.EventRecorder) error {
	r := d.reservation
	if len(r.Bind)+len(r.Provision) > 0 {
		if err := w.volumes.bind(ctx, r, d.node); err != nil {
			w.volumes.volumes.forget(r)
			return fmt.Errorf("running PreBind plugin %q: binding volumes: %w", "VolumeBinding", err)
		}
	}
	if len(r.Claims) > 0 {
		waits := func() {
			recorder.Eventf(d.pod, nil, corev1.EventTypeNormal, "BindingConditionsPending", "Scheduling",
				"waiting for binding conditions for device on node %s", d.node)
		}
		if err := w.claims.bind(ctx, r, waits); err != nil {
			return fmt.Errorf("running PreBind plugin %q: %w", "DynamicResources", err)
		}
	}
	return nil
}

// setUnschedulable sets the pod's PodScheduled condition to false with the reason of the decision, and updates the
// nominated node. It writes nothing if the status already contains both.
func (w *writers) setUnschedulable(ctx context.Context, d *decision) error {
	reason := corev1.PodReasonUnschedulable
	if d.failed {
		reason = corev1.PodReasonSchedulerError
	}
	condition := corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, ObservedGeneration: d.pod.Generation,
		Reason: reason, Message: d.reason, LastTransitionTime: metav1.Now(),
	}
	same := d.nominated == nil || *d.nominated == d.pod.Status.NominatedNodeName
	known := false
	for _, c := range d.pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			known = c.Reason == condition.Reason && c.Message == condition.Message
			condition.LastTransitionTime = c.LastTransitionTime
		}
	}
	if same && known {
		return nil
	}
	status := map[string]any{"conditions": []corev1.PodCondition{condition}}
	switch {
	case same:
	case *d.nominated == "":
		status["nominatedNodeName"] = nil
	default:
		status["nominatedNodeName"] = *d.nominated
	}
	return patchStatus(ctx, w.kube, d.pod, status)
}

// patchStatus patches the status of a pod. It is not an error if the pod was deleted, or if another pod has its name.
func patchStatus(ctx context.Context, kube kubernetes.Interface, pod *corev1.Pod, status map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		return fmt.Errorf("encoding pod status: %w", err)
	}
	_, err = kube.CoreV1().Pods(pod.Namespace).Patch(
		ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	// Conflict means that another pod has the name.
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// evict evicts the preemption victims of a decision: it sets their DisruptionTarget condition, deletes them and emits
// an event for each. A victim that is still being bound is not deleted; its binding is canceled.
func (w *writers) evict(ctx context.Context, d *decision, recorder events.EventRecorder) error {
	var errs []error
	for _, victim := range d.victims {
		if victim.DeletionTimestamp != nil {
			continue
		}
		if w.reserving.cancel(victim.UID, errors.New("preempted by DefaultPreemption")) {
			recorder.Eventf(victim, d.pod, corev1.EventTypeNormal, "Preempted", "Preempting",
				"Preempted by pod %v on node %v (in kube-scheduler memory).", d.pod.UID, *d.nominated)
			continue
		}
		err := patchStatus(ctx, w.kube, victim, map[string]any{"conditions": []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, ObservedGeneration: victim.Generation,
			Reason:             corev1.PodReasonPreemptionByScheduler,
			Message:            d.profile + ": preempting to accommodate a higher priority pod",
			LastTransitionTime: metav1.Now(),
		}}})
		if err == nil {
			err = w.kube.CoreV1().Pods(victim.Namespace).Delete(ctx, victim.Name, metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &victim.UID},
			})
		}
		switch {
		case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
			continue // already deleted
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", name(victim), err))
			continue
		}
		recorder.Eventf(victim, d.pod, corev1.EventTypeNormal, "Preempted", "Preempting",
			"Preempted by pod %v on node %v", d.pod.UID, *d.nominated)
	}
	return errors.Join(errs...)
}

// name returns the namespace/name of a pod for logs and errors.
func name(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }
