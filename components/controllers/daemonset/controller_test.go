package daemonset

import (
	"context"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"hyperkube/components/controllers/internal/controltest"
)

var dLabels = map[string]string{"app": "agent"}

func testSet() *appsv1.DaemonSet {
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "agent", UID: "ds", Generation: 1},
		Spec: appsv1.DaemonSetSpec{
			Selector:       &metav1.LabelSelector{MatchLabels: dLabels},
			Template:       corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: dLabels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "v1"}}}},
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType},
		},
	}
}

type world struct {
	t *testing.T
	f *controltest.Fixture
	c *Controller
}

func newWorld(t *testing.T, ds *appsv1.DaemonSet, nodes int) *world {
	t.Helper()
	f := controltest.New(t)
	c, err := New(f.Env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	f.Add(ds)
	for i := range nodes {
		f.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}})
	}
	return &world{t, f, c}
}

// sync runs one sync with an up-to-date cache.
func (w *world) sync() {
	w.t.Helper()
	w.f.Observe(Kind, corev1.SchemeGroupVersion.WithKind("Pod"), appsv1.SchemeGroupVersion.WithKind("ControllerRevision"), corev1.SchemeGroupVersion.WithKind("Node"))
	w.c.expect.Forget("ns/agent")
	if err := controltest.Sync(w.t, w.c.Loop, "ns/agent"); err != nil {
		w.t.Fatal(err)
	}
}

// run binds all pods to the nodes that their affinity selects, and makes them ready.
func (w *world) run() {
	w.t.Helper()
	for _, p := range w.f.Pods("ns") {
		q := p.DeepCopy()
		q.Spec.NodeName = nodeOf(p)
		w.f.SetPod(q, corev1.PodRunning, true)
	}
}

func (w *world) images() map[string]int {
	out := map[string]int{}
	for _, p := range w.f.Pods("ns") {
		out[p.Spec.Containers[0].Image]++
	}
	return out
}

func (w *world) status() appsv1.DaemonSetStatus {
	w.t.Helper()
	ds, err := w.f.Kube.AppsV1().DaemonSets("ns").Get(context.Background(), "agent", metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return ds.Status
}

func TestPlacement(t *testing.T) {
	ds := testSet()
	ds.Spec.Template.Spec.NodeSelector = map[string]string{"disk": "ssd"}
	w := newWorld(t, ds, 1)
	ssd := func(name string, taints ...corev1.Taint) {
		w.f.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"disk": "ssd"}}, Spec: corev1.NodeSpec{Taints: taints}})
	}
	ssd("fits")
	ssd("tainted", corev1.Taint{Key: "mine", Effect: corev1.TaintEffectNoSchedule})
	ssd("ill", corev1.Taint{Key: corev1.TaintNodeDiskPressure, Effect: corev1.TaintEffectNoSchedule}, corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute})
	w.sync()
	on := map[string]bool{}
	for _, p := range w.f.Pods("ns") {
		on[nodeOf(p)] = true
		if p.Labels[appsv1.ControllerRevisionHashLabelKey] == "" {
			t.Errorf("labels %v", p.Labels)
		}
	}
	if len(on) != 2 || !on["fits"] || !on["ill"] {
		t.Errorf("pods on %v", on)
	}
	w.run()
	w.sync()
	if s := w.status(); s.DesiredNumberScheduled != 2 || s.CurrentNumberScheduled != 2 || s.NumberReady != 2 || s.UpdatedNumberScheduled != 2 || s.NumberAvailable != 2 || s.ObservedGeneration != 1 {
		t.Errorf("status %+v", s)
	}
	// The node loses its label, so the pod is deleted.
	if _, err := w.f.Kube.CoreV1().Nodes().Update(context.Background(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "fits"}}, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.sync()
	if n := len(w.f.Pods("ns")); n != 1 {
		t.Errorf("%d pods left", n)
	}
}

func TestFailedPod(t *testing.T) {
	w := newWorld(t, testSet(), 1)
	w.sync()
	w.run()
	for name, p := range w.f.Pods("ns") {
		w.f.SetPod(p, corev1.PodFailed, false)
		w.f.Recorded()
		w.sync()
		if e := w.f.Recorded(); len(e) == 0 || e[0] != "Warning FailedDaemonPod Found failed daemon pod ns/"+name+" on node n0, will try to kill it" {
			t.Errorf("events %q", e)
		}
	}
	w.sync()
	for _, p := range w.f.Pods("ns") {
		w.f.SetPod(p, corev1.PodFailed, false)
	}
	w.sync()
	if n := len(w.f.Pods("ns")); n != 1 {
		t.Errorf("a pod that fails immediately is replaced without back-off: %d pods", n)
	}
}

// TestRollingUpdateElsewhere: nodes that should not run a pod do not block the update.
func TestRollingUpdateElsewhere(t *testing.T) {
	w := newWorld(t, testSet(), 2)
	for _, name := range []string{"t0", "t1"} {
		w.f.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "control-plane", Effect: corev1.TaintEffectNoSchedule}}}})
	}
	w.sync()
	w.run()
	next := testSet()
	next.Spec.Template.Spec.Containers[0].Image = "v2"
	next.Generation = 2
	if _, err := w.f.Kube.AppsV1().DaemonSets("ns").Update(context.Background(), next, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		w.sync()
		w.run()
	}
	if got := w.images(); got["v2"] != 2 || got["v1"] != 0 {
		t.Errorf("images %v", got)
	}
}

// TestExcess: which pods of a node are excess during a surge.
func TestExcess(t *testing.T) {
	ds := testSet()
	surge := intstr.FromInt32(1)
	ds.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxSurge: &surge}
	w := newWorld(t, ds, 1)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n0"}}
	on := func(name, hash string, phase corev1.PodPhase) *corev1.Pod {
		return controltest.Pod("ns", name, map[string]string{appsv1.ControllerRevisionHashLabelKey: hash}, phase)
	}
	for _, tc := range []struct {
		name string
		on   []*corev1.Pod
		want string
	}{
		{"old ready, new not ready", []*corev1.Pod{on("a", "old", corev1.PodRunning), on("b", "new", corev1.PodPending)}, "[] []"},
		{"old not ready", []*corev1.Pod{on("a", "old", corev1.PodPending), on("b", "new", corev1.PodPending)}, "[] [a]"},
		{"new ready", []*corev1.Pod{on("a", "old", corev1.PodRunning), on("b", "new", corev1.PodRunning)}, "[] [a]"},
		{"two of each", []*corev1.Pod{on("a", "old", corev1.PodRunning), on("b", "old", corev1.PodRunning), on("c", "new", corev1.PodPending), on("d", "new", corev1.PodPending)}, "[] [b d]"},
		{"one failed", []*corev1.Pod{on("a", "new", corev1.PodFailed)}, "[n0] [a]"},
		{"one failed during its back-off, one ready", []*corev1.Pod{on("a", "new", corev1.PodFailed), on("b", "new", corev1.PodRunning)}, "[] []"},
	} {
		var p plan
		w.c.planNode(ds, node, tc.on, fit{start: true, stay: true}, "new", &p)
		names := []string{}
		for _, pod := range p.delete {
			names = append(names, pod.Name)
		}
		if got := fmt.Sprint(p.create, " ", names); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
	// Without surge, a failed new pod does not replace an old pod that is running.
	var p plan
	w.c.planNode(testSet(), node, []*corev1.Pod{on("a", "new", corev1.PodFailed), on("b", "new", corev1.PodRunning)}, fit{start: true, stay: true}, "new", &p)
	if len(p.create)+len(p.delete) > 0 {
		t.Errorf("%+v", p)
	}
	// The failures on a node are dropped with the node.
	w.c.forgetFailures(func(p backoffKey) bool { return p.node == "n0" })
	if len(w.c.failed) > 0 {
		t.Errorf("failures %v", w.c.failed)
	}
}

func TestRollingUpdate(t *testing.T) {
	for _, surge := range []int32{0, 2} {
		t.Run(fmt.Sprint("surge ", surge), func(t *testing.T) {
			ds := testSet()
			s, u := intstr.FromInt32(surge), intstr.FromInt32(2)
			if surge > 0 {
				u = intstr.FromInt32(0)
			}
			ds.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxSurge: &s, MaxUnavailable: &u}
			w := newWorld(t, ds, 7)
			w.sync()
			w.run()
			w.sync()
			next := ds.DeepCopy()
			next.Spec.Template.Spec.Containers[0].Image = "v2"
			next.Generation = 2
			if _, err := w.f.Kube.AppsV1().DaemonSets("ns").Update(context.Background(), next, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			for range 20 {
				w.sync()
				n := 0
				for _, p := range w.f.Pods("ns") {
					if p.Status.Phase == corev1.PodRunning {
						n++
					}
				}
				if surge == 0 && n < 5 || surge > 0 && n < 7 || len(w.f.Pods("ns")) > 7+int(surge) {
					t.Fatalf("%d of %d run", n, len(w.f.Pods("ns")))
				}
				w.run()
			}
			if got := w.images(); got["v2"] != 7 || got["v1"] != 0 {
				t.Errorf("images %v", got)
			}
			if s := w.status(); s.UpdatedNumberScheduled != 7 || s.NumberUnavailable != 0 {
				t.Errorf("status %+v", s)
			}
		})
	}
}

// TestRevisionOfOlderServer adopts pods of a DaemonSet whose ControllerRevision was serialized
// differently by an older API server, and still rolls out the next template.
func TestRevisionOfOlderServer(t *testing.T) {
	ds := testSet()
	ds.Annotations = map[string]string{appsv1.DeprecatedTemplateGeneration: "4"}
	w := newWorld(t, ds, 1)
	w.f.Add(&appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "agent-old", UID: "old", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(ds, Kind)},
			Labels: map[string]string{"app": "agent", appsv1.ControllerRevisionHashLabelKey: "old"}},
		Data:     runtime.RawExtension{Raw: []byte(`{"spec":{"template":{"$patch":"replace","metadata":{"creationTimestamp":null,"labels":{"app":"agent"}},"spec":{"containers":[{"name":"c","image":"v1","resources":{}}]}}}}`)},
		Revision: 4,
	})
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "agent-x", UID: "x", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(ds, Kind)},
			Labels: map[string]string{"app": "agent", appsv1.ControllerRevisionHashLabelKey: "old", "pod-template-generation": "4"}},
		Spec: corev1.PodSpec{NodeName: "n0", Containers: []corev1.Container{{Name: "c", Image: "v1"}}},
	}
	w.f.Add(p)
	w.f.SetPod(p, corev1.PodRunning, true)
	for range 2 {
		w.sync()
	}
	if w.f.Pods("ns")["agent-x"] == nil {
		t.Fatal("the pod was replaced although its template did not change")
	}
	live, err := w.f.Kube.AppsV1().DaemonSets("ns").Get(context.Background(), "agent", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if live.Status.UpdatedNumberScheduled != 1 {
		t.Errorf("status %+v", live.Status)
	}
	live.Generation++
	live.Annotations[appsv1.DeprecatedTemplateGeneration] = "5"
	live.Spec.Template.Spec.Containers[0].Image = "v2"
	if _, err := w.f.Kube.AppsV1().DaemonSets("ns").Update(context.Background(), live, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		w.sync()
	}
	if w.f.Pods("ns")["agent-x"] != nil {
		t.Error("the pod with the former template still exists")
	}
}
