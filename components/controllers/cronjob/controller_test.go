package cronjob

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"hyperkube/components/controllers/internal/controltest"
)

func cronJob(schedule string, created time.Time) *batchv1.CronJob {
	return &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "cj", CreationTimestamp: metav1.NewTime(created)},
		Spec:       batchv1.CronJobSpec{Schedule: schedule, ConcurrencyPolicy: batchv1.AllowConcurrent},
	}
}

func TestLastDue(t *testing.T) {
	now := controltest.Now // noon on a Wednesday, the first of July
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for _, tc := range []struct {
		name, schedule string
		created        time.Time
		deadline       *int64
		due            time.Time
		many           bool
	}{
		{name: "not yet", schedule: "5 * * * *", created: ago(10 * time.Minute)},
		{name: "now", schedule: "0 * * * *", created: ago(time.Minute), due: now},
		{name: "some missed", schedule: "*/10 * * * *", created: ago(35*time.Minute + time.Second), due: now},
		{name: "many missed", schedule: "* * * * *", created: ago(60 * 24 * time.Hour), due: now, many: true},
		{name: "deadline", schedule: "30 * * * *", created: ago(5 * time.Hour), deadline: ptr.To[int64](60)},
		{name: "once a year", schedule: "0 0 29 2 *", created: ago(10 * 365 * 24 * time.Hour), due: time.Date(2024, 2, 29, 0, 0, 0, 0, time.UTC)},
		{name: "working hours", schedule: "* 9-16 * * 1-5", created: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), due: now, many: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cj := cronJob(tc.schedule, tc.created)
			cj.Spec.StartingDeadlineSeconds = tc.deadline
			sched, err := parse(cj)
			if err != nil {
				t.Fatal(err)
			}
			due, missed := lastDue(cj, sched, now)
			if !due.Equal(tc.due) || (missed > 100) != tc.many {
				t.Errorf("due %s, %d missed, want %s", due, missed, tc.due)
			}
		})
	}
}

func TestSchedule(t *testing.T) {
	for _, tc := range []struct {
		name     string
		policy   batchv1.ConcurrencyPolicy
		suspend  bool
		schedule string
		jobs     int
		event    string
	}{
		{name: "allow", policy: batchv1.AllowConcurrent, schedule: "0 * * * *", jobs: 2, event: "Normal SuccessfulCreate Created job c-"},
		{name: "forbid", policy: batchv1.ForbidConcurrent, schedule: "0 * * * *", jobs: 1, event: "Normal JobAlreadyActive Not starting job because prior execution is running and concurrency policy is Forbid"},
		{name: "replace", policy: batchv1.ReplaceConcurrent, schedule: "0 * * * *", jobs: 1, event: "Normal SuccessfulDelete Deleted job old"},
		{name: "suspended", policy: batchv1.AllowConcurrent, schedule: "0 * * * *", suspend: true, jobs: 1},
		{name: "never", policy: batchv1.AllowConcurrent, schedule: "0 0 31 2 *", jobs: 1, event: "Warning InvalidSchedule invalid schedule: 0 0 31 2 * : time difference between two schedules is less than 1 second"},
		{name: "only a time zone", policy: batchv1.AllowConcurrent, schedule: "TZ=UTC", jobs: 1, event: "Warning UnparseableSchedule unparseable schedule: \"TZ=UTC\" : invalid schedule format: "},
		{name: "time zone in the schedule", policy: batchv1.AllowConcurrent, schedule: "TZ=UTC 0 * * * *", jobs: 2, event: "Warning UnsupportedSchedule CRON_TZ or TZ used in schedule \"TZ=UTC 0 * * * *\" is not officially supported"},
		{name: "invalid", policy: batchv1.AllowConcurrent, schedule: "sometimes", jobs: 1, event: "Warning UnparseableSchedule unparseable schedule: \"sometimes\" : "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cj := cronJob(tc.schedule, controltest.Now.Add(-time.Minute))
			cj.Spec.ConcurrencyPolicy, cj.Spec.Suspend = tc.policy, &tc.suspend
			cj.Status.Active = []corev1.ObjectReference{{Kind: "Job", Namespace: "ns", Name: "old", UID: "old"}}
			f := controltest.New(t, cj, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "old", UID: "old", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(cj, Kind)}}})
			c, err := New(f.Env)
			if err != nil {
				t.Fatal(err)
			}
			f.Observe(Kind, batchv1.SchemeGroupVersion.WithKind("Job"))
			for range 2 {
				if err := controltest.Sync(t, c.Loop, "ns/c"); err != nil {
					t.Fatal(err)
				}
				f.Observe(Kind, batchv1.SchemeGroupVersion.WithKind("Job"))
			}
			list, err := f.Kube.BatchV1().Jobs("ns").List(context.Background(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if len(list.Items) != tc.jobs {
				t.Errorf("%d jobs, want %d", len(list.Items), tc.jobs)
			}
			events := f.Recorded()
			if !slices.ContainsFunc(events, func(e string) bool { return strings.HasPrefix(e, tc.event) }) && tc.event != "" {
				t.Errorf("events %q", events)
			}
		})
	}
}

func TestHistory(t *testing.T) {
	cj := cronJob("0 0 1 1 *", controltest.Now.Add(-time.Minute))
	cj.Spec.SuccessfulJobsHistoryLimit, cj.Spec.FailedJobsHistoryLimit = ptr.To[int32](1), ptr.To[int32](0)
	f := controltest.New(t, cj)
	c, err := New(f.Env)
	if err != nil {
		t.Fatal(err)
	}
	add := func(name string, how batchv1.JobConditionType, age time.Duration) {
		at := metav1.NewTime(controltest.Now.Add(-age))
		f.Add(&batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "u" + "id", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(cj, Kind)}},
			Status:     batchv1.JobStatus{StartTime: &at, CompletionTime: &at, Conditions: []batchv1.JobCondition{{Type: how, Status: corev1.ConditionTrue}}},
		})
	}
	add("oldest", batchv1.JobComplete, 3*time.Hour)
	add("newest", batchv1.JobComplete, time.Hour)
	add("failed", batchv1.JobFailed, time.Hour)
	if err := controltest.Sync(t, c.Loop, "ns/c"); err != nil {
		t.Fatal(err)
	}
	w := f.Writes()
	if !slices.Contains(w, "delete jobs oldest") || !slices.Contains(w, "delete jobs failed") || slices.Contains(w, "delete jobs newest") {
		t.Errorf("writes %v", w)
	}
	live, err := f.Kube.BatchV1().CronJobs("ns").Get(context.Background(), "c", metav1.GetOptions{})
	if err != nil || live.Status.LastSuccessfulTime == nil || !live.Status.LastSuccessfulTime.Time.Equal(controltest.Now.Add(-time.Hour)) {
		t.Errorf("status %+v, %v", live.Status, err)
	}
}

// TestNewSchedule changes a schedule to one with a time that is already past.
func TestNewSchedule(t *testing.T) {
	cj := cronJob("0 0 1 1 *", controltest.Now.Add(-time.Hour))
	f := controltest.New(t, cj)
	c, err := New(f.Env)
	if err != nil {
		t.Fatal(err)
	}
	other := cj.DeepCopy()
	other.ResourceVersion, other.Labels = "2", map[string]string{"a": "b"}
	changed := other.DeepCopy()
	changed.ResourceVersion, changed.Spec.Schedule = "3", "30 * * * *"
	c.changed(other, changed)
	if n := c.Len(); n != 0 {
		t.Errorf("%d keys enqueued immediately: a past time of the new schedule must not count", n)
	}
	c.changed(cj, other)
	if n := c.Len(); n != 1 {
		t.Errorf("%d keys enqueued after a label change", n)
	}
	broken := other.DeepCopy()
	broken.ResourceVersion, broken.Spec.Schedule = "4", "TZ=0"
	c.changed(other, broken)
	if e := f.Recorded(); len(e) != 1 || !strings.HasPrefix(e[0], "Warning UnParseableCronJobSchedule unparseable schedule for cronjob: TZ=0") {
		t.Errorf("events %q", e)
	}
}
