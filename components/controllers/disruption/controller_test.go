package disruption

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"hyperkube/components/controllers/internal/controltest"
)

// fakeScales contains sizes by object name; other objects have no scale.
type fakeScales map[string]int32

func (s fakeScales) Scale(_ context.Context, _ schema.GroupVersionKind, _, name string) (*autoscalingv1.Scale, error) {
	n, ok := s[name]
	if !ok {
		return nil, errors.New("things.example.com does not implement the scale subresource")
	}
	return &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{UID: types.UID("uid-" + name)}, Spec: autoscalingv1.ScaleSpec{Replicas: n}}, nil
}

var web = map[string]string{"app": "web"}

func budget(change func(*policyv1.PodDisruptionBudget)) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b", Generation: 3},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: web}},
	}
	change(b)
	return b
}

func min(v intstr.IntOrString) func(*policyv1.PodDisruptionBudget) {
	return func(b *policyv1.PodDisruptionBudget) { b.Spec.MinAvailable = &v }
}

func most(v intstr.IntOrString) func(*policyv1.PodDisruptionBudget) {
	return func(b *policyv1.PodDisruptionBudget) { b.Spec.MaxUnavailable = &v }
}

// owned returns ready pods with an owner.
func owned(version, kind, owner string, names ...string) []runtime.Object {
	var out []runtime.Object
	for _, name := range names {
		p := controltest.Pod("ns", name, web, corev1.PodRunning)
		if owner != "" {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: version, Kind: kind, Name: owner, UID: types.UID("uid-" + owner), Controller: ptr.To(true)}}
		}
		out = append(out, p)
	}
	return out
}

func replicaSet(name string, n int32, deployment string) runtime.Object {
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}, Spec: appsv1.ReplicaSetSpec{Replicas: &n}}
	if deployment != "" {
		rs.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: deployment, UID: types.UID("uid-" + deployment), Controller: ptr.To(true)}}
	}
	return rs
}

func deployment(name string, n int32) runtime.Object {
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}, Spec: appsv1.DeploymentSpec{Replicas: &n}}
}

func TestStatus(t *testing.T) {
	type status struct{ allowed, healthy, desired, expected int32 }
	unready := owned("", "", "", "u")[0].(*corev1.Pod)
	unready.Status.Conditions[0].Status = corev1.ConditionFalse
	deleting := owned("", "", "", "d")[0].(*corev1.Pod)
	deleting.DeletionTimestamp = &metav1.Time{Time: controltest.Now}
	deleting.Finalizers = []string{"x"}
	for _, tc := range []struct {
		name   string
		budget *policyv1.PodDisruptionBudget
		objs   []runtime.Object
		want   status
		reason string
		event  string
	}{
		{"no pods", budget(min(intstr.FromInt32(0))), nil, status{0, 0, 0, 0}, policyv1.InsufficientPodsReason, "Normal NoPods No matching pods found"},
		{"minAvailable, pods without controller", budget(min(intstr.FromInt32(1))), owned("", "", "", "a", "b"), status{1, 2, 1, 2}, policyv1.SufficientPodsReason, ""},
		{"minAvailable reached", budget(min(intstr.FromInt32(2))), owned("", "", "", "a", "b"), status{0, 2, 2, 2}, policyv1.InsufficientPodsReason, ""},
		{"unready and deleting pods", budget(min(intstr.FromInt32(1))), append(owned("", "", "", "a", "b"), unready, deleting), status{1, 2, 1, 4}, policyv1.SufficientPodsReason, ""},
		{"maxUnavailable of a deployment", budget(most(intstr.FromInt32(1))), append(owned("apps/v1", "ReplicaSet", "rs", "a", "b", "c"), replicaSet("rs", 9, "d"), deployment("d", 3)), status{1, 3, 2, 3}, policyv1.SufficientPodsReason, ""},
		{"percentage of a replica set", budget(min(intstr.FromString("50%"))), append(owned("apps/v1", "ReplicaSet", "rs", "a", "b"), replicaSet("rs", 5, "")), status{0, 2, 3, 5}, policyv1.InsufficientPodsReason, ""},
		{"two replica sets of one deployment", budget(most(intstr.FromString("34%"))), append(append(owned("apps/v1", "ReplicaSet", "r1", "a"), owned("apps/v1", "ReplicaSet", "r2", "b")...),
			replicaSet("r1", 1, "d"), replicaSet("r2", 1, "d"), deployment("d", 2)), status{1, 2, 1, 2}, policyv1.SufficientPodsReason, ""},
		{"a custom resource", budget(most(intstr.FromInt32(1))), owned("example.com/v1", "Thing", "t", "a", "b"), status{1, 2, 1, 2}, policyv1.SufficientPodsReason, ""},
		{"pods without controller", budget(most(intstr.FromInt32(1))), owned("", "", "", "a"), status{0, 1, 0, 0}, policyv1.InsufficientPodsReason, "Warning UnmanagedPods"},
		{"no scale", budget(most(intstr.FromInt32(1))), owned("batch/v1", "Job", "j", "a"), status{}, policyv1.SyncFailedReason, "Warning CalculateExpectedPodCountFailed Failed to calculate the number of expected pods: things.example.com does not implement the scale subresource"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := controltest.New(t, append(tc.objs, tc.budget)...)
			c, err := New(f.Env, fakeScales{"t": 2})
			if err != nil {
				t.Fatal(err)
			}
			failed := tc.reason == policyv1.SyncFailedReason
			if err := controltest.Sync(t, c.Loop, "ns/b"); (err != nil) != failed {
				t.Fatal(err)
			}
			b := read(t, f)
			if got := (status{b.Status.DisruptionsAllowed, b.Status.CurrentHealthy, b.Status.DesiredHealthy, b.Status.ExpectedPods}); got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
			cond := meta.FindStatusCondition(b.Status.Conditions, policyv1.DisruptionAllowedCondition)
			if cond == nil || cond.Reason != tc.reason || (cond.Status == metav1.ConditionTrue) != (tc.want.allowed > 0) {
				t.Errorf("condition %+v", cond)
			}
			if want := int64(3); !failed && (b.Status.ObservedGeneration != want || cond.ObservedGeneration != want) {
				t.Errorf("observed %d, %d", b.Status.ObservedGeneration, cond.ObservedGeneration)
			}
			if events := f.Recorded(); (len(events) > 0) != (tc.event != "") || len(events) > 0 && !strings.HasPrefix(events[0], tc.event) {
				t.Errorf("events %q", events)
			}
			f.Writes()
			f.Cache(b)
			if err := controltest.Sync(t, c.Loop, "ns/b"); (err != nil) != failed {
				t.Fatal(err)
			}
			if w := f.Writes(); len(w) != 0 {
				t.Errorf("repeated writes: %v", w)
			}
		})
	}
}

func read(t *testing.T, f *controltest.Fixture) *policyv1.PodDisruptionBudget {
	t.Helper()
	b, err := f.Kube.PolicyV1().PodDisruptionBudgets("ns").Get(t.Context(), "b", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestEvicted checks how disruptedPods entries from evictions are updated.
func TestEvicted(t *testing.T) {
	b := budget(min(intstr.FromInt32(1)))
	at := metav1.NewTime(controltest.Now)
	b.Status.DisruptedPods = map[string]metav1.Time{"a": at, "gone": at, "late": metav1.NewTime(controltest.Now.Add(-deletionTimeout - time.Second))}
	f := controltest.New(t, append(owned("", "", "", "a", "b", "late"), b)...)
	c, err := New(f.Env, fakeScales{})
	if err != nil {
		t.Fatal(err)
	}
	if err := controltest.Sync(t, c.Loop, "ns/b"); err != nil {
		t.Fatal(err)
	}
	got := read(t, f).Status
	if _, ok := got.DisruptedPods["a"]; len(got.DisruptedPods) != 1 || !ok || got.CurrentHealthy != 2 || got.DisruptionsAllowed != 1 {
		t.Errorf("%+v", got)
	}
	if events := f.Recorded(); len(events) != 1 || events[0] != "Warning NotDeleted Pod was expected by PDB ns/b to be deleted but it wasn't" {
		t.Errorf("events %q", events)
	}
	f.Cache(read(t, f))
	f.Clock.SetTime(controltest.Now.Add(deletionTimeout + time.Second))
	if err := controltest.Sync(t, c.Loop, "ns/b"); err != nil {
		t.Fatal(err)
	}
	if got := read(t, f).Status; len(got.DisruptedPods) != 0 || got.CurrentHealthy != 3 {
		t.Errorf("after the timeout: %+v", got)
	}
}

func TestStaleCondition(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		age          time.Duration
		want         corev1.ConditionStatus
	}{
		{"recent", "EvictionByEvictionAPI", time.Minute, corev1.ConditionTrue},
		{"stale", "EvictionByEvictionAPI", 3 * time.Minute, corev1.ConditionFalse},
		{"set by the kubelet", corev1.PodReasonTerminationByKubelet, time.Hour, corev1.ConditionTrue},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := controltest.Pod("ns", "a", web, corev1.PodRunning)
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: tc.reason,
				LastTransitionTime: metav1.NewTime(controltest.Now.Add(-tc.age))})
			f := controltest.New(t, p)
			c, err := New(f.Env, fakeScales{})
			if err != nil {
				t.Fatal(err)
			}
			if err := controltest.Sync(t, c.Loop, podPrefix+"ns/a"); err != nil {
				t.Fatal(err)
			}
			got := f.Pods("ns")["a"]
			for _, cond := range got.Status.Conditions {
				if cond.Type == corev1.DisruptionTarget && cond.Status != tc.want {
					t.Errorf("%+v", cond)
				}
			}
		})
	}
}
