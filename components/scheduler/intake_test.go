package scheduler

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
	"hyperkube/internal/client"
)

func TestEvents(t *testing.T) {
	ending := func(p *corev1.Pod) { now := metav1.Now(); p.DeletionTimestamp = &now }
	for _, c := range []struct {
		name     string
		old, now *corev1.Pod
		want     framework.Event
	}{
		{"nothing", pod("p", requests("2")), pod("p", requests("2"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }), 0},
		{"resized down", pod("p", requests("2")), pod("p", requests("1")), framework.PodScaledDown},
		{"resized up", pod("p", requests("1")), pod("p", requests("2")), 0},
		{"labelled", pod("p"), pod("p", labelled(map[string]string{"a": "b"})), framework.PodLabelsChanged},
		{"terminating", pod("p"), pod("p", ending), framework.PodLabelsChanged},
	} {
		if got := podEvent(state.NewPod(c.old), state.NewPod(c.now)); got != c.want {
			t.Errorf("%s: %b, want %b", c.name, got, c.want)
		}
	}
	for _, c := range []struct {
		name   string
		change func(*corev1.Node)
		want   framework.Event
	}{
		{"heartbeat", func(n *corev1.Node) { n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady}} }, 0},
		{"untainted", func(n *corev1.Node) { n.Spec.Taints = nil }, framework.NodeTaintsChanged},
		{"cordoned", func(n *corev1.Node) { n.Spec.Unschedulable = true }, framework.NodeTaintsChanged},
		{"labelled", zone("z"), framework.NodeLabelsChanged},
		{"more declared features", func(n *corev1.Node) { n.Status.DeclaredFeatures = []string{"f"} }, framework.NodeFeaturesChanged},
		{"more allocatable resources", func(n *corev1.Node) { n.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse("8") }, framework.NodeAllocatableChanged},
	} {
		s := state.New()
		s.SetNode(node("a", tainted))
		if got := nodeEvent(s.Node("a"), node("a", tainted, c.change)); got != c.want {
			t.Errorf("%s: %b, want %b", c.name, got, c.want)
		}
	}
	if nodeEvent(nil, node("a")) != framework.NodeAdded {
		t.Error("a new node is no event")
	}
	// An unschedulable pod is retried after it was changed.
	for name, change := range map[string]func(*corev1.Pod){
		"tolerates": func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: "Exists"}} },
		"resized":   requests("1"),
		"labelled":  labelled(map[string]string{"a": "b"}),
	} {
		if !schedulingChanged(pod("p", requests("2")), pod("p", requests("2"), change)) {
			t.Errorf("%s: not retried", name)
		}
	}
	if schedulingChanged(pod("p"), pod("p", func(p *corev1.Pod) { p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled}} })) {
		t.Error("retried because of the scheduler's own write")
	}
}

// newIdle returns a scheduler that does not run: the test processes its messages.
func newIdle(t *testing.T, objects ...runtime.Object) *Scheduler {
	t.Helper()
	kube := fake.NewClientset(objects...)
	s, err := New(Config{Clients: &client.Clients{Kube: kube, Informers: informers.NewSharedInformerFactory(kube, 0)}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestRecreatedPod: a pod that was replaced by another pod of the same name between two lists is
// removed from its node.
func TestRecreatedPod(t *testing.T) {
	s := newIdle(t)
	h := handler(func(pod *corev1.Pod, gone bool) { s.inbox.put(message{pod: pod, gone: gone}) })
	s.inbox.put(message{node: node("a")})
	on := func(p *corev1.Pod) { p.Spec.NodeName = "a" }
	h.OnAdd(pod("p", requests("3"), on), false)
	waits := pod("w", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} })
	h.OnAdd(waits, false)
	s.processInbox()
	again := func(p *corev1.Pod) { p.UID = "again-" + p.UID }
	h.OnUpdate(pod("p", requests("3"), on), pod("p", requests("1"), on, again))
	h.OnUpdate(waits, pod("w", again))
	s.processInbox()
	if n := s.state.Node("a"); len(n.Pods) != 1 || n.Requested.CPU != 1000 {
		t.Errorf("%d pods request %d", len(n.Pods), n.Requested.CPU)
	}
	if len(s.queue.items) != 1 || s.queue.items["again-w"] == nil {
		t.Errorf("the queue has %v", s.queue.items)
	}
}

// TestAssumedPodDeleted: a pod that is deleted while it is being bound is removed from its node, and is
// not retried after its binding failed.
func TestAssumedPodDeleted(t *testing.T) {
	s := newIdle(t)
	s.inbox.put(message{node: node("a")})
	s.inbox.put(message{pod: pod("p", requests("3"))})
	s.processInbox()
	it := s.queue.pop(time.Now())
	if d := s.attempt(t.Context(), it); d.node != "a" || len(s.state.Node("a").Pods) != 1 {
		t.Fatalf("%+v", d)
	}
	now := metav1.Now()
	s.inbox.put(message{pod: pod("p", requests("3"), func(p *corev1.Pod) { p.DeletionTimestamp, p.Finalizers = &now, []string{"f"} })})
	s.inbox.put(message{failed: it})
	s.processInbox()
	if len(s.state.Node("a").Pods) != 0 || len(s.assumed) != 0 || len(s.queue.items) != 0 {
		t.Errorf("%d pods, assumed %v, in the queue %v", len(s.state.Node("a").Pods), s.assumed, s.queue.items)
	}
}

// TestErrorsBackOff: after an error that no event can resolve, the pod is retried with back-off.
func TestErrorsBackOff(t *testing.T) {
	s := newIdle(t)
	s.inbox.put(message{node: node("a")})
	s.inbox.put(message{pod: pod("p", func(p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: "k", WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Nonsense"}}},
		}}
	})})
	s.processInbox()
	it := s.queue.pop(time.Now())
	if d := s.attempt(t.Context(), it); !d.failed || it.subQueue != backoffQ {
		t.Errorf("error %v, retried at %v", d.failed, it.subQueue)
	}
}

// TestDefaultSelector: owners of each kind select their pods for default spreading.
func TestDefaultSelector(t *testing.T) {
	s := newIdle(t)
	factory := s.cfg.Clients.Informers
	meta := metav1.ObjectMeta{Namespace: "default", Name: "o", UID: "o"}
	expressions := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: metav1.LabelSelectorOpIn, Values: []string{"b"}}}}
	for _, add := range []error{
		factory.Core().V1().ReplicationControllers().Informer().GetIndexer().Add(&corev1.ReplicationController{ObjectMeta: meta, Spec: corev1.ReplicationControllerSpec{Selector: map[string]string{"a": "b"}}}),
		factory.Apps().V1().ReplicaSets().Informer().GetIndexer().Add(&appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Selector: expressions}}),
		factory.Apps().V1().StatefulSets().Informer().GetIndexer().Add(&appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Selector: expressions}}),
		factory.Core().V1().Services().Informer().GetIndexer().Add(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s"}, Spec: corev1.ServiceSpec{Selector: map[string]string{"s": "t"}}}),
	} {
		if add != nil {
			t.Fatal(add)
		}
	}
	for _, tc := range []struct{ version, kind, want string }{
		{"v1", "ReplicationController", "a=b,s=t"}, {"apps/v1", "ReplicaSet", "a in (b),s=t"}, {"apps/v1", "StatefulSet", "a in (b),s=t"},
		{"batch/v1", "Job", "s=t"},
	} {
		p := pod("p", labelled(map[string]string{"s": "t"}), func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: tc.version, Kind: tc.kind, Name: "o", UID: "o", Controller: ptr.To(true)}}
		})
		if got := s.listers.spreadSelector(p).String(); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.kind, got, tc.want)
		}
	}
	if got := s.listers.spreadSelector(pod("alone")); !got.Empty() {
		t.Errorf("alone: %s", got)
	}
}
