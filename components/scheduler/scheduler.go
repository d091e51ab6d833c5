// Package scheduler finds nodes for pods: upstream's extension points, plugin
// names and configuration over an own, incremental view of the cluster.
//
// One goroutine owns that view and the queue, takes in what informers tell and
// places one pod after the other; bindings are written by others meanwhile. So
// nothing is copied and nothing is locked for a cycle.
package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/plugins"
	"hyperkube/components/scheduler/state"
	"hyperkube/internal/client"
)

// Profile is a scheduler by name and what it runs.
type Profile struct {
	SchedulerName string
	Plugins       plugins.Set
}

// Config of a Scheduler.
type Config struct {
	// Clients of system:kube-scheduler.
	Clients *client.Clients
	// Profiles; nil is one, default-scheduler, with the default plugins.
	Profiles []Profile
	// Binders is how many bindings are written at the same time; zero means
	// sixteen.
	Binders int
	Log     *slog.Logger
}

// Scheduler places pods.
type Scheduler struct {
	cfg      Config
	profiles map[string]*Profile
	informed *informed
	inbox    *inbox
	ready    chan struct{}

	// Owned by the goroutine of Run.
	state *state.State
	queue *queue
	// assumed are the pods whose binding is being written, or was and has
	// not come back by the watch.
	assumed map[types.UID]bool
}

// New validates cfg and asks its informers for what is needed; they are started
// by who composes the process.
func New(cfg Config) (*Scheduler, error) {
	if cfg.Clients == nil {
		return nil, errors.New("scheduler: no clients")
	}
	if cfg.Binders == 0 {
		cfg.Binders = 16
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if len(cfg.Profiles) == 0 {
		cfg.Profiles = []Profile{{SchedulerName: corev1.DefaultSchedulerName, Plugins: plugins.Default()}}
	}
	s := &Scheduler{
		cfg: cfg, profiles: map[string]*Profile{}, inbox: newInbox(), ready: make(chan struct{}),
		state: state.New(), queue: newQueue(), assumed: map[types.UID]bool{},
	}
	for i := range cfg.Profiles {
		p := &cfg.Profiles[i]
		if s.profiles[p.SchedulerName] != nil {
			return nil, fmt.Errorf("scheduler: two profiles are named %q", p.SchedulerName)
		}
		s.profiles[p.SchedulerName] = p
	}
	var err error
	if s.informed, err = newInformed(cfg.Clients.Informers, s.inbox); err != nil {
		return nil, fmt.Errorf("scheduler: preparing informers: %w", err)
	}
	return s, nil
}

// Ready is closed once all nodes and pods are known.
func (s *Scheduler) Ready() <-chan struct{} { return s.ready }

// Run places pods until ctx ends; bindings under way are finished first.
func (s *Scheduler) Run(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), s.informed.synced...) {
		return nil
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: s.cfg.Clients.Kube.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return fmt.Errorf("scheduler: starting events: %w", err)
	}
	defer broadcaster.Shutdown()
	recorders := map[string]events.EventRecorder{}
	for name := range s.profiles {
		recorders[name] = broadcaster.NewRecorder(scheme.Scheme, name)
	}
	work := make(chan binding, 1024)
	var binders sync.WaitGroup
	for range s.cfg.Binders {
		binders.Add(1)
		go func() {
			defer binders.Done()
			for b := range work {
				s.bind(ctx, b, recorders[b.profile])
			}
		}()
	}
	defer binders.Wait()
	defer close(work)
	close(s.ready)
	for {
		s.takeIn()
		it := s.queue.pop(time.Now())
		if it == nil {
			if !s.wait(ctx) {
				return nil
			}
			continue
		}
		if ctx.Err() != nil {
			return nil
		}
		s.attempt(ctx, it, work, recorders)
	}
}

// wait blocks until something is in the inbox or a backoff ends. It returns
// false when ctx has ended.
func (s *Scheduler) wait(ctx context.Context) bool {
	var expiry <-chan time.Time
	if next := s.queue.nextReady(); !next.IsZero() {
		timer := time.NewTimer(time.Until(next))
		defer timer.Stop()
		expiry = timer.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-s.inbox.signal:
	case <-expiry:
	}
	return true
}

// takeIn applies what informers and binders told.
func (s *Scheduler) takeIn() {
	now := time.Now()
	for _, m := range s.inbox.take() {
		switch {
		case m.failed != nil:
			// The pod may have changed or gone meanwhile; the queue knows.
			delete(s.assumed, m.failed.pod.UID)
			s.state.RemovePod(m.failed.pod.UID)
			s.queue.again(m.failed, now)
		case m.node != nil && m.gone:
			s.state.RemoveNode(m.node.Name)
			s.queue.happened(framework.NodeRemoved, now)
		case m.node != nil:
			old := s.state.Node(m.node.Name)
			e := nodeEvent(old, m.node)
			s.state.SetNode(m.node)
			if e != 0 {
				s.queue.happened(e, now)
			}
		case m.pod != nil:
			s.takePod(m.pod, m.gone, now)
		}
	}
}

func (s *Scheduler) takePod(pod *corev1.Pod, gone bool, now time.Time) {
	uid := pod.UID
	over := gone || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	switch {
	case over:
		delete(s.assumed, uid)
		s.queue.remove(uid)
		if s.state.Pod(uid) != nil {
			s.state.RemovePod(uid)
			s.queue.happened(framework.PodRemoved, now)
		}
	case pod.Spec.NodeName != "":
		delete(s.assumed, uid)
		s.queue.remove(uid)
		e := framework.PodScaledDown | framework.PodLabelsChanged
		if s.state.Pod(uid) == nil {
			e = framework.PodAdded
		}
		s.state.SetPod(state.NewPod(pod), pod.Spec.NodeName)
		s.queue.happened(e, now)
	case s.assumed[uid]:
		// Its binding is on the way.
	case pod.DeletionTimestamp != nil:
		s.queue.remove(uid)
	default:
		profile := s.profiles[pod.Spec.SchedulerName]
		if profile == nil {
			return
		}
		isGated := false
		for _, p := range profile.Plugins.PreEnqueue {
			isGated = isGated || p.PreEnqueue(pod) != ""
		}
		s.queue.set(pod, isGated, now)
	}
}

// nodeEvent tells what changed of a node that matters to waiting pods.
func nodeEvent(old *state.Node, now *corev1.Node) framework.Event {
	if old == nil {
		return framework.NodeAdded
	}
	var e framework.Event
	if !resourcesEqual(old.Object.Status.Allocatable, now.Status.Allocatable) {
		e |= framework.NodeAllocatableChanged
	}
	if !maps.Equal(old.Object.Labels, now.Labels) {
		e |= framework.NodeLabelsChanged
	}
	if old.Object.Spec.Unschedulable != now.Spec.Unschedulable || !taintsEqual(old.Object.Spec.Taints, now.Spec.Taints) {
		e |= framework.NodeTaintsChanged
	}
	return e
}

// attempt tries to place one pod.
func (s *Scheduler) attempt(ctx context.Context, it *item, work chan<- binding, recorders map[string]events.EventRecorder) {
	pod := it.pod
	profile := s.profiles[pod.Spec.SchedulerName]
	info := state.NewPod(pod)
	cycle := &framework.Cycle{Pod: info, State: s.state, Namespaces: s.informed.namespaceLabels, SpreadSelector: s.informed.spreadSelector}
	node, failed := findNode(cycle, &profile.Plugins)
	if node == nil {
		s.queue.turnDown(it, failed.wake, time.Now())
		message := failed.Error()
		recorders[profile.SchedulerName].Eventf(pod, nil, corev1.EventTypeWarning, "FailedScheduling", "Scheduling", message)
		select {
		case work <- binding{item: it, profile: profile.SchedulerName, unfit: message}:
		case <-ctx.Done():
		}
		return
	}
	s.state.SetPod(info, node.Name)
	s.assumed[pod.UID] = true
	select {
	case work <- binding{item: it, profile: profile.SchedulerName, node: node.Name}:
	case <-ctx.Done():
	}
}

// binding is a decision to be written: a node, or why there is none.
type binding struct {
	item    *item
	profile string
	node    string
	unfit   string
}

// bind writes a decision. It does not touch what Run owns.
func (s *Scheduler) bind(ctx context.Context, b binding, recorder events.EventRecorder) {
	pod := b.item.pod
	pods := s.cfg.Clients.Kube.CoreV1().Pods(pod.Namespace)
	if b.node == "" {
		s.tellUnschedulable(ctx, pod, b.unfit)
		return
	}
	err := pods.Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: b.node},
	}, metav1.CreateOptions{})
	if err != nil {
		s.inbox.put(message{failed: b.item})
		if !apierrors.IsNotFound(err) && ctx.Err() == nil {
			s.cfg.Log.Warn("binding failed", "pod", pod.Namespace+"/"+pod.Name, "node", b.node, "err", err)
			recorder.Eventf(pod, nil, corev1.EventTypeWarning, "FailedScheduling", "Scheduling", "binding rejected: "+err.Error())
		}
		return
	}
	recorder.Eventf(pod, nil, corev1.EventTypeNormal, "Scheduled", "Binding",
		"Successfully assigned %v/%v to %v", pod.Namespace, pod.Name, b.node)
}

// tellUnschedulable writes the PodScheduled condition if it says something new.
func (s *Scheduler) tellUnschedulable(ctx context.Context, pod *corev1.Pod, text string) {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse &&
			c.Reason == corev1.PodReasonUnschedulable && c.Message == text {
			return
		}
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status": map[string]any{"conditions": []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, ObservedGeneration: pod.Generation,
			Reason: corev1.PodReasonUnschedulable, Message: text, LastTransitionTime: metav1.Now(),
		}}},
	})
	if err == nil {
		_, err = s.cfg.Clients.Kube.CoreV1().Pods(pod.Namespace).Patch(
			ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
		s.cfg.Log.Warn("telling that a pod is unschedulable failed", "pod", pod.Namespace+"/"+pod.Name, "err", err)
	}
}
