package job

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"hyperkube/components/controllers/internal/controltest"
)

var jLabels = map[string]string{"job-name": "j"}

func testJob(parallelism, completions int32) *batchv1.Job {
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "j", UID: "job"},
		Spec: batchv1.JobSpec{
			Parallelism:  &parallelism,
			Completions:  &completions,
			BackoffLimit: ptr.To[int32](6),
			Selector:     &metav1.LabelSelector{MatchLabels: jLabels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: jLabels},
				Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c"}}}},
		},
	}
}

type world struct {
	t *testing.T
	f *controltest.Fixture
	c *Controller
}

func newWorld(t *testing.T, j *batchv1.Job) *world {
	t.Helper()
	f := controltest.New(t)
	c, err := New(f.Env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	f.Add(j)
	return &world{t, f, c}
}

func (w *world) sync() {
	w.t.Helper()
	w.f.Observe(Kind, corev1.SchemeGroupVersion.WithKind("Pod"))
	w.c.expect.Forget("ns/j")
	if err := controltest.Sync(w.t, w.c.Loop, "ns/j"); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) job() *batchv1.Job {
	w.t.Helper()
	j, err := w.f.Kube.BatchV1().Jobs("ns").Get(context.Background(), "j", metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return j
}

func (w *world) change(f func(*batchv1.Job)) {
	w.t.Helper()
	j := w.job()
	f(j)
	if _, err := w.f.Kube.BatchV1().Jobs("ns").Update(context.Background(), j, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// live returns the pods that have not terminated, sorted by name.
func (w *world) live() (out []*corev1.Pod) {
	pods := w.f.Pods("ns")
	for _, n := range slices.Sorted(maps.Keys(pods)) {
		if p := pods[n]; p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			out = append(out, p)
		}
	}
	return out
}

func (w *world) end(p *corev1.Pod, phase corev1.PodPhase, exit int32) {
	p = p.DeepCopy()
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: exit, FinishedAt: metav1.NewTime(w.f.Clock.Now())}}}}
	w.f.SetPod(p, phase, false)
}

func (w *world) later(d time.Duration) { w.f.Clock.SetTime(w.f.Clock.Now().Add(d)) }

func (w *world) over(kind batchv1.JobConditionType) *batchv1.JobCondition {
	w.t.Helper()
	c := finishedCondition(w.job())
	if c == nil || c.Type != kind {
		w.t.Fatalf("finished with %+v, want %s: %+v", c, kind, w.job().Status)
	}
	return c
}

func TestCompletes(t *testing.T) {
	w := newWorld(t, testJob(2, 5))
	for range 30 {
		w.sync()
		if n := len(w.live()); n > 2 {
			t.Fatalf("%d pods at the same time", n)
		}
		if live := w.live(); len(live) > 0 {
			w.end(live[0], corev1.PodSucceeded, 0)
		}
	}
	c := w.over(batchv1.JobComplete)
	s := w.job().Status
	if s.Succeeded != 5 || s.Failed != 0 || s.Active != 0 || s.CompletionTime == nil || c.Reason != "CompletionsReached" {
		t.Errorf("status %+v", s)
	}
	if n := len(w.f.Pods("ns")); n != 5 {
		t.Errorf("%d pods in all", n)
	}
	for _, p := range w.f.Pods("ns") {
		if tracked(p) {
			t.Errorf("%s still has its finalizer", p.Name)
		}
	}
	if e := w.f.Recorded(); !slices.Contains(e, "Normal Completed Job completed") {
		t.Errorf("events %q", e)
	}
}

// TestCountsOnce terminates random pods and deletes them as soon as their finalizer is removed;
// each must be counted exactly once.
func TestCountsOnce(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 9))
		n := int32(1 + r.IntN(12))
		j := testJob(int32(1+r.IntN(5)), n)
		j.Spec.BackoffLimit = ptr.To[int32](1000)
		if seed%2 == 0 {
			mode := batchv1.IndexedCompletion
			j.Spec.CompletionMode = &mode
		}
		w := newWorld(t, j)
		fails, ok := int32(0), map[string]bool{}
		for range 400 {
			w.sync()
			w.later(11 * time.Minute)
			for _, p := range w.live() {
				switch r.IntN(4) {
				case 0:
					fails++
					w.end(p, corev1.PodFailed, 1)
				case 1, 2:
					ok[p.Name] = true
					w.end(p, corev1.PodSucceeded, 0)
				}
			}
			for name, p := range w.f.Pods("ns") {
				if !tracked(p) && r.IntN(2) == 0 {
					if err := w.f.Kube.CoreV1().Pods("ns").Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
						t.Fatal(err)
					}
				}
			}
			if finishedCondition(w.job()) != nil {
				break
			}
		}
		w.over(batchv1.JobComplete)
		s := w.job().Status
		if s.Succeeded != n || s.Failed != fails || len(ok) != int(n) {
			t.Fatalf("seed %d: %d succeeded of %d desired and %d terminated successfully; %d failed of %d", seed, s.Succeeded, n, len(ok), s.Failed, fails)
		}
		if isIndexed(j) && s.CompletedIndexes != parseIndexes(fmt.Sprintf("0-%d", n-1), int(n)).String() {
			t.Errorf("indexes %q", s.CompletedIndexes)
		}
	}
}

func TestBackoff(t *testing.T) {
	j := testJob(1, 1)
	j.Spec.BackoffLimit = ptr.To[int32](2)
	w := newWorld(t, j)
	w.sync()
	w.end(w.live()[0], corev1.PodFailed, 1)
	w.sync()
	w.sync()
	if n := len(w.live()); n != 0 {
		t.Fatalf("%d pods before the end of the back-off", n)
	}
	w.later(firstBackoff)
	w.sync()
	w.end(w.live()[0], corev1.PodFailed, 1)
	w.sync()
	w.later(2 * firstBackoff)
	w.sync()
	w.end(w.live()[0], corev1.PodFailed, 1)
	for range 4 {
		w.sync()
	}
	if c := w.over(batchv1.JobFailed); c.Reason != "BackoffLimitExceeded" || c.Message != "Job has reached the specified backoff limit" {
		t.Errorf("condition %+v", c)
	}
	if s := w.job().Status; s.Failed != 3 || condition(&s, batchv1.JobFailureTarget) == nil {
		t.Errorf("status %+v", s)
	}
}

// TestBackoffPerIndex: after a failure of one index, only this index is delayed.
func TestBackoffPerIndex(t *testing.T) {
	j := testJob(2, 3)
	j.Spec.CompletionMode = ptr.To(batchv1.IndexedCompletion)
	j.Spec.BackoffLimit, j.Spec.BackoffLimitPerIndex = nil, ptr.To[int32](1)
	w := newWorld(t, j)
	live := func() (out []int) {
		w.t.Helper()
		for _, p := range w.live() {
			i, _ := indexOf(p)
			out = append(out, i)
		}
		slices.Sort(out)
		return out
	}
	w.sync()
	for _, p := range w.live() {
		if i, _ := indexOf(p); i == 0 {
			w.end(p, corev1.PodFailed, 1)
		} else {
			w.end(p, corev1.PodSucceeded, 0)
		}
	}
	for range 3 {
		w.sync()
	}
	if got := live(); !slices.Equal(got, []int{2}) {
		t.Fatalf("pods of indexes %v, want only 2", got)
	}
	w.later(firstBackoff)
	w.sync()
	if got := live(); !slices.Equal(got, []int{0, 2}) {
		t.Fatalf("pods of indexes %v after the back-off", got)
	}
}

func TestDeadline(t *testing.T) {
	j := testJob(1, 1)
	j.Spec.ActiveDeadlineSeconds = ptr.To[int64](30)
	w := newWorld(t, j)
	w.sync()
	w.later(31 * time.Second)
	for range 4 {
		w.sync()
	}
	if c := w.over(batchv1.JobFailed); c.Reason != "DeadlineExceeded" {
		t.Errorf("condition %+v", c)
	}
}

func TestIndexed(t *testing.T) {
	j := testJob(3, 3)
	mode := batchv1.IndexedCompletion
	j.Spec.CompletionMode = &mode
	j.Spec.BackoffLimitPerIndex = ptr.To[int32](1)
	w := newWorld(t, j)
	w.sync()
	hosts := map[string]bool{}
	for _, p := range w.live() {
		hosts[p.Spec.Hostname] = true
		i := p.Annotations[batchv1.JobCompletionIndexAnnotation]
		if p.Labels[batchv1.JobCompletionIndexAnnotation] != i || !strings.HasPrefix(p.Name, "j-"+i+"-") || p.Spec.Containers[0].Env[0].Name != "JOB_COMPLETION_INDEX" {
			t.Errorf("pod %+v", p)
		}
	}
	if len(hosts) != 3 || !hosts["j-2"] {
		t.Errorf("hosts %v", hosts)
	}
	for range 3 {
		for _, p := range w.live() {
			if i, _ := indexOf(p); i == 1 {
				w.end(p, corev1.PodFailed, 1)
			} else {
				w.end(p, corev1.PodSucceeded, 0)
			}
		}
		w.sync()
		w.later(time.Hour)
		w.sync()
	}
	w.sync()
	c := w.over(batchv1.JobFailed)
	s := w.job().Status
	if c.Reason != "FailedIndexes" || s.CompletedIndexes != "0,2" || s.FailedIndexes == nil || *s.FailedIndexes != "1" || s.Failed != 2 {
		t.Errorf("%+v: %+v", c, s)
	}
}

func TestPolicies(t *testing.T) {
	j := testJob(1, 1)
	j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
		{Action: batchv1.PodFailurePolicyActionIgnore, OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}},
		{Action: batchv1.PodFailurePolicyActionFailJob, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{42}}},
	}}
	w := newWorld(t, j)
	w.sync()
	// A disrupted pod is replaced and not counted.
	p := w.live()[0].DeepCopy()
	w.end(p, corev1.PodFailed, 137)
	p = w.f.Pods("ns")[p.Name].DeepCopy()
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue})
	if _, err := w.f.Kube.CoreV1().Pods("ns").Update(context.Background(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	// It is delayed like after any failure.
	w.sync()
	if n := len(w.live()); n != 0 {
		t.Fatalf("%d pods before the end of the back-off", n)
	}
	w.later(firstBackoff)
	w.sync()
	if n := len(w.live()); n != 1 || w.job().Status.Failed != 0 {
		t.Fatalf("%d pods, status %+v", n, w.job().Status)
	}
	victim := w.live()[0]
	w.end(victim, corev1.PodFailed, 42)
	for range 4 {
		w.sync()
	}
	c := w.over(batchv1.JobFailed)
	if want := fmt.Sprintf("Container c for pod ns/%s failed with exit code 42 matching FailJob rule at index 1", victim.Name); c.Reason != "PodFailurePolicy" || c.Message != want {
		t.Errorf("condition %+v, want %q", c, want)
	}
}

func TestSuspend(t *testing.T) {
	w := newWorld(t, testJob(3, 3))
	w.sync()
	w.change(func(j *batchv1.Job) { j.Spec.Suspend = ptr.To(true) })
	w.sync()
	w.sync()
	s := w.job().Status
	if len(w.live()) != 0 || s.StartTime != nil || s.Failed != 0 {
		t.Errorf("%d pods, status %+v", len(w.live()), s)
	}
	if c := condition(&s, batchv1.JobSuspended); c == nil || c.Reason != "JobSuspended" {
		t.Errorf("condition %+v", c)
	}
	w.change(func(j *batchv1.Job) { j.Spec.Suspend = ptr.To(false) })
	w.sync()
	if len(w.live()) != 3 {
		t.Errorf("%d pods", len(w.live()))
	}
}

func TestIndexSet(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		limit := 1 + r.IntN(40)
		var x indexes
		model := map[int]bool{}
		for range r.IntN(60) {
			i := r.IntN(limit)
			x = x.with(i)
			model[i] = true
		}
		if x.total() != len(model) {
			t.Fatalf("%v: %d, want %d", x, x.total(), len(model))
		}
		y := parseIndexes(x.String(), limit)
		if y.String() != x.String() {
			t.Fatalf("%q parsed as %q", x, y)
		}
		for i := range limit {
			if x.has(i) != model[i] {
				t.Fatalf("%v has %d: %v", x, i, x.has(i))
			}
		}
	}
}

func FuzzParseIndexes(f *testing.F) {
	f.Add("0,2-5,7", 10)
	f.Add("5-1,,-3,99999999999999999999", 3)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		limit = max(0, min(limit, 1000))
		x := parseIndexes(s, limit)
		if y := parseIndexes(x.String(), limit); y.String() != x.String() || x.total() > limit {
			t.Errorf("%q parsed as %q, then as %q", s, x, y)
		}
	})
}

func TestRemainingPods(t *testing.T) {
	for _, c := range []struct {
		name    string
		success *batchv1.SuccessPolicy
		code    int32 // exit code of index 0
		end     batchv1.JobConditionType
		failed  int32
		dead    string
	}{
		{"success: the remaining pods do not fail", &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededCount: ptr.To[int32](1)}}}, 0, batchv1.JobComplete, 0, ""},
		{"failure: the remaining pods fail, but not their indexes", nil, 1, batchv1.JobFailed, 3, "0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := testJob(3, 3)
			j.Spec.CompletionMode = ptr.To(batchv1.IndexedCompletion)
			j.Spec.SuccessPolicy = c.success
			if c.success == nil {
				j.Spec.BackoffLimit, j.Spec.BackoffLimitPerIndex, j.Spec.MaxFailedIndexes = nil, ptr.To[int32](0), ptr.To[int32](0)
			}
			w := newWorld(t, j)
			w.sync()
			for _, p := range w.live() {
				if i, _ := indexOf(p); i == 0 {
					phase := corev1.PodSucceeded
					if c.code != 0 {
						phase = corev1.PodFailed
					}
					w.end(p, phase, c.code)
				}
			}
			for range 4 {
				w.sync()
			}
			w.over(c.end)
			s := w.job().Status
			if s.Failed != c.failed || c.dead != "" && (s.FailedIndexes == nil || *s.FailedIndexes != c.dead) {
				t.Errorf("status %+v, want %d failed, indexes %q", s, c.failed, c.dead)
			}
		})
	}
}

func TestIgnoredFailureOfAnIndex(t *testing.T) {
	j := testJob(1, 1)
	j.Spec.CompletionMode = ptr.To(batchv1.IndexedCompletion)
	j.Spec.BackoffLimit, j.Spec.BackoffLimitPerIndex = nil, ptr.To[int32](1)
	j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
		Action:      batchv1.PodFailurePolicyActionIgnore,
		OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{9}},
	}}}
	w := newWorld(t, j)
	w.sync()
	first := w.live()[0]
	w.end(first, corev1.PodFailed, 9)
	w.sync()
	if n := len(w.live()); n != 0 {
		t.Fatalf("%d pods before the end of the back-off", n)
	}
	w.later(time.Hour)
	w.sync()
	live := w.live()
	if len(live) != 1 {
		t.Fatalf("%d pods after the back-off", len(live))
	}
	if a := live[0].Annotations; a[batchv1.JobIndexFailureCountAnnotation] != "0" || a[batchv1.JobIndexIgnoredFailureCountAnnotation] != "1" {
		t.Errorf("annotations %v", a)
	}
}

// TestBackoffOnce: failures count once for the back-off, even if status updates fail repeatedly.
func TestBackoffOnce(t *testing.T) {
	w := newWorld(t, testJob(1, 1))
	w.sync()
	w.end(w.live()[0], corev1.PodFailed, 1)
	refused := 3
	w.f.Kube.PrependReactor("update", "jobs", func(clienttesting.Action) (bool, runtime.Object, error) {
		refused--
		return refused >= 0, nil, apierrors.NewConflict(batchv1.Resource("jobs"), "j", nil)
	})
	w.f.Observe(Kind, corev1.SchemeGroupVersion.WithKind("Pod"))
	w.c.expect.Forget("ns/j")
	for range 3 {
		if err := controltest.Sync(t, w.c.Loop, "ns/j"); !apierrors.IsConflict(err) {
			t.Fatalf("error %v", err)
		}
	}
	w.sync()
	if got := w.c.failed["ns/j"].count; got != 1 {
		t.Errorf("%d consecutive failures", got)
	}
	w.later(firstBackoff)
	w.sync()
	if n := len(w.live()); n != 1 {
		t.Errorf("%d pods after the back-off", n)
	}
}

func TestNamePrefix(t *testing.T) {
	long := strings.Repeat("j", 60)
	for _, tc := range []struct {
		job   string
		index int
		want  string
	}{{"j", 7, "j-7-"}, {long, 12, long[:54] + "-12-"}, {long[:56], 0, long[:55] + "-0-"}} {
		if got := namePrefix(tc.job, tc.index); got != tc.want {
			t.Errorf("%s, %d: %q, want %q", tc.job, tc.index, got, tc.want)
		}
	}
}
