package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"

	"hyperkube/components/scheduler/framework"
)

// decision is what an attempt came to: a node, or why there is none and what is
// done about it. The goroutine of Run does not touch it once it is handed over.
type decision struct {
	item     *item // only handed back
	pod      *corev1.Pod
	profile  string
	start    time.Time // of the attempt
	first    time.Time // of all attempts
	attempts int
	flushed  bool // it was tried only because it had waited for long

	node string // to bind to
	// reservation is written before the binding; may be nil.
	reservation *framework.Reservation

	unfit  string // without a node, why
	failed bool   // because the pod itself is at fault
	// nominated is the pod's new nominated node, "" for none; nil leaves it.
	nominated *string
	// victims are evicted for the pod.
	victims []*corev1.Pod
	// freed is a claim whose devices are given back, so that the pod may get
	// others; nil for none.
	freed *resourcev1.ResourceClaim
	// denominated lose their nominated node.
	denominated []*corev1.Pod
}

func (d *decision) nominate(node string) { d.nominated = &node }

// writers write decisions: those of one pod in order, those of many at once.
type writers struct {
	work []chan *decision
	done sync.WaitGroup
}

func (s *Scheduler) startWriters(ctx context.Context, recorders map[string]events.EventRecorder) *writers {
	w := &writers{work: make([]chan *decision, s.cfg.Binders)}
	for i := range w.work {
		work := make(chan *decision, 64)
		w.work[i] = work
		w.done.Go(func() {
			for d := range work {
				s.write(ctx, d, recorders[d.profile], &w.done)
			}
		})
	}
	return w
}

// write hands a decision over; it returns false when ctx has ended.
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

// stop waits until all decisions are written.
func (w *writers) stop() {
	for _, work := range w.work {
		close(work)
	}
	w.done.Wait()
}

// write does not touch what Run owns.
func (s *Scheduler) write(ctx context.Context, d *decision, recorder events.EventRecorder, waiting *sync.WaitGroup) {
	switch {
	case d.node != "" && d.reservation != nil:
		// It may wait long for its volumes, others must not with it.
		waiting.Go(func() { s.bind(ctx, d, recorder) })
		return
	case d.node != "":
		s.bind(ctx, d, recorder)
		return
	case d.failed:
		s.metrics.attempt(d.profile, "error", time.Since(d.start))
	default:
		s.metrics.attempt(d.profile, "unschedulable", time.Since(d.start))
	}
	recorder.Eventf(d.pod, nil, corev1.EventTypeWarning, "FailedScheduling", "Scheduling", "%s", note(d.unfit))
	if err := s.tellUnschedulable(ctx, d); err != nil && ctx.Err() == nil {
		s.cfg.Log.Warn("telling that a pod is unschedulable failed", "pod", name(d.pod), "err", err)
	}
	if d.freed != nil {
		if err := s.free(ctx, d.freed); err != nil && ctx.Err() == nil {
			s.cfg.Log.Warn("giving devices back failed", "claim", d.freed.Namespace+"/"+d.freed.Name, "err", err)
		}
	}
	for _, pod := range d.denominated {
		if err := s.patchStatus(ctx, pod, map[string]any{"nominatedNodeName": nil}); err != nil && ctx.Err() == nil {
			s.cfg.Log.Warn("taking back a nominated node failed", "pod", name(pod), "err", err)
		}
	}
	if d.nominated == nil || *d.nominated == "" {
		return
	}
	err := s.evict(ctx, d, recorder)
	if err != nil && ctx.Err() == nil {
		s.cfg.Log.Warn("evicting for a pod failed", "pod", name(d.pod), "err", err)
	}
	s.inbox.put(message{evicted: d.pod, err: err})
}

func (s *Scheduler) bind(ctx context.Context, d *decision, recorder events.EventRecorder) {
	pod := d.pod
	if err := s.place(ctx, d, recorder); err != nil {
		if d.reservation != nil {
			s.releaseClaims(ctx, d.reservation)
		}
		s.metrics.attempt(d.profile, "error", time.Since(d.start))
		if ctx.Err() == nil {
			s.tellUnbound(ctx, d, err, recorder)
		}
		// The pod is tried again, and what is written then comes after this.
		s.inbox.put(message{failed: d.item})
		return
	}
	s.metrics.attempt(d.profile, "scheduled", time.Since(d.start))
	s.metrics.placed(d.attempts, time.Since(d.first))
	if d.flushed {
		s.metrics.flushed.Inc()
	}
	recorder.Eventf(pod, nil, corev1.EventTypeNormal, "Scheduled", "Binding",
		"Successfully assigned %v/%v to %v", pod.Namespace, pod.Name, d.node)
}

// place writes what comes with the node of a decision, and then binds the pod.
func (s *Scheduler) place(ctx context.Context, d *decision, recorder events.EventRecorder) error {
	pod := d.pod
	if d.reservation != nil {
		s.expect(ctx, d)
		within, done := s.reserving.begin(ctx, pod.UID)
		err := s.reserve(within, d, recorder)
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
	for _, e := range s.extended {
		if e.cfg.BindVerb == "" || !e.interested(pod) {
			continue
		}
		err := e.bind(ctx, b)
		if err == nil || !e.cfg.Ignorable {
			return err
		}
		s.cfg.Log.Warn("an extender failed that may be ignored", "extender", e.cfg.URLPrefix, "err", err)
	}
	s.metrics.binding.Inc()
	defer s.metrics.binding.Dec()
	began := time.Now()
	if err := s.cfg.Clients.Kube.CoreV1().Pods(pod.Namespace).Bind(ctx, b, metav1.CreateOptions{}); err != nil {
		s.metrics.point(d.profile, "Bind", "Error", began)
		return fmt.Errorf("running Bind plugin %q: %w", "DefaultBinder", err)
	}
	s.metrics.point(d.profile, "Bind", "Success", began)
	return nil
}

// tellUnbound tells a pod why it was not bound, unless it is gone, or bound after
// all.
func (s *Scheduler) tellUnbound(ctx context.Context, d *decision, why error, recorder events.EventRecorder) {
	now, err := s.cfg.Clients.Kube.CoreV1().Pods(d.pod.Namespace).Get(ctx, d.pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && now.UID != d.pod.UID {
		return
	}
	s.cfg.Log.Warn("binding failed", "pod", name(d.pod), "node", d.node, "err", why)
	recorder.Eventf(d.pod, nil, corev1.EventTypeWarning, "FailedScheduling", "Scheduling", "%s", note(why.Error()))
	if err == nil && now.Spec.NodeName == "" {
		d.pod, d.unfit, d.failed = now, why.Error(), true
		d.nominate("")
		err = s.tellUnschedulable(ctx, d)
	}
	if err != nil && ctx.Err() == nil {
		s.cfg.Log.Warn("telling that a pod is unschedulable failed", "pod", name(d.pod), "err", err)
	}
}

// mostNote is how long the note of an event may be.
const mostNote = 1024

// note makes a text short enough for an event.
func note(text string) string {
	const rest = " ..."
	if len(text) <= mostNote {
		return text
	}
	return strings.ToValidUTF8(text[:mostNote-len(rest)], "") + rest
}

// expect tells where a pod will be that waits for what comes with its node, so
// that others leave it the place even if the scheduler ends meanwhile.
//
// https://kep.k8s.io/5278
func (s *Scheduler) expect(ctx context.Context, d *decision) {
	r := d.reservation
	if len(r.Bind)+len(r.Provision)+len(r.Claims) == 0 || d.pod.Status.NominatedNodeName == d.node {
		return
	}
	if err := s.patchStatus(ctx, d.pod, map[string]any{"nominatedNodeName": d.node}); err != nil && ctx.Err() == nil {
		s.cfg.Log.Warn("telling the expected node failed", "pod", name(d.pod), "err", err)
	}
}

// reserve writes what comes with a node.
func (s *Scheduler) reserve(ctx context.Context, d *decision, recorder events.EventRecorder) error {
	r := d.reservation
	if len(r.Bind)+len(r.Provision) > 0 {
		if err := s.bindVolumes(ctx, r, d.node); err != nil {
			s.volumes.forget(r)
			return fmt.Errorf("running PreBind plugin %q: binding volumes: %w", "VolumeBinding", err)
		}
	}
	if len(r.Claims) > 0 {
		waits := func() {
			recorder.Eventf(d.pod, nil, corev1.EventTypeNormal, "BindingConditionsPending", "Scheduling",
				"waiting for binding conditions for device on node %s", d.node)
		}
		if err := s.bindClaims(ctx, r, waits); err != nil {
			return fmt.Errorf("running PreBind plugin %q: %w", "DynamicResources", err)
		}
	}
	return nil
}

// tellUnschedulable writes the PodScheduled condition and the nominated node, if
// that says something new.
func (s *Scheduler) tellUnschedulable(ctx context.Context, d *decision) error {
	reason := corev1.PodReasonUnschedulable
	if d.failed {
		reason = corev1.PodReasonSchedulerError
	}
	condition := corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, ObservedGeneration: d.pod.Generation,
		Reason: reason, Message: d.unfit, LastTransitionTime: metav1.Now(),
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
	return s.patchStatus(ctx, d.pod, status)
}

// patchStatus changes the status of a pod that may be gone.
func (s *Scheduler) patchStatus(ctx context.Context, pod *corev1.Pod, status map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		return fmt.Errorf("encoding a pod's status: %w", err)
	}
	_, err = s.cfg.Clients.Kube.CoreV1().Pods(pod.Namespace).Patch(
		ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	// Another pod of that name is a conflict.
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// evict deletes the victims of a decision, having told each why.
func (s *Scheduler) evict(ctx context.Context, d *decision, recorder events.EventRecorder) error {
	var errs []error
	for _, victim := range d.victims {
		if victim.DeletionTimestamp != nil {
			continue
		}
		if s.reserving.callOff(victim.UID, errors.New("preempted by DefaultPreemption")) {
			recorder.Eventf(victim, d.pod, corev1.EventTypeNormal, "Preempted", "Preempting",
				"Preempted by pod %v on node %v (in kube-scheduler memory).", d.pod.UID, *d.nominated)
			continue
		}
		err := s.patchStatus(ctx, victim, map[string]any{"conditions": []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, ObservedGeneration: victim.Generation,
			Reason:             corev1.PodReasonPreemptionByScheduler,
			Message:            d.profile + ": preempting to accommodate a higher priority pod",
			LastTransitionTime: metav1.Now(),
		}}})
		if err == nil {
			err = s.cfg.Clients.Kube.CoreV1().Pods(victim.Namespace).Delete(ctx, victim.Name, metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &victim.UID},
			})
		}
		switch {
		case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
			continue // it is gone already
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", name(victim), err))
			continue
		}
		recorder.Eventf(victim, d.pod, corev1.EventTypeNormal, "Preempted", "Preempting",
			"Preempted by pod %v on node %v", d.pod.UID, *d.nominated)
	}
	return errors.Join(errs...)
}

func name(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }
