package replicaset

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/components/controllers/internal/controltest"
)

var webLabels = map[string]string{"app": "web"}

func set(n int32) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "rs", Generation: 1},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &n,
			Selector: &metav1.LabelSelector{MatchLabels: webLabels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: webLabels}},
		},
	}
}

func owned(rs *appsv1.ReplicaSet, p *corev1.Pod) *corev1.Pod {
	p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(rs, Kind)}
	return p
}

func pod(name string, phase corev1.PodPhase) *corev1.Pod {
	return controltest.Pod("ns", name, webLabels, phase)
}

func TestSync(t *testing.T) {
	deleted := func(p *corev1.Pod) *corev1.Pod {
		now := metav1.NewTime(controltest.Now)
		p.DeletionTimestamp = &now
		return p
	}
	for _, tc := range []struct {
		name    string
		want    int32
		pods    func(rs *appsv1.ReplicaSet) []*corev1.Pod
		creates int
		deletes int
		patches int
		status  appsv1.ReplicaSetStatus
	}{
		{name: "none yet", want: 3, creates: 3},
		{name: "enough", want: 1, pods: func(rs *appsv1.ReplicaSet) []*corev1.Pod {
			return []*corev1.Pod{owned(rs, pod("a", corev1.PodRunning))}
		}, status: appsv1.ReplicaSetStatus{Replicas: 1, ReadyReplicas: 1, AvailableReplicas: 1, FullyLabeledReplicas: 1}},
		{name: "too many", want: 1, deletes: 2, pods: func(rs *appsv1.ReplicaSet) []*corev1.Pod {
			return []*corev1.Pod{owned(rs, pod("a", corev1.PodRunning)), owned(rs, pod("b", corev1.PodPending)), owned(rs, pod("c", corev1.PodRunning))}
		}, status: appsv1.ReplicaSetStatus{Replicas: 3, ReadyReplicas: 2, AvailableReplicas: 2, FullyLabeledReplicas: 3}},
		{name: "finished and terminating do not count", want: 1, creates: 1, pods: func(rs *appsv1.ReplicaSet) []*corev1.Pod {
			return []*corev1.Pod{owned(rs, pod("a", corev1.PodFailed)), deleted(owned(rs, pod("b", corev1.PodRunning)))}
		}},
		{name: "orphan is adopted", want: 1, patches: 1, pods: func(*appsv1.ReplicaSet) []*corev1.Pod {
			return []*corev1.Pod{pod("a", corev1.PodRunning)}
		}, status: appsv1.ReplicaSetStatus{Replicas: 1, ReadyReplicas: 1, AvailableReplicas: 1, FullyLabeledReplicas: 1}},
		{name: "relabelled is released", want: 1, patches: 1, creates: 1, pods: func(rs *appsv1.ReplicaSet) []*corev1.Pod {
			p := owned(rs, pod("a", corev1.PodRunning))
			p.Labels = map[string]string{"app": "debug"}
			return []*corev1.Pod{p}
		}},
		{name: "relabelled is ignored while it is deleted", want: 0, pods: func(rs *appsv1.ReplicaSet) []*corev1.Pod {
			p := deleted(owned(rs, pod("a", corev1.PodRunning)))
			p.Labels = map[string]string{"app": "debug"}
			return []*corev1.Pod{p, deleted(owned(rs, pod("b", corev1.PodRunning)))}
		}, status: appsv1.ReplicaSetStatus{TerminatingReplicas: ptr.To[int32](1)}},
		{name: "pod of another owner is ignored", want: 0, pods: func(*appsv1.ReplicaSet) []*corev1.Pod {
			other := set(1)
			other.UID = "other"
			return []*corev1.Pod{owned(other, pod("a", corev1.PodRunning))}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := controltest.New(t)
			c, err := New(f.Env)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(c.Close)
			rs := set(tc.want)
			f.Add(rs)
			if tc.pods != nil {
				for _, p := range tc.pods(rs) {
					f.Add(p)
				}
			}
			before := rs.DeepCopy()
			if err := controltest.Sync(t, c.Loop, "ns/web"); err != nil {
				t.Fatal(err)
			}
			w := f.Writes()
			if got := controltest.Count(w, "create pods"); got != tc.creates {
				t.Errorf("%d creates, want %d: %v", got, tc.creates, w)
			}
			if got := controltest.Count(w, "delete pods"); got != tc.deletes {
				t.Errorf("%d deletes, want %d: %v", got, tc.deletes, w)
			}
			if got := controltest.Count(w, "patch pods"); got != tc.patches {
				t.Errorf("%d patches, want %d: %v", got, tc.patches, w)
			}
			if fmt.Sprint(before) != fmt.Sprint(rs) {
				t.Error("the shared object was modified")
			}
			live, err := f.Kube.AppsV1().ReplicaSets("ns").Get(context.Background(), "web", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			s := live.Status
			if s.ObservedGeneration != 1 || s.Replicas != tc.status.Replicas || s.ReadyReplicas != tc.status.ReadyReplicas ||
				s.AvailableReplicas != tc.status.AvailableReplicas || s.FullyLabeledReplicas != tc.status.FullyLabeledReplicas {
				t.Errorf("status %+v, want %+v", s, tc.status)
			}
			if want := tc.status.TerminatingReplicas; want != nil && (s.TerminatingReplicas == nil || *s.TerminatingReplicas != *want) {
				t.Errorf("%d terminating, want %d", ptr.Deref(s.TerminatingReplicas, -1), *want)
			}
			// Pods that were just created are not created again before the cache shows them.
			if err := controltest.Sync(t, c.Loop, "ns/web"); err != nil {
				t.Fatal(err)
			}
			if w := f.Writes(); controltest.Count(w, "create")+controltest.Count(w, "delete pods") != 0 {
				t.Errorf("writes with a stale cache: %v", w)
			}
		})
	}
}

func TestCreateFailure(t *testing.T) {
	f := controltest.New(t)
	c, err := New(f.Env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	f.Add(set(20))
	tries := 0
	f.Kube.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		tries++
		return true, nil, errors.New("quota exceeded")
	})
	if err := controltest.Sync(t, c.Loop, "ns/web"); err == nil {
		t.Fatal("no error")
	}
	if tries != 1 {
		t.Errorf("%d creations, want one because of the slow start", tries)
	}
	if e := f.Recorded(); len(e) != 1 || e[0] != "Warning FailedCreate Error creating: quota exceeded" {
		t.Errorf("events %q", e)
	}
	live, err := f.Kube.AppsV1().ReplicaSets("ns").Get(context.Background(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cond := Condition(live.Status, appsv1.ReplicaSetReplicaFailure)
	if cond == nil || cond.Reason != "FailedCreate" || cond.Message != "quota exceeded" {
		t.Errorf("condition %+v", cond)
	}
	if !c.expect.Satisfied("ns/web") {
		t.Error("failed creations are still in the expectations")
	}
}

func TestVictims(t *testing.T) {
	mod := func(name string, f func(*corev1.Pod)) *corev1.Pod {
		p := pod(name, corev1.PodRunning)
		f(p)
		return p
	}
	// In the order of their deletion.
	pods := []*corev1.Pod{
		mod("unbound", func(p *corev1.Pod) { p.Spec.NodeName = "" }),
		mod("pending", func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }),
		mod("unknown", func(p *corev1.Pod) { p.Status.Phase = corev1.PodUnknown }),
		mod("not ready", func(p *corev1.Pod) { p.Status.Conditions = nil }),
		mod("cheap", func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.PodDeletionCost: "-5"} }),
		mod("doubled", func(p *corev1.Pod) { p.Spec.NodeName = "n2" }),
		mod("lately ready", func(p *corev1.Pod) {
			p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(controltest.Now.Add(-time.Second))
		}),
		mod("restarted", func(p *corev1.Pod) { p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: 3}} }),
		mod("young", func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(controltest.Now.Add(-10 * time.Minute)) }),
		mod("plain", func(*corev1.Pod) {}),
		mod("dear", func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.PodDeletionCost: "100"} }),
	}
	v := control.Victims{Now: controltest.Now}
	for i := range pods {
		p := pods[(i*7+3)%len(pods)]
		rank := 1
		if p.Spec.NodeName == "n2" {
			rank = 2
		}
		v.Pods, v.Rank = append(v.Pods, p), append(v.Rank, rank)
	}
	sort.Sort(v)
	for i, p := range v.Pods {
		if p.Name != pods[i].Name {
			t.Errorf("%d: %s, want %s", i, p.Name, pods[i].Name)
		}
	}
}

func TestSlowStart(t *testing.T) {
	for _, tc := range []struct{ count, failAfter, want int }{
		{0, 100, 0}, {1, 100, 1}, {10, 100, 10}, {500, 1000, 500}, {10, 0, 0},
	} {
		done, err := control.SlowStart(tc.count, func() error {
			if tc.failAfter == 0 {
				return errors.New("no")
			}
			return nil
		})
		if done != tc.want || (err != nil) != (tc.failAfter == 0) {
			t.Errorf("%+v: %d, %v", tc, done, err)
		}
	}
}
