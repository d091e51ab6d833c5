package statefulset

import (
	"context"
	"maps"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"hyperkube/components/controllers/internal/controltest"
	"hyperkube/internal/api/core/pod"
)

var webLabels = map[string]string{"app": "db"}

func testSet(n int32) *appsv1.StatefulSet {
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db", UID: "set", Generation: 1},
		Spec: appsv1.StatefulSetSpec{
			Replicas:       &n,
			ServiceName:    "db",
			Selector:       &metav1.LabelSelector{MatchLabels: webLabels},
			Template:       corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: webLabels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "v1"}}}},
			UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{
				{ObjectMeta: metav1.ObjectMeta{Name: "data"}},
			},
		},
	}
}

type world struct {
	t *testing.T
	f *controltest.Fixture
	c *Controller
}

func newWorld(t *testing.T, set *appsv1.StatefulSet) *world {
	t.Helper()
	f := controltest.New(t)
	c, err := New(f.Env)
	if err != nil {
		t.Fatal(err)
	}
	f.Add(set)
	return &world{t, f, c}
}

func (w *world) sync() {
	w.t.Helper()
	w.f.Observe(Kind, corev1.SchemeGroupVersion.WithKind("Pod"), appsv1.SchemeGroupVersion.WithKind("ControllerRevision"), corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"))
	if err := controltest.Sync(w.t, w.c.Loop, "ns/db"); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) names() []string { return slices.Sorted(maps.Keys(w.f.Pods("ns"))) }

func (w *world) ready() {
	for _, p := range w.f.Pods("ns") {
		w.f.SetPod(p, corev1.PodRunning, true)
	}
}

func (w *world) set() *appsv1.StatefulSet {
	w.t.Helper()
	s, err := w.f.Kube.AppsV1().StatefulSets("ns").Get(context.Background(), "db", metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) change(f func(*appsv1.StatefulSet)) {
	w.t.Helper()
	s := w.set()
	f(s)
	s.Generation++
	if _, err := w.f.Kube.AppsV1().StatefulSets("ns").Update(context.Background(), s, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) settle() {
	for range 12 {
		w.sync()
		w.ready()
	}
	w.sync()
}

func TestInOrder(t *testing.T) {
	w := newWorld(t, testSet(3))
	w.sync()
	if got := w.names(); !slices.Equal(got, []string{"db-0"}) {
		t.Fatalf("pods %v", got)
	}
	p := w.f.Pods("ns")["db-0"]
	if p.Spec.Hostname != "db-0" || p.Spec.Subdomain != "db" || p.Labels[appsv1.PodIndexLabel] != "0" || p.Labels[appsv1.StatefulSetPodNameLabel] != "db-0" ||
		p.Spec.Volumes[0].PersistentVolumeClaim.ClaimName != "data-db-0" {
		t.Errorf("pod %+v", p)
	}
	w.sync()
	if got := w.names(); len(got) != 1 {
		t.Fatalf("the second did not wait for the first: %v", got)
	}
	w.settle()
	if got := w.names(); !slices.Equal(got, []string{"db-0", "db-1", "db-2"}) {
		t.Fatalf("pods %v", got)
	}
	s := w.set().Status
	if s.Replicas != 3 || s.ReadyReplicas != 3 || s.CurrentReplicas != 3 || s.UpdatedReplicas != 3 || s.CurrentRevision != s.UpdateRevision || s.CurrentRevision == "" {
		t.Errorf("status %+v", s)
	}
	// Scale down in reverse order, one pod at a time. The claims are kept.
	one := int32(1)
	w.change(func(s *appsv1.StatefulSet) { s.Spec.Replicas = &one })
	w.sync()
	if got := w.names(); !slices.Equal(got, []string{"db-0", "db-1"}) {
		t.Errorf("pods %v", got)
	}
	w.settle()
	claims, err := w.f.Kube.CoreV1().PersistentVolumeClaims("ns").List(context.Background(), metav1.ListOptions{})
	if err != nil || len(claims.Items) != 3 || len(w.names()) != 1 {
		t.Errorf("%d claims, pods %v, %v", len(claims.Items), w.names(), err)
	}
}

func TestRollingUpdate(t *testing.T) {
	w := newWorld(t, testSet(3))
	w.settle()
	before := w.set().Status.CurrentRevision
	two := int32(2)
	w.change(func(s *appsv1.StatefulSet) {
		s.Spec.Template.Spec.Containers[0].Image = "v2"
		s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: &two}
	})
	w.sync()
	if got := w.names(); !slices.Equal(got, []string{"db-0", "db-1"}) {
		t.Fatalf("pods %v, want the last one deleted", got)
	}
	w.settle()
	images := func() (out []string) {
		pods := w.f.Pods("ns")
		for _, n := range w.names() {
			out = append(out, pods[n].Spec.Containers[0].Image)
		}
		return out
	}
	if got := images(); !slices.Equal(got, []string{"v1", "v1", "v2"}) {
		t.Errorf("images %v with a partition of 2", got)
	}
	// A deleted pod below the partition is recreated with the old revision.
	if err := w.f.Kube.CoreV1().Pods("ns").Delete(context.Background(), "db-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if got := images(); !slices.Equal(got, []string{"v1", "v1", "v2"}) {
		t.Errorf("images %v", got)
	}
	if s := w.set().Status; s.CurrentRevision != before || s.UpdateRevision == before {
		t.Errorf("status %+v", s)
	}
	zero := int32(0)
	w.change(func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy.RollingUpdate.Partition = &zero })
	for range 8 {
		w.sync()
		if n := len(w.names()); n < 2 {
			t.Fatalf("only %d pods", n)
		}
		w.ready()
	}
	w.settle()
	if got := images(); !slices.Equal(got, []string{"v2", "v2", "v2"}) {
		t.Errorf("images %v", got)
	}
	if s := w.set().Status; s.CurrentRevision != s.UpdateRevision {
		t.Errorf("status %+v", s)
	}
}

func TestParallelAndFailed(t *testing.T) {
	set := testSet(4)
	set.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
	w := newWorld(t, set)
	w.sync()
	if n := len(w.names()); n != 4 {
		t.Fatalf("%d pods after one sync", n)
	}
	w.ready()
	w.f.SetPod(w.f.Pods("ns")["db-1"], corev1.PodFailed, false)
	w.f.Recorded()
	w.sync()
	if e := w.f.Recorded(); !slices.Contains(e, "Normal SuccessfulDelete Delete Pod db-1 in StatefulSet db successful") {
		t.Errorf("events %q", e)
	}
	w.settle()
	if p := w.f.Pods("ns")["db-1"]; p == nil || p.Status.Phase != corev1.PodRunning {
		t.Errorf("pod %+v", p)
	}
}

func TestRolloutOfBrokenPods(t *testing.T) {
	for _, c := range []struct {
		name   string
		policy appsv1.PodManagementPolicyType
		ready  []string // of db-0 to db-3
		want   []string // the remaining pods after one sync
	}{
		{"parallel: unavailable pods are deleted first", appsv1.ParallelPodManagement, []string{"db-3"}, []string{"db-3"}},
		{"parallel: one available pod at a time", appsv1.ParallelPodManagement, []string{"db-0", "db-1", "db-2", "db-3"}, []string{"db-0", "db-1", "db-2"}},
		{"ordered: nothing until the broken pod is repaired", appsv1.OrderedReadyPodManagement, []string{"db-0", "db-1", "db-3"}, []string{"db-0", "db-1", "db-2", "db-3"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			set := testSet(4)
			set.Spec.PodManagementPolicy = c.policy
			w := newWorld(t, set)
			w.settle()
			for name, p := range w.f.Pods("ns") {
				w.f.SetPod(p, corev1.PodRunning, slices.Contains(c.ready, name))
			}
			w.change(func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.Containers[0].Image = "v2" })
			w.sync()
			if got := w.names(); !slices.Equal(got, c.want) {
				t.Errorf("pods %v, want %v", got, c.want)
			}
		})
	}
}

// TestClaimGone: a StatefulSet is synced when a claim is deleted that may block its next pod.
func TestClaimGone(t *testing.T) {
	w := newWorld(t, testSet(1))
	for name, want := range map[string]int{"data-db-0": 1, "data-dbs-0": 0, "other-db-0": 0} {
		w.c.claimGone(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}})
		if got := w.c.Len(); got != want {
			t.Errorf("%s: %d keys", name, got)
		}
		if err := w.c.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRevisionOfOlderVersion adopts a StatefulSet whose revision an older version serialized
// differently.
func TestRevisionOfOlderVersion(t *testing.T) {
	for name, tc := range map[string]struct {
		data string
		same bool
	}{
		"zero timestamp":   {`{"spec":{"template":{"$patch":"replace","metadata":{"creationTimestamp":null,"labels":{"app":"db"}},"spec":{"containers":[{"name":"c","image":"v1","resources":{}}]}}}}`, true},
		"without defaults": {`{"spec":{"template":{"$patch":"replace","metadata":{"labels":{"app":"db"}},"spec":{"containers":[{"name":"c","image":"v1"}]}}}}`, true},
		"another image":    {`{"spec":{"template":{"$patch":"replace","metadata":{"labels":{"app":"db"}},"spec":{"containers":[{"name":"c","image":"v0"}]}}}}`, false},
		"invalid data":     {`{"spec":{"template":{"$patch":"replace","spec":"none"}}}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			set := testSet(0)
			pod.DefaultTemplate(&set.Spec.Template)
			set.Status.CurrentRevision, set.Status.UpdateRevision = "db-old", "db-old"
			w := newWorld(t, set)
			w.f.Add(&appsv1.ControllerRevision{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db-old", UID: "old", Labels: webLabels, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, Kind)}},
				Data:       runtime.RawExtension{Raw: []byte(tc.data)}, Revision: 3,
			})
			w.sync()
			if next := w.set().Status.UpdateRevision; (next == "db-old") != tc.same {
				t.Errorf("the update revision is %s", next)
			}
		})
	}
}
