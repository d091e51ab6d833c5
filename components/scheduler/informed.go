package scheduler

import (
	"context"
	"maps"
	"slices"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"hyperkube/components/scheduler/framework"
)

// message is one thing for the scheduler's goroutine to take in.
type message struct {
	pod    *corev1.Pod
	node   *corev1.Node
	gone   bool
	failed *item // its binding failed
	// claim, by namespace/name, has changed; event is another change.
	claim string
	event framework.Event
	// evicted: others were evicted for this pod, or not, as err tells.
	evicted *corev1.Pod
	err     error
	// devices is what has happened to devices.
	devices *devicesMessage
}

// inbox passes messages from many goroutines to one, which never makes them
// wait.
type inbox struct {
	mu       sync.Mutex // guards messages
	messages []message
	// signal has one element when there may be messages.
	signal chan struct{}
}

func newInbox() *inbox { return &inbox{signal: make(chan struct{}, 1)} }

func (b *inbox) put(m message) {
	b.mu.Lock()
	b.messages = append(b.messages, m)
	b.mu.Unlock()
	select {
	case b.signal <- struct{}{}:
	default:
	}
}

func (b *inbox) take() []message {
	b.mu.Lock()
	defer b.mu.Unlock()
	messages := b.messages
	b.messages = nil
	return messages
}

// informed is what the scheduler has informers for.
type informed struct {
	synced      []cache.DoneChecker
	nodes       corelisters.NodeLister
	namespaces  corelisters.NamespaceLister
	services    corelisters.ServiceLister
	replicaSets appslisters.ReplicaSetLister
}

func newInformed(factory informers.SharedInformerFactory, in *inbox) (*informed, error) {
	core := factory.Core().V1()
	f := &informed{
		nodes:       core.Nodes().Lister(),
		namespaces:  core.Namespaces().Lister(),
		services:    core.Services().Lister(),
		replicaSets: factory.Apps().V1().ReplicaSets().Lister(),
	}
	nodes, err := core.Nodes().Informer().AddEventHandler(handler(func(node *corev1.Node, gone bool) {
		in.put(message{node: node, gone: gone})
	}))
	if err != nil {
		return nil, err
	}
	pods, err := core.Pods().Informer().AddEventHandler(handler(func(pod *corev1.Pod, gone bool) {
		in.put(message{pod: pod, gone: gone})
	}))
	if err != nil {
		return nil, err
	}
	f.synced = []cache.DoneChecker{
		nodes.HasSyncedChecker(), pods.HasSyncedChecker(), core.Namespaces().Informer().HasSyncedChecker(),
		core.Services().Informer().HasSyncedChecker(), factory.Apps().V1().ReplicaSets().Informer().HasSyncedChecker(),
	}
	return f, nil
}

// informBudgets asks for an informer of PodDisruptionBudgets and returns how to
// list them; nil when the API does not serve them.
func (s *Scheduler) informBudgets(ctx context.Context) func() []*policyv1.PodDisruptionBudget {
	gv := policyv1.SchemeGroupVersion.String()
	served, err := s.cfg.Clients.Kube.Discovery().ServerResourcesForGroupVersion(gv)
	if err != nil {
		if !apierrors.IsNotFound(err) && ctx.Err() == nil {
			s.cfg.Log.Warn("evictions will not respect PodDisruptionBudgets", "err", err)
		}
		return nil
	}
	if !slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Name == "poddisruptionbudgets" }) {
		return nil
	}
	factory := s.cfg.Clients.Informers
	budgets := factory.Policy().V1().PodDisruptionBudgets()
	informer := budgets.Informer()
	factory.StartWithContext(ctx)
	cache.WaitFor(ctx, "", informer.HasSyncedChecker())
	return func() []*policyv1.PodDisruptionBudget {
		// A lister from memory does not fail.
		all, _ := budgets.Lister().List(labels.Everything())
		return all
	}
}

func handler[T any](tell func(obj T, gone bool)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { tell(obj.(T), false) },
		UpdateFunc: func(_, obj any) { tell(obj.(T), false) },
		DeleteFunc: func(obj any) {
			if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = unknown.Obj
			}
			if typed, ok := obj.(T); ok {
				tell(typed, true)
			}
		},
	}
}

// namespaceLabels as framework.Cycle.Namespaces.
func (f *informed) namespaceLabels(name string) map[string]string {
	ns, err := f.namespaces.Get(name)
	if err != nil {
		return nil
	}
	return ns.Labels
}

// spreadSelector as framework.Cycle.SpreadSelector.
func (f *informed) spreadSelector(pod *corev1.Pod) map[string]string {
	selected := map[string]string{}
	services, err := f.services.Services(pod.Namespace).List(labels.Everything())
	if err == nil {
		for _, svc := range services {
			if len(svc.Spec.Selector) > 0 && labels.SelectorFromSet(svc.Spec.Selector).Matches(labels.Set(pod.Labels)) {
				maps.Copy(selected, svc.Spec.Selector)
			}
		}
	}
	owner := metav1.GetControllerOf(pod)
	if owner != nil && owner.Kind == "ReplicaSet" && owner.APIVersion == appsv1.SchemeGroupVersion.String() {
		if rs, err := f.replicaSets.ReplicaSets(pod.Namespace).Get(owner.Name); err == nil && rs.Spec.Selector != nil {
			maps.Copy(selected, rs.Spec.Selector.MatchLabels)
		}
	}
	return selected
}

func resourcesEqual(a, b corev1.ResourceList) bool {
	return maps.EqualFunc(a, b, func(x, y resource.Quantity) bool { return x.Cmp(y) == 0 })
}

func taintsEqual(a, b []corev1.Taint) bool {
	return slices.EqualFunc(a, b, func(x, y corev1.Taint) bool {
		return x.Key == y.Key && x.Value == y.Value && x.Effect == y.Effect
	})
}
