package job

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"hyperkube/components/controllers/internal/controltest"
)

// pod creates a tracked pod of the test's Job; index -1 means no index.
func (w *world) pod(name string, index int, phase corev1.PodPhase, change ...func(*corev1.Pod)) {
	w.t.Helper()
	p := controltest.Pod("ns", name, maps.Clone(jLabels), phase)
	p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(w.job(), Kind)}
	p.Finalizers = []string{batchv1.JobTrackingFinalizer}
	if index >= 0 {
		p.Annotations = map[string]string{batchv1.JobCompletionIndexAnnotation: strconv.Itoa(index)}
	}
	for _, f := range change {
		f(p)
	}
	w.f.Add(p)
}

// once runs one sync without changing the expectations.
func (w *world) once() error {
	w.t.Helper()
	w.f.Observe(Kind)
	return controltest.Sync(w.t, w.c.Loop, "ns/j")
}

func indexed(j *batchv1.Job) { j.Spec.CompletionMode = ptr.To(batchv1.IndexedCompletion) }

func deleting(p *corev1.Pod) {
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: controltest.Now}, ptr.To[int64](30)
}

func unready(p *corev1.Pod) { p.Status.Conditions = nil }

// TestSituations: the result of one sync for various Jobs and pods.
func TestSituations(t *testing.T) {
	type podCase struct {
		index  int
		phase  corev1.PodPhase
		change func(*corev1.Pod)
	}
	running, failed, succeeded := corev1.PodRunning, corev1.PodFailed, corev1.PodSucceeded
	for _, tc := range []struct {
		name        string
		par, comp   int32
		job         func(*batchv1.Job)
		pods        []podCase
		unsatisfied bool
		// expected results: deleted pods by name, and pods that keep their finalizer
		deleted, held []string
		made          int
		status        [5]int32 // active, ready, terminating, succeeded, failed, after counting
		conditions    string
	}{
		{"deleted pods are terminating", 1, 5, nil,
			[]podCase{{-1, running, nil}, {-1, running, unready}}, false, []string{"p1"}, []string{"p0"}, 0, [5]int32{1, 1, 1, 0, 0}, ""},
		{"duplicates of an index are deleted first: the less advanced pod", 2, 3, indexed,
			[]podCase{{1, corev1.PodPending, nil}, {1, running, nil}, {2, running, unready}}, false,
			[]string{"p0"}, []string{"p1", "p2"}, 0, [5]int32{2, 1, 1, 0, 0}, ""},
		{"excess pods of different indexes: the least advanced", 1, 3, indexed,
			[]podCase{{1, running, unready}, {2, running, nil}}, false, []string{"p0"}, []string{"p1"}, 0, [5]int32{1, 1, 1, 0, 0}, ""},
		{"the deletion cost applies only to replicas", 1, 5, nil, []podCase{
			{-1, running, func(p *corev1.Pod) {
				p.CreationTimestamp = metav1.NewTime(controltest.Now.Add(-59 * time.Minute))
				p.Annotations = map[string]string{corev1.PodDeletionCost: "10"}
			}}, {-1, running, nil}}, false, []string{"p0"}, []string{"p1"}, 0, [5]int32{1, 1, 1, 0, 0}, ""},
		{"pods without one of the indexes do not fail", 1, 2, indexed,
			[]podCase{{-1, failed, nil}, {2, failed, nil}, {0, running, nil}}, false, nil, []string{"p2"}, 0, [5]int32{1, 1, 0, 0, 0}, ""},
		{"a failed Job: its pods are terminating", 2, 5, func(j *batchv1.Job) { j.Spec.BackoffLimit = ptr.To[int32](0) },
			[]podCase{{-1, failed, nil}, {-1, running, nil}}, false, []string{"p1"}, nil, 0, [5]int32{0, 0, 1, 0, 2}, "FailureTarget=True:BackoffLimitExceeded"},
		{"a failed Job with pods missing in the cache: no condition yet", 2, 5, func(j *batchv1.Job) { j.Spec.BackoffLimit = ptr.To[int32](0) },
			[]podCase{{-1, failed, nil}}, true, nil, nil, 0, [5]int32{0, 0, 0, 0, 1}, ""},
		{"suspended: its pods are terminating", 2, 4, func(j *batchv1.Job) { j.Spec.Suspend = ptr.To(true) },
			[]podCase{{-1, running, nil}, {-1, running, unready}}, false, []string{"p0", "p1"}, nil, 0, [5]int32{0, 0, 2, 0, 0}, "Suspended=True:JobSuspended"},
		{"suspended, pods missing in the cache: no action yet", 2, 4, func(j *batchv1.Job) { j.Spec.Suspend = ptr.To(true) },
			[]podCase{{-1, running, nil}}, true, nil, []string{"p0"}, 0, [5]int32{1, 1, 0, 0, 0}, ""},
		{"suspended during deletion: finalizers are removed, pods are kept", 2, 4, func(j *batchv1.Job) {
			j.Spec.Suspend = ptr.To(true)
			j.DeletionTimestamp, j.Finalizers = &metav1.Time{Time: controltest.Now}, []string{metav1.FinalizerDeleteDependents}
		}, []podCase{{-1, running, nil}, {-1, corev1.PodPending, deleting}, {-1, succeeded, nil}}, false, nil, nil, 0, [5]int32{1, 1, 1, 1, 1}, ""},
		{"a work queue with reduced parallelism: existing pods finish", 1, -1, nil,
			[]podCase{{-1, succeeded, nil}, {-1, running, nil}, {-1, running, nil}}, false, nil, []string{"p1", "p2"}, 0, [5]int32{2, 2, 0, 1, 0}, ""},
		{"restarts of a pod that is deleted count", 1, 1, func(j *batchv1.Job) {
			j.Spec.BackoffLimit, j.Spec.PodReplacementPolicy = ptr.To[int32](2), ptr.To(batchv1.Failed)
			j.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
		}, []podCase{{-1, running, func(p *corev1.Pod) {
			deleting(p)
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: 2}}
		}}}, false, nil, nil, 0, [5]int32{0, 0, 1, 0, 1}, "FailureTarget=True:BackoffLimitExceeded"},
		{"a failed pod without a termination time: replaced immediately", 1, 1, nil,
			[]podCase{{-1, failed, unready}}, false, nil, nil, 1, [5]int32{1, 0, 0, 0, 1}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			j := testJob(tc.par, tc.comp)
			if tc.comp < 0 {
				j.Spec.Completions = nil
			}
			if tc.job != nil {
				tc.job(j)
			}
			w := newWorld(t, j)
			for i, p := range tc.pods {
				w.pod(fmt.Sprintf("p%d", i), p.index, p.phase, func(pod *corev1.Pod) {
					if p.change != nil {
						p.change(pod)
					}
				})
			}
			if tc.unsatisfied {
				w.c.expect.Expect("ns/j", 1)
			}
			before := w.f.Pods("ns")
			w.f.Writes()
			if err := w.once(); err != nil {
				t.Fatal(err)
			}
			var deleted []string
			made := 0
			for _, a := range w.f.Writes() {
				var name string
				if n, _ := fmt.Sscanf(a, "delete pods %s", &name); n == 1 {
					deleted = append(deleted, name)
				}
				if a == "create pods" {
					made++
				}
			}
			slices.Sort(deleted)
			if !slices.Equal(deleted, tc.deleted) || made != tc.made {
				t.Errorf("deleted %q and created %d, want %q and %d", deleted, made, tc.deleted, tc.made)
			}
			var held []string
			for name, p := range w.f.Pods("ns") {
				if before[name] != nil && tracked(p) {
					held = append(held, name)
				}
			}
			slices.Sort(held)
			if !slices.Equal(held, tc.held) {
				t.Errorf("%q keep their finalizer, want %q", held, tc.held)
			}
			s := w.job().Status
			got := [5]int32{s.Active, *s.Ready, *s.Terminating, s.Succeeded + int32(len(s.UncountedTerminatedPods.Succeeded)), s.Failed + int32(len(s.UncountedTerminatedPods.Failed))}
			if got != tc.status {
				t.Errorf("active, ready, terminating, succeeded, failed: %v, want %v", got, tc.status)
			}
			conditions := ""
			for _, c := range s.Conditions {
				conditions += fmt.Sprintf("%s=%s:%s", c.Type, c.Status, c.Reason)
			}
			if conditions != tc.conditions {
				t.Errorf("conditions %q, want %q", conditions, tc.conditions)
			}
		})
	}
}

// TestNotFinishedWithStaleCache: a Job does not finish while the cache may lack some of its pods; the
// expectations of created pods are kept.
func TestNotFinishedWithStaleCache(t *testing.T) {
	j := testJob(2, 2)
	j.Spec.ActiveDeadlineSeconds = ptr.To[int64](30)
	w := newWorld(t, j)
	w.pod("known", -1, corev1.PodRunning)
	w.c.expect.Expect("ns/j", 1)
	w.f.Clock.SetTime(controltest.Now.Add(time.Minute))
	w.change(func(j *batchv1.Job) { j.Status.StartTime = &metav1.Time{Time: controltest.Now} })
	for range 3 {
		if err := w.once(); err != nil {
			t.Fatal(err)
		}
		w.f.Observe(corev1.SchemeGroupVersion.WithKind("Pod"))
	}
	if s := w.job().Status; len(s.Conditions) > 0 || w.c.expect.Satisfied("ns/j") {
		t.Errorf("status %+v, expectations satisfied: %v", s, w.c.expect.Satisfied("ns/j"))
	}
	w.sync()
	w.sync()
	w.over(batchv1.JobFailed)
}

// TestConsecutiveFailures: which failures delay new pods.
func TestConsecutiveFailures(t *testing.T) {
	at := func(seconds ...int) (out []time.Time) {
		for _, s := range seconds {
			out = append(out, controltest.Now.Add(time.Duration(s)*time.Second))
		}
		return out
	}
	for _, tc := range []struct {
		name              string
		before            int
		failed, succeeded []time.Time
		count             int
		wait              time.Duration
	}{
		{"none", 0, nil, nil, 0, 0},
		{"one more", 1, at(-5), nil, 2, 15 * time.Second},
		{"the latest counts, in any order", 0, at(-1, -8), nil, 2, 19 * time.Second},
		{"a success resets the failures", 3, nil, at(-9), 0, 0},
		{"failures before a success", 3, at(-9, -8), at(-7), 0, 0},
		{"failures at the time of a success", 3, at(-7), at(-7), 0, 0},
		{"failures before and after", 3, at(-9, -2), at(-7), 1, 8 * time.Second},
		{"many", 30, at(0), nil, 31, lastBackoff},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, testJob(1, 1))
			w.c.remember("ns/j", failures{tc.before, controltest.Now.Add(-time.Hour)})
			wait, f := w.c.backoff("ns/j", tc.failed, tc.succeeded)
			if f.count != tc.count || wait != tc.wait {
				t.Errorf("%d consecutive failures, back-off %s; want %d, %s", f.count, wait, tc.count, tc.wait)
			}
		})
	}
}

func TestFinishedAt(t *testing.T) {
	at := func(s int) metav1.Time { return metav1.NewTime(controltest.Now.Add(time.Duration(s) * time.Second)) }
	ended := func(name string, s int) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: at(s)}}}
	}
	stopped := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: at(7)}}
	}
	for _, tc := range []struct {
		name string
		pod  func(*corev1.Pod)
		want int
	}{
		{"no status: creation time", func(*corev1.Pod) {}, 0},
		{"the last container", func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{ended("a", 5), ended("b", 3)}
		}, 5},
		{"a sidecar terminates later", func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "i"}, {Name: "s", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}}
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{ended("i", 9), ended("s", 6)}
			p.Status.ContainerStatuses = []corev1.ContainerStatus{ended("a", 5)}
		}, 6},
		{"one container has not terminated", func(p *corev1.Pod) {
			stopped(p)
			p.Status.ContainerStatuses = []corev1.ContainerStatus{ended("a", 5), {Name: "b"}}
		}, 7},
		{"no longer ready", func(p *corev1.Pod) { stopped(p); deleting(p) }, 7},
		{"deleted", func(p *corev1.Pod) { deleting(p) }, -30},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: at(0)}}
			tc.pod(p)
			if got := finishedAt(p).Sub(controltest.Now); got != time.Duration(tc.want)*time.Second {
				t.Errorf("%s, want %ds", got, tc.want)
			}
		})
	}
}

// TestStrayOfAnother: the finalizer on a pod of another API group's Job is kept.
func TestStrayOfAnother(t *testing.T) {
	for api, keeps := range map[string]bool{"batch/v1": false, "batch.example.org/v1": true} {
		w := newWorld(t, testJob(1, 1))
		w.pod("p", -1, corev1.PodRunning, func(p *corev1.Pod) {
			p.OwnerReferences[0].Name, p.OwnerReferences[0].UID, p.OwnerReferences[0].APIVersion = "gone", "gone", api
		})
		if err := controltest.Sync(t, w.c.Loop, podPrefixKey+"ns/p"); err != nil {
			t.Fatal(err)
		}
		if got := tracked(w.f.Pods("ns")["p"]); got != keeps {
			t.Errorf("owner in %s: finalizer kept %v", api, got)
		}
	}
}

func TestTooManySucceed(t *testing.T) {
	w := newWorld(t, testJob(1, 1))
	w.pod("a", -1, corev1.PodSucceeded)
	w.pod("b", -1, corev1.PodSucceeded)
	w.sync()
	w.sync()
	w.over(batchv1.JobComplete)
	if e := w.f.Recorded(); !slices.Contains(e, "Warning TooManySucceededPods Too many succeeded pods running after completion count reached") {
		t.Errorf("events %q", e)
	}
}

func TestMetricsOfPodsAndIndexes(t *testing.T) {
	j := testJob(2, 2)
	indexed(j)
	j.Spec.BackoffLimit, j.Spec.BackoffLimitPerIndex = nil, ptr.To[int32](0)
	w := newWorld(t, j)
	w.sync()
	live := w.live()
	w.end(live[0], corev1.PodSucceeded, 0)
	w.end(live[1], corev1.PodFailed, 1)
	for range 3 {
		w.sync()
	}
	m := w.c.metrics
	for what, got := range map[string]float64{
		"indexes that succeeded": testutil.ToFloat64(m.indexes.WithLabelValues("succeeded", "perIndex")) - 1,
		"indexes that failed":    testutil.ToFloat64(m.indexes.WithLabelValues("failed", "perIndex")) - 1,
		"new pods":               testutil.ToFloat64(m.creations.WithLabelValues("new", "succeeded")) - 2,
	} {
		if got != 0 {
			t.Errorf("%s: wrong by %v", what, got)
		}
	}
	for reason, before := range map[string]func(*batchv1.Job) (int32, int){
		"recreate_failed": func(j *batchv1.Job) (int32, int) {
			j.Spec.PodReplacementPolicy = ptr.To(batchv1.Failed)
			return 1, 0
		},
		"recreate_terminating_or_failed": func(*batchv1.Job) (int32, int) { return 0, 1 },
	} {
		j := testJob(1, 1)
		failed, terminating := before(j)
		m.created(j, failed, terminating, 0, 3)
		if got := testutil.ToFloat64(m.creations.WithLabelValues(reason, "failed")); got != 3 {
			t.Errorf("%s: %v", reason, got)
		}
	}
}

func TestSuccessPolicyCounts(t *testing.T) {
	for _, tc := range []struct {
		indexes string
		count   int32
		done    string
		want    bool
	}{
		{"0-9", 8, "0-4", true}, // an index set that was reduced below its former size
		{"", 0, "", false}, {"", 0, "3", true}, {"", 2, "3", false}, {"1,2", -1, "0,1", false}, {"1,2", -1, "0-2", true}, {"1,2", 1, "2", true},
	} {
		j := testJob(5, 5)
		indexed(j)
		rule := batchv1.SuccessPolicyRule{}
		if tc.indexes != "" {
			rule.SucceededIndexes = &tc.indexes
		}
		if tc.count >= 0 {
			rule.SucceededCount = &tc.count
		}
		j.Spec.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{rule}}
		if _, got := matchSuccessPolicy(j, parseIndexes(tc.done, 5)); got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
	}
}

// TestManagedElsewhere: a Job of another controller is ignored, and counted once in metrics.
func TestManagedElsewhere(t *testing.T) {
	j := testJob(1, 1)
	j.Spec.ManagedBy = ptr.To("example.org/queue")
	w := newWorld(t, j)
	w.pod("p", -1, corev1.PodSucceeded)
	w.c.jobAdded(j)
	w.f.Writes()
	for range 3 {
		if err := w.once(); err != nil {
			t.Fatal(err)
		}
	}
	if writes := w.f.Writes(); len(writes) > 0 {
		t.Errorf("writes %v", writes)
	}
	if got := testutil.ToFloat64(w.c.metrics.others.WithLabelValues("example.org/queue")); got != 1 {
		t.Errorf("counted %v times", got)
	}
}
