package daemonset

import (
	"context"
	"errors"
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/components/controllers/internal/revision"
)

// history is what is known of a DaemonSet's templates.
type history struct {
	// hash marks the pods of the present one.
	hash string
	// old are the others' revisions, the oldest first.
	old []*appsv1.ControllerRevision
}

// history finds or makes the revision of the present template.
func (c *Controller) history(ctx context.Context, ds *appsv1.DaemonSet, selector labels.Selector) (history, error) {
	all, err := revision.Claim(ctx, c.env.Kube, c.revisions, ds, Kind, selector, c.canAdopt(ds))
	if err != nil {
		return history{}, err
	}
	data, err := revision.Data(&ds.Spec.Template)
	if err != nil {
		return history{}, err
	}
	var h history
	var current *appsv1.ControllerRevision
	for _, r := range all {
		if string(r.Data.Raw) == string(data) {
			if current != nil {
				h.old = append(h.old, current)
			}
			current = r
			continue
		}
		h.old = append(h.old, r)
	}
	number := revision.NextNumber(h.old)
	if current != nil {
		// A template that was taken up again is the newest.
		if current.Revision < number {
			if current, err = revision.Renumber(ctx, c.env.Kube, current, number); err != nil {
				return history{}, err
			}
		}
		h.hash = current.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]
		return h, nil
	}
	h.hash = control.TemplateHash(&ds.Spec.Template, ds.Status.CollisionCount)
	meta := maps.Clone(ds.Spec.Template.Labels)
	if meta == nil {
		meta = map[string]string{}
	}
	meta[appsv1.DefaultDaemonSetUniqueLabelKey] = h.hash
	rev := revision.New(ds, Kind, meta, data, number, ds.Name+"-"+h.hash)
	_, err = revision.Create(ctx, c.env.Kube, rev)
	if errors.Is(err, revision.ErrCollision) {
		next := ds.DeepCopy()
		n := int32(1)
		if next.Status.CollisionCount != nil {
			n += *next.Status.CollisionCount
		}
		next.Status.CollisionCount = &n
		if _, statusErr := c.env.Kube.AppsV1().DaemonSets(ds.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{}); statusErr != nil {
			return history{}, statusErr
		}
	}
	return h, err
}

// prune deletes old revisions beyond the limit that no pod is of.
func (c *Controller) prune(ctx context.Context, ds *appsv1.DaemonSet, h history, pods []*corev1.Pod) error {
	limit := 10
	if ds.Spec.RevisionHistoryLimit != nil {
		limit = int(*ds.Spec.RevisionHistoryLimit)
	}
	live := map[string]bool{}
	for _, p := range pods {
		live[p.Labels[appsv1.ControllerRevisionHashLabelKey]] = true
	}
	return revision.Prune(ctx, c.env.Kube, h.old, func(r *appsv1.ControllerRevision) bool {
		return live[r.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]]
	}, limit)
}
