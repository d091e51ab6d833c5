package batch

import (
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	"sigs.k8s.io/yaml"
)

// TestJobStatus compares validation errors with those of kube-apiserver v1.37.
func TestJobStatus(t *testing.T) {
	const began = "2020-01-01T00:00:00Z"
	done := "{startTime: " + began + ", completionTime: " + began + ", conditions: [{type: SuccessCriteriaMet, status: 'True'}, {type: Complete, status: 'True'}]}"
	for name, c := range map[string]struct{ spec, old, now, want string }{
		"ready":       {now: "{ready: 1}", want: "status.ready: Invalid value: 1: cannot set more ready pods than active"},
		"was so":      {old: "{ready: 1}", now: "{ready: 1, failed: 1}"},
		"done":        {now: done},
		"no criteria": {now: "{startTime: " + began + ", completionTime: " + began + ", conditions: [{type: Complete, status: 'True'}]}", want: "status.conditions: Invalid value: cannot set Complete=True condition without the SuccessCriteriaMet=true condition"},
		"no times": {
			now:  "{conditions: [{type: SuccessCriteriaMet, status: 'True'}, {type: Complete, status: 'True'}]}",
			want: "status.completionTime: Required value: completionTime is required for Complete jobs\nstatus.startTime: Required value: startTime is required for finished job",
		},
		"no target":    {now: "{startTime: " + began + ", conditions: [{type: Failed, status: 'True'}]}", want: "status.conditions: Invalid value: cannot set Failed=True condition without the FailureTarget=true condition"},
		"again":        {old: done, now: "{startTime: " + began + "}", want: "status.conditions: Invalid value: cannot disable the terminal Complete=True condition\nstatus.conditions: Invalid value: cannot disable the SuccessCriteriaMet=True condition"},
		"fewer":        {old: "{failed: 2, succeeded: 2}", now: "{failed: 1, succeeded: 1}", want: "status.failed: Invalid value: 1: cannot decrease the failed counter\nstatus.succeeded: Invalid value: 1: cannot decrease the succeeded counter"},
		"elastic":      {spec: "{completionMode: Indexed, completions: 3, parallelism: 3}", old: "{succeeded: 2}", now: "{succeeded: 1}"},
		"late start":   {old: "{startTime: " + began + "}", now: "{startTime: 2021-01-01T00:00:00Z}", want: `status.startTime: Invalid value: "2021-01-01T00:00:00Z": field is immutable for unsuspended job once set`},
		"resumed":      {old: "{startTime: " + began + ", conditions: [{type: Suspended, status: 'True'}]}", now: "{startTime: 2021-01-01T00:00:00Z, conditions: [{type: Suspended, status: 'False'}]}"},
		"no index":     {spec: "{completionMode: Indexed, completions: 3}", now: "{completedIndexes: '1,5'}", want: `status.completedIndexes: Invalid value: "1,5": error parsing completedIndexes: too large index: "5"`},
		"not indexed":  {now: "{completedIndexes: '1'}", want: `status.completedIndexes: Invalid value: "1": cannot set non-empty completedIndexes when non-indexed completion mode`},
		"both indexes": {spec: "{completionMode: Indexed, completions: 9, backoffLimitPerIndex: 1}", now: "{completedIndexes: '1,3-5', failedIndexes: '2,4'}", want: `status.failedIndexes: Invalid value: "2,4": failedIndexes and completedIndexes overlap at index: 4`},
	} {
		t.Run(name, func(t *testing.T) {
			j, old := &batchv1.Job{}, &batchv1.Job{}
			for text, into := range map[string]any{c.spec: &j.Spec, c.now: &j.Status, c.old: &old.Status} {
				if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
					t.Fatal(err)
				}
			}
			var got []string
			for _, e := range validateJobStatus(j, old) {
				got = append(got, e.Error())
			}
			if text := strings.Join(got, "\n"); text != c.want {
				t.Errorf("found:\n%s\nnot:\n%s", text, c.want)
			}
		})
	}
}

func FuzzParseIndexes(f *testing.F) {
	f.Add("0,2-4", 5)
	f.Add("1-2-3,", -1)
	f.Fuzz(func(t *testing.T, text string, completions int) {
		all, err := parseIndexes(text, completions)
		if err != nil {
			return
		}
		for i, x := range all {
			if x.from > x.to || x.to >= completions || i > 0 && all[i-1].to >= x.from {
				t.Errorf("%q of %d: %v", text, completions, all)
			}
		}
	})
}
