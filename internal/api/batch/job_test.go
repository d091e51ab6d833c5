package batch

import (
	"context"
	"maps"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
)

// TestJobLabels checks that a job without labels gets the labels of its pods, including the
// generated ones, whether or not its template has labels.
func TestJobLabels(t *testing.T) {
	generated := map[string]string{
		legacyJobName: "j", batchv1.JobNameLabel: "j", legacyUID: "u", batchv1.ControllerUidLabel: "u",
	}
	with := func(more map[string]string) map[string]string {
		all := maps.Clone(generated)
		maps.Copy(all, more)
		return all
	}
	app := map[string]string{"app": "a"}
	for name, test := range map[string]struct{ own, template, want map[string]string }{
		"none anywhere":               {nil, nil, generated},
		"of the template":             {nil, app, with(app)},
		"same labels as the template": {app, app, app},
		"different labels":            {map[string]string{"b": "c"}, app, map[string]string{"b": "c"}},
	} {
		j := &batchv1.Job{}
		j.Name, j.UID = "j", "u"
		j.Labels, j.Spec.Template.Labels = maps.Clone(test.own), maps.Clone(test.template)
		kind := job()
		kind.Default(j)
		kind.PrepareCreate(context.Background(), j)
		kind.Default(j)
		if !maps.Equal(j.Labels, test.want) {
			t.Errorf("%s: the job's labels are %v, not %v", name, j.Labels, test.want)
		}
		if want := with(test.template); !maps.Equal(j.Spec.Template.Labels, want) {
			t.Errorf("%s: its pods' labels are %v, not %v", name, j.Spec.Template.Labels, want)
		}
	}
}
