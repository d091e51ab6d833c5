package deployment

import (
	"maps"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
)

// TestRollbackAnnotation: the annotation restores the revision's template and annotations, once.
func TestRollbackAnnotation(t *testing.T) {
	const cause = "kubernetes.io/change-cause"
	for name, c := range map[string]struct {
		to, image, cause, event string
	}{
		"last revision":     {"0", "v2", "of v2", `Normal DeploymentRollback Rolled back deployment "web" to revision 2`},
		"specific revision": {"1", "v1", "of v1", `Normal DeploymentRollback Rolled back deployment "web" to revision 1`},
		"current revision":  {"3", "v3", "of v3", `Warning DeploymentRollbackTemplateUnchanged The rollback revision contains the same template as current deployment "web"`},
		"unknown revision":  {"7", "v3", "of v3", "Warning DeploymentRollbackRevisionNotFound Unable to find the revision to rollback to."},
	} {
		t.Run(name, func(t *testing.T) {
			first := deployment(1, "v1")
			first.Annotations = map[string]string{cause: "of v1"}
			w := newWorld(t, first)
			w.sync()
			w.fill()
			for _, v := range []string{"v2", "v3"} {
				w.change(func(d *appsv1.Deployment) {
					d.Spec.Template = template(v)
					d.Annotations = maps.Clone(d.Annotations)
					d.Annotations[cause] = "of " + v
				})
				w.sync()
				w.fill()
			}
			for len(w.f.Events.Events) > 0 {
				<-w.f.Events.Events
			}
			w.change(func(d *appsv1.Deployment) { d.Annotations[rollbackAnnotation] = c.to })
			w.sync()
			d := w.deployment()
			if _, asks := rollbackTo(d); asks {
				t.Error("the rollback annotation still exists")
			}
			if got := d.Spec.Template.Spec.Containers[0].Image; got != c.image || d.Annotations[cause] != c.cause {
				t.Errorf("%s, %v", got, d.Annotations)
			}
			if hash := d.Spec.Template.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; hash != "" {
				t.Errorf("the template has the label of its ReplicaSet, %s", hash)
			}
			var events []string
			for len(w.f.Events.Events) > 0 {
				events = append(events, <-w.f.Events.Events)
			}
			if got := strings.Join(events, "; "); got != c.event {
				t.Errorf("events %q, want %q", got, c.event)
			}
		})
	}
}
