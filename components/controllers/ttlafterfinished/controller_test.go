package ttlafterfinished

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/controllers/internal/controltest"
)

func TestExpiry(t *testing.T) {
	ttl := int32(60)
	for _, tc := range []struct {
		name string
		job  batchv1.Job
		gone bool
	}{
		{name: "not finished", job: batchv1.Job{Spec: batchv1.JobSpec{TTLSecondsAfterFinished: &ttl}}},
		{name: "no ttl", job: finished(nil, time.Hour)},
		{name: "not yet", job: finished(&ttl, 59*time.Second)},
		{name: "due", job: finished(&ttl, time.Minute), gone: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := controltest.New(t)
			c, err := New(f.Env)
			if err != nil {
				t.Fatal(err)
			}
			tc.job.Namespace, tc.job.Name = "ns", "j"
			f.Add(&tc.job)
			if err := controltest.Sync(t, c.Loop, "ns/j"); err != nil {
				// Events never enqueue a Job that must not be deleted.
				t.Fatal(err)
			}
			if got := controltest.Count(f.Writes(), "delete jobs") == 1; got != tc.gone {
				t.Errorf("deleted %v", got)
			}
		})
	}
}

func finished(ttl *int32, ago time.Duration) batchv1.Job {
	return batchv1.Job{
		Spec: batchv1.JobSpec{TTLSecondsAfterFinished: ttl},
		Status: batchv1.JobStatus{Conditions: []batchv1.JobCondition{{
			Type: batchv1.JobComplete, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(controltest.Now.Add(-ago)),
		}}},
	}
}
