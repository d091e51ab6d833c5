package scheduler

import (
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	"k8s.io/client-go/tools/cache"

	"hyperkube/components/scheduler/framework"
)

// message is a message from an informer or a writer to the goroutine of Scheduler.Run, which alone changes the state
// and the queue. One of pod, node, failed, claim, event, evicted and devices is set and determines the kind of
// message.
type message struct {
	pod    *corev1.Pod
	node   *corev1.Node
	gone   bool  // pod or node was deleted
	failed *item // pod that could not be bound
	// claim is the namespace/name of a changed PersistentVolumeClaim; event is another change.
	claim string
	event framework.Event
	// evicted is a pod whose preemption victims were evicted, or could not be if err is not nil.
	evicted *corev1.Pod
	err     error
	// devices is an event about devices.
	devices *devicesMessage
}

// inbox is an unbounded queue of messages from many goroutines to the goroutine of Run. Senders never block. It is safe
// for concurrent use.
type inbox struct {
	mu       sync.Mutex // guards messages
	messages []message
	// signal contains an element when there may be messages.
	signal chan struct{}
}

// newInbox returns an empty inbox.
func newInbox() *inbox { return &inbox{signal: make(chan struct{}, 1)} }

// put adds a message and wakes the goroutine of Scheduler.Run, which processes the messages.
func (b *inbox) put(m message) {
	b.mu.Lock()
	b.messages = append(b.messages, m)
	b.mu.Unlock()
	select {
	case b.signal <- struct{}{}:
	default:
	}
}

// take removes and returns all messages, in the order of put.
func (b *inbox) take() []message {
	b.mu.Lock()
	defer b.mu.Unlock()
	messages := b.messages
	b.messages = nil
	return messages
}

// listers contains the listers of objects that all pods need. Those for storage and devices are in volumes and devices.
type listers struct {
	synced     []cache.DoneChecker
	nodes      corelisters.NodeLister
	namespaces corelisters.NamespaceLister
	services   corelisters.ServiceLister
	// Owners of pods, for default spreading.
	controllers  corelisters.ReplicationControllerLister
	replicaSets  appslisters.ReplicaSetLister
	statefulSets appslisters.StatefulSetLister
	budgets      policylisters.PodDisruptionBudgetLister
}

// newListers requests the informers from factory. Events of pods and nodes are sent to in. The caller starts the
// factory.
func newListers(factory informers.SharedInformerFactory, in *inbox) (*listers, error) {
	core, apps, budgets := factory.Core().V1(), factory.Apps().V1(), factory.Policy().V1().PodDisruptionBudgets()
	f := &listers{
		nodes:        core.Nodes().Lister(),
		namespaces:   core.Namespaces().Lister(),
		services:     core.Services().Lister(),
		controllers:  core.ReplicationControllers().Lister(),
		replicaSets:  apps.ReplicaSets().Lister(),
		statefulSets: apps.StatefulSets().Lister(),
		budgets:      budgets.Lister(),
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
	f.synced = []cache.DoneChecker{nodes.HasSyncedChecker(), pods.HasSyncedChecker()}
	for _, informer := range []cache.SharedIndexInformer{
		core.Namespaces().Informer(), core.Services().Informer(), core.ReplicationControllers().Informer(),
		apps.ReplicaSets().Informer(), apps.StatefulSets().Informer(), budgets.Informer(),
	} {
		f.synced = append(f.synced, informer.HasSyncedChecker())
	}
	return f, nil
}

// handler returns an informer event handler that calls notify for added, updated and deleted objects. gone is true for
// deleted ones. If an object was deleted and recreated between two lists, the informer sends only an update; handler
// then calls notify for the deleted object first.
func handler[T metav1.Object](notify func(obj T, gone bool)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { notify(obj.(T), false) },
		UpdateFunc: func(was, obj any) {
			old, now := was.(T), obj.(T)
			if old.GetUID() != now.GetUID() {
				notify(old, true)
			}
			notify(now, false)
		},
		DeleteFunc: func(obj any) {
			if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = unknown.Obj
			}
			if typed, ok := obj.(T); ok {
				notify(typed, true)
			}
		},
	}
}

// namespaceLabels returns the labels of a namespace, or nil if it does not exist. Namespace selectors of inter-pod
// affinity use it.
func (f *listers) namespaceLabels(name string) map[string]string {
	ns, err := f.namespaces.Get(name)
	if err != nil {
		return nil
	}
	return ns.Labels
}

// spreadSelector returns the selector with which default topology spread constraints count pods. It combines the
// selectors of all services that select the pod with that of the pod's controller. It is empty if there are none.
func (f *listers) spreadSelector(pod *corev1.Pod) labels.Selector {
	selected := map[string]string{}
	services, err := f.services.Services(pod.Namespace).List(labels.Everything())
	if err == nil {
		for _, svc := range services {
			if len(svc.Spec.Selector) > 0 && labels.SelectorFromSet(svc.Spec.Selector).Matches(labels.Set(pod.Labels)) {
				maps.Copy(selected, svc.Spec.Selector)
			}
		}
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return labels.SelectorFromSet(selected)
	}
	var own *metav1.LabelSelector
	switch owner.APIVersion + "/" + owner.Kind {
	case "v1/ReplicationController":
		if rc, err := f.controllers.ReplicationControllers(pod.Namespace).Get(owner.Name); err == nil {
			maps.Copy(selected, rc.Spec.Selector)
		}
	case "apps/v1/ReplicaSet":
		if rs, err := f.replicaSets.ReplicaSets(pod.Namespace).Get(owner.Name); err == nil {
			own = rs.Spec.Selector
		}
	case "apps/v1/StatefulSet":
		if set, err := f.statefulSets.StatefulSets(pod.Namespace).Get(owner.Name); err == nil {
			own = set.Spec.Selector
		}
	}
	selector := labels.SelectorFromSet(selected)
	if own == nil {
		return selector
	}
	if more, err := metav1.LabelSelectorAsSelector(own); err == nil {
		if all, ok := more.Requirements(); ok {
			selector = selector.Add(all...)
		}
	}
	return selector
}

// resourcesEqual reports whether a and b contain the same resources with the same amounts.
func resourcesEqual(a, b corev1.ResourceList) bool {
	return maps.EqualFunc(a, b, func(x, y resource.Quantity) bool { return x.Cmp(y) == 0 })
}

// taintsEqual reports whether a and b contain the same taints in the same order. When they were added does not count.
func taintsEqual(a, b []corev1.Taint) bool {
	return slices.EqualFunc(a, b, func(x, y corev1.Taint) bool {
		return x.Key == y.Key && x.Value == y.Value && x.Effect == y.Effect
	})
}
