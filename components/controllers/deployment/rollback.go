package deployment

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// rollbackTo returns the revision in the rollback annotation of a Deployment, which replaces the rollbackTo field of
// extensions/v1beta1. Zero means the revision before the current one. ok is false if there is no valid annotation.
func rollbackTo(d *appsv1.Deployment) (rev int64, ok bool) {
	rev, err := strconv.ParseInt(d.Annotations[rollbackAnnotation], 10, 64)
	return rev, err == nil
}

// rollback restores the pod template and annotations of a revision, or of the previous one if rev is 0. It always
// removes the rollback annotation, also if the revision does not exist, and emits an event. The update triggers the
// next sync, which rolls out the template.
func (r *rollout) rollback(ctx context.Context, rev int64) error {
	if err := r.find(ctx, true); err != nil {
		return err
	}
	warn := func(reason, message string) { r.env.Events.Event(r.d, corev1.EventTypeWarning, reason, message) }
	if rev == 0 {
		if rev = lastRevision(r.all()); rev == 0 {
			warn("DeploymentRollbackRevisionNotFound", "Unable to find last revision.")
			return r.finishRollback(ctx)
		}
	}
	i := slices.IndexFunc(r.all(), func(rs *appsv1.ReplicaSet) bool { return revision(rs.Annotations) == rev })
	if i < 0 {
		warn("DeploymentRollbackRevisionNotFound", "Unable to find the revision to rollback to.")
		return r.finishRollback(ctx)
	}
	rs := r.all()[i]
	if sameTemplate(&r.d.Spec.Template, &rs.Spec.Template) {
		warn("DeploymentRollbackTemplateUnchanged", fmt.Sprintf("The rollback revision contains the same template as current deployment %q", r.d.Name))
		return r.finishRollback(ctx)
	}
	template := rs.Spec.Template.DeepCopy()
	template.Labels = withoutHash(template.Labels)
	r.d.Spec.Template = *template
	// Restore the change cause together with the template: a ReplicaSet has the annotations that
	// the Deployment had when the ReplicaSet was created.
	annotations := maps.Clone(r.d.Annotations)
	maps.DeleteFunc(annotations, func(key, _ string) bool { return !ownAnnotations[key] })
	for key, value := range rs.Annotations {
		if !ownAnnotations[key] {
			annotations[key] = value
		}
	}
	r.d.Annotations = annotations
	if err := r.finishRollback(ctx); err != nil {
		return err
	}
	r.env.Events.Eventf(r.d, corev1.EventTypeNormal, "DeploymentRollback", "Rolled back deployment %q to revision %d", r.d.Name, rev)
	return nil
}

// finishRollback removes the rollback annotation and updates the Deployment in the API server.
func (r *rollout) finishRollback(ctx context.Context) error {
	delete(r.d.Annotations, rollbackAnnotation)
	_, err := r.env.Kube.AppsV1().Deployments(r.d.Namespace).Update(ctx, r.d, metav1.UpdateOptions{})
	return err
}

// lastRevision returns the second highest revision of the ReplicaSets, which is the one before the current revision, or
// 0 if there is none.
func lastRevision(sets []*appsv1.ReplicaSet) int64 {
	var most, second int64
	for _, rs := range sets {
		switch n := revision(rs.Annotations); {
		case n >= most:
			most, second = n, most
		case n > second:
			second = n
		}
	}
	return second
}
