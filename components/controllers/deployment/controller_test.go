package deployment

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/components/controllers/internal/controltest"
)

var webLabels = map[string]string{"app": "web"}

func deployment(n int32, image string) *appsv1.Deployment {
	deadline, limit := int32(600), int32(2)
	surge, unavailable := intstr.FromString("25%"), intstr.FromString("25%")
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "d", Generation: 1},
		Spec: appsv1.DeploymentSpec{
			Replicas:                &n,
			Selector:                &metav1.LabelSelector{MatchLabels: webLabels},
			Template:                template(image),
			ProgressDeadlineSeconds: &deadline,
			RevisionHistoryLimit:    &limit,
			Strategy: appsv1.DeploymentStrategy{
				Type:          appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &unavailable},
			},
		},
	}
}

func template(image string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: webLabels},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}},
	}
}

// world is a Deployment with its ReplicaSets in a fake API server, without pods. Tests set the
// status of the ReplicaSets themselves.
type world struct {
	t *testing.T
	f *controltest.Fixture
	c *Controller
}

func newWorld(t *testing.T, objs ...runtime.Object) *world {
	t.Helper()
	f := controltest.New(t)
	c, err := New(f.Env)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objs {
		f.Add(o)
	}
	return &world{t: t, f: f, c: c}
}

func (w *world) deployment() *appsv1.Deployment {
	w.t.Helper()
	d, err := w.f.Kube.AppsV1().Deployments("ns").Get(context.Background(), "web", metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

func (w *world) sets() []*appsv1.ReplicaSet {
	w.t.Helper()
	list, err := w.f.Kube.AppsV1().ReplicaSets("ns").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	var out []*appsv1.ReplicaSet
	for i := range list.Items {
		out = append(out, &list.Items[i])
	}
	return out
}

// observe updates the informers from the fake API server.
func (w *world) observe() {
	w.t.Helper()
	apps := w.f.Env.Informers.Apps().V1()
	var sets, ds []any
	for _, rs := range w.sets() {
		sets = append(sets, rs)
	}
	ds = append(ds, w.deployment())
	if err := apps.ReplicaSets().Informer().GetIndexer().Replace(sets, ""); err != nil {
		w.t.Fatal(err)
	}
	if err := apps.Deployments().Informer().GetIndexer().Replace(ds, ""); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) sync() {
	w.t.Helper()
	w.observe()
	if err := controltest.Sync(w.t, w.c.Loop, "ns/web"); err != nil {
		w.t.Fatal(err)
	}
	w.observe()
}

func (w *world) change(f func(d *appsv1.Deployment)) {
	w.t.Helper()
	d := w.deployment()
	f(d)
	d.Generation++
	if _, err := w.f.Kube.AppsV1().Deployments("ns").Update(context.Background(), d, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// run sets the number of pods and of available pods of a ReplicaSet.
func (w *world) run(rs *appsv1.ReplicaSet, pods, available int32) {
	w.t.Helper()
	next := rs.DeepCopy()
	next.Status.Replicas, next.Status.ReadyReplicas, next.Status.AvailableReplicas = pods, available, available
	next.Status.ObservedGeneration = next.Generation
	zero := int32(0)
	next.Status.TerminatingReplicas = &zero
	if _, err := w.f.Kube.AppsV1().ReplicaSets("ns").Update(context.Background(), next, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// fill makes the desired pods of all ReplicaSets available.
func (w *world) fill() {
	w.t.Helper()
	for _, rs := range w.sets() {
		w.run(rs, *rs.Spec.Replicas, *rs.Spec.Replicas)
	}
}

func (w *world) settle() {
	w.t.Helper()
	for range 12 {
		w.sync()
		w.fill()
	}
	w.sync()
}

func (w *world) progressing() appsv1.DeploymentCondition {
	w.t.Helper()
	c := condition(&w.deployment().Status, appsv1.DeploymentProgressing)
	if c == nil {
		w.t.Fatal("no Progressing condition")
	}
	return *c
}

func TestFirstRollout(t *testing.T) {
	w := newWorld(t, deployment(4, "v1"))
	w.sync()
	sets := w.sets()
	if len(sets) != 1 {
		t.Fatalf("%d ReplicaSets", len(sets))
	}
	rs := sets[0]
	hash := control.TemplateHash(&deployment(4, "v1").Spec.Template, nil)
	if rs.Name != "web-"+hash || rs.Labels["pod-template-hash"] != hash || rs.Spec.Selector.MatchLabels["pod-template-hash"] != hash ||
		rs.Spec.Template.Labels["pod-template-hash"] != hash || *rs.Spec.Replicas != 4 {
		t.Errorf("ReplicaSet %+v", rs)
	}
	for k, v := range map[string]string{revisionAnnotation: "1", desiredReplicasAnnotation: "4", maxReplicasAnnotation: "5"} {
		if rs.Annotations[k] != v {
			t.Errorf("annotation %s is %q, want %q", k, rs.Annotations[k], v)
		}
	}
	if got := w.f.Recorded(); len(got) != 1 || got[0] != "Normal ScalingReplicaSet Scaled up replica set "+rs.Name+" from 0 to 4" {
		t.Errorf("events %q", got)
	}
	if c := w.progressing(); c.Reason != newRSCreated && c.Reason != rsUpdated {
		t.Errorf("condition %+v", c)
	}
	w.settle()
	d := w.deployment()
	if c := w.progressing(); c.Reason != newRSAvailable || c.Message != fmt.Sprintf("ReplicaSet %q has successfully progressed.", rs.Name) {
		t.Errorf("condition %+v", c)
	}
	if d.Annotations[revisionAnnotation] != "1" || d.Status.AvailableReplicas != 4 || d.Status.UpdatedReplicas != 4 || d.Status.ObservedGeneration != 1 {
		t.Errorf("deployment %+v", d)
	}
	if c := condition(&d.Status, appsv1.DeploymentAvailable); c == nil || c.Status != corev1.ConditionTrue || c.Reason != minimumAvailable {
		t.Errorf("condition %+v", c)
	}
}

// TestRollingBounds runs updates while pods appear and disappear at random, and checks maxSurge and
// maxUnavailable after every step.
func TestRollingBounds(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	for round := range 15 {
		n := int32(1 + r.IntN(12))
		d := deployment(n, "v1")
		surge, unavailable := intstr.FromInt32(int32(r.IntN(4))), intstr.FromString(fmt.Sprintf("%d%%", r.IntN(101)))
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &unavailable}
		w := newWorld(t, d)
		w.settle()
		w.change(func(d *appsv1.Deployment) { d.Spec.Template = template("v2") })
		most, least := n+maxSurge(w.deployment()), n-maxUnavailable(w.deployment())
		done := false
		for step := 0; step < 400 && !done; step++ {
			w.sync()
			if got := desiredReplicas(w.sets()); got > most {
				t.Fatalf("round %d: %d pods desired, at most %d allowed", round, got, most)
			}
			// The ReplicaSets scale down immediately, available pods last. They scale up, and their
			// pods become available, at a random rate.
			for _, rs := range w.sets() {
				size := *rs.Spec.Replicas
				pods := min(rs.Status.Replicas, size)
				avail := min(rs.Status.AvailableReplicas, pods)
				if pods < size {
					pods += int32(r.IntN(int(size-pods) + 1))
				}
				if avail < pods {
					avail += int32(r.IntN(int(pods-avail) + 1))
				}
				w.run(rs, pods, avail)
			}
			if got := availableReplicas(w.sets()); got < least {
				t.Fatalf("round %d: %d pods available, at least %d required", round, got, least)
			}
			done = complete(w.deployment(), &w.deployment().Status) && w.progressing().Reason == newRSAvailable
		}
		if !done {
			t.Fatalf("round %d: the rollout does not complete: %+v", round, w.deployment().Status)
		}
	}
}

func TestRollbackAndHistory(t *testing.T) {
	w := newWorld(t, deployment(2, "v1"))
	w.settle()
	for _, v := range []string{"v2", "v3", "v4"} {
		w.change(func(d *appsv1.Deployment) { d.Spec.Template = template(v) })
		w.settle()
	}
	if n := len(w.sets()); n != 3 {
		t.Errorf("%d ReplicaSets, want the new one and two old", n)
	}
	w.change(func(d *appsv1.Deployment) { d.Spec.Template = template("v3") })
	w.settle()
	for _, rs := range w.sets() {
		if rs.Spec.Template.Spec.Containers[0].Image == "v3" {
			if rs.Annotations[revisionAnnotation] != "5" || rs.Annotations[revisionHistoryAnnotation] != "3" || *rs.Spec.Replicas != 2 {
				t.Errorf("annotations %v, %d replicas", rs.Annotations, *rs.Spec.Replicas)
			}
		}
	}
	if got := w.deployment().Annotations[revisionAnnotation]; got != "5" {
		t.Errorf("revision %s", got)
	}
}

func TestProportionalScaling(t *testing.T) {
	w := newWorld(t, deployment(10, "v1"))
	w.settle()
	surge, unavailable := intstr.FromInt32(3), intstr.FromInt32(2)
	w.change(func(d *appsv1.Deployment) {
		d.Spec.Template = template("v2")
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &unavailable}
	})
	w.sync() // the new ReplicaSet: 3
	w.sync() // the old ReplicaSet: 8
	sizes := map[string]int32{}
	for _, rs := range w.sets() {
		sizes[rs.Spec.Template.Spec.Containers[0].Image] = *rs.Spec.Replicas
	}
	if sizes["v1"] != 8 || sizes["v2"] < 3 {
		t.Fatalf("sizes %v", sizes)
	}
	w.sync()
	fifteen := int32(15)
	w.change(func(d *appsv1.Deployment) { d.Spec.Replicas = &fifteen })
	w.sync()
	total := int32(0)
	for _, rs := range w.sets() {
		total += *rs.Spec.Replicas
		if rs.Annotations[desiredReplicasAnnotation] != "15" || rs.Annotations[maxReplicasAnnotation] != "18" {
			t.Errorf("annotations %v", rs.Annotations)
		}
		if rs.Spec.Template.Spec.Containers[0].Image == "v1" && *rs.Spec.Replicas != 11 {
			t.Errorf("the old ReplicaSet has %d, want 11", *rs.Spec.Replicas)
		}
	}
	if total != 18 {
		t.Errorf("%d in all, want 18", total)
	}
}

func TestPause(t *testing.T) {
	w := newWorld(t, deployment(2, "v1"))
	w.settle()
	w.change(func(d *appsv1.Deployment) {
		d.Spec.Paused = true
		d.Spec.Template = template("v2")
	})
	w.settle()
	if n := len(w.sets()); n != 1 {
		t.Errorf("%d ReplicaSets while paused", n)
	}
	if c := w.progressing(); c.Status != corev1.ConditionUnknown || c.Reason != pausedReason {
		t.Errorf("condition %+v", c)
	}
	five := int32(5)
	w.change(func(d *appsv1.Deployment) { d.Spec.Replicas = &five })
	w.settle()
	if got := desiredReplicas(w.sets()); got != 5 {
		t.Errorf("scaled to %d while paused, want 5", got)
	}
	w.change(func(d *appsv1.Deployment) { d.Spec.Paused = false })
	w.settle()
	if c := w.progressing(); c.Reason != newRSAvailable {
		t.Errorf("condition %+v", c)
	}
	if n := len(w.sets()); n != 2 {
		t.Errorf("%d ReplicaSets after resuming", n)
	}
}

func TestDeadline(t *testing.T) {
	w := newWorld(t, deployment(2, "v1"))
	w.settle()
	w.change(func(d *appsv1.Deployment) { d.Spec.Template = template("bad") })
	for range 10 {
		w.sync()
	}
	if c := w.progressing(); c.Status != corev1.ConditionTrue {
		t.Errorf("condition %+v", c)
	}
	w.f.Clock.SetTime(controltest.Now.Add(11 * time.Minute))
	w.sync()
	c := w.progressing()
	if c.Status != corev1.ConditionFalse || c.Reason != timedOut || !strings.HasSuffix(c.Message, "has timed out progressing.") {
		t.Errorf("condition %+v", c)
	}
}

func TestRecreate(t *testing.T) {
	d := deployment(3, "v1")
	d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	w := newWorld(t, d)
	w.settle()
	w.change(func(d *appsv1.Deployment) { d.Spec.Template = template("v2") })
	w.sync()
	sets := w.sets()
	if len(sets) != 1 || *sets[0].Spec.Replicas != 0 {
		t.Fatalf("the old ReplicaSet must be scaled down first: %v", sets)
	}
	w.sync()
	if len(w.sets()) != 1 {
		t.Fatal("new ReplicaSet while old pods run")
	}
	// The status of the ReplicaSet shows no pods, but one is still running.
	w.fill()
	p := controltest.Pod("ns", "old", webLabels, corev1.PodRunning)
	p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(sets[0], appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
	w.f.Cache(p)
	w.sync()
	if len(w.sets()) != 1 {
		t.Fatal("new ReplicaSet while an old pod runs")
	}
	if err := w.f.Env.Informers.Core().V1().Pods().Informer().GetIndexer().Delete(p); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if got := desiredReplicas(w.sets()); len(w.sets()) != 2 || got != 3 {
		t.Errorf("%d ReplicaSets, %d pods", len(w.sets()), got)
	}
}

func TestCollision(t *testing.T) {
	d := deployment(1, "v1")
	hash := control.TemplateHash(&d.Spec.Template, nil)
	zero := int32(0)
	other := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-" + hash, UID: "x"},
		Spec:       appsv1.ReplicaSetSpec{Replicas: &zero, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}},
	}
	w := newWorld(t, d, other)
	if err := controltest.Sync(t, w.c.Loop, "ns/web"); err == nil {
		t.Fatal("no error")
	}
	if c := w.deployment().Status.CollisionCount; c == nil || *c != 1 {
		t.Fatalf("collision count %v", c)
	}
	w.sync()
	one := int32(1)
	want := "web-" + control.TemplateHash(&d.Spec.Template, &one)
	if _, err := w.f.Kube.AppsV1().ReplicaSets("ns").Get(context.Background(), want, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// TestSetName: the name of a ReplicaSet is valid even if the Deployment's name leaves no space for
// the hash.
func TestSetName(t *testing.T) {
	long := strings.Repeat("d", 253)
	for _, tc := range []struct{ deployment, want string }{
		{"web", "web-5d4f8c7b9"}, {long[:243], long[:243] + "-5d4f8c7b9"}, {long, long[:243] + "-5d4f8c7b9"},
	} {
		if got := setName(tc.deployment, "5d4f8c7b9"); got != tc.want {
			t.Errorf("%d characters: %q", len(tc.deployment), got)
		}
	}
	d := deployment(1, "one")
	d.Name = long
	f := controltest.New(t, d)
	c, err := New(f.Env)
	if err != nil {
		t.Fatal(err)
	}
	if err := controltest.Sync(t, c.Loop, "ns/"+long); err != nil {
		t.Fatal(err)
	}
	list, err := f.Kube.AppsV1().ReplicaSets("ns").List(context.Background(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || len(list.Items[0].Name) > 253 {
		t.Errorf("%+v, %v", list.Items, err)
	}
}

// TestInvalidAnnotations: an annotation of a ReplicaSet that is not a valid number of pods is ignored.
func TestInvalidAnnotations(t *testing.T) {
	for note, want := range map[string]bool{"": false, "many": false, "-1": false, "2147483648": false, "0": true, "7": true} {
		rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{desiredReplicasAnnotation: note}}}
		if _, ok := intAnnotation(rs, desiredReplicasAnnotation); ok != want {
			t.Errorf("%q: %v", note, ok)
		}
	}
}
