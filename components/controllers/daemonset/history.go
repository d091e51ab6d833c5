package daemonset

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/components/controllers/internal/revision"
)

// history contains the ControllerRevisions of a DaemonSet, each of which stores one version of its pod template.
type history struct {
	// hash is the revision hash of pods with the current template.
	hash string
	// old are the revisions of former templates, the oldest first.
	old []*appsv1.ControllerRevision
}

// history returns the revisions of a DaemonSet. If the current template has no revision, it creates one. After a hash
// collision, it increments the collision count and returns an error, so that the sync is retried.
func (c *Controller) history(ctx context.Context, ds *appsv1.DaemonSet, selector labels.Selector) (history, error) {
	all, err := revision.Claim(ctx, c.env.Kube, c.revisions, &revision.Claimer{Owner: ds, Kind: Kind, Selector: selector, CanAdopt: c.canAdopt(ds)})
	if err != nil {
		return history{}, err
	}
	data, err := revision.Data(&ds.Spec.Template)
	if err != nil {
		return history{}, err
	}
	var h history
	var same []*appsv1.ControllerRevision
	for _, r := range all {
		if string(r.Data.Raw) == string(data) {
			same = append(same, r)
			continue
		}
		h.old = append(h.old, r)
	}
	current, err := c.merge(ctx, ds, same)
	if err != nil {
		return history{}, err
	}
	number := revision.NextNumber(h.old)
	if current != nil {
		// A former template that is current again gets the newest revision number.
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
	rev.Annotations = ds.Annotations
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

// merge removes duplicates among same, the revisions of a DaemonSet that store the same template. It keeps the last
// one, changes the revision label of the DaemonSet's pods to its hash, and deletes the others. It returns the last
// one, or nil if same is empty.
func (c *Controller) merge(ctx context.Context, ds *appsv1.DaemonSet, same []*appsv1.ControllerRevision) (*appsv1.ControllerRevision, error) {
	if len(same) == 0 {
		return nil, nil
	}
	last := same[len(same)-1]
	if len(same) == 1 {
		return last, nil
	}
	hash := last.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]
	pods, err := control.Owned[*corev1.Pod](c.podIndex, ds, false)
	if err != nil {
		return nil, err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]string{appsv1.DefaultDaemonSetUniqueLabelKey: hash}}})
	if err != nil {
		return nil, err
	}
	for _, p := range pods {
		if p.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] == hash {
			continue
		}
		if _, err := c.env.Kube.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return nil, fmt.Errorf("setting revision of pod %s to %s: %w", p.Name, hash, err)
		}
	}
	none := func(*appsv1.ControllerRevision) bool { return false }
	return last, revision.Prune(ctx, c.env.Kube, same[:len(same)-1], none, 0)
}

// prune deletes the oldest revisions that no pod uses, beyond spec.revisionHistoryLimit, which is 10 by default.
// Revisions that pods use count towards the limit.
func (c *Controller) prune(ctx context.Context, ds *appsv1.DaemonSet, h history, pods []*corev1.Pod) error {
	limit := 10
	if ds.Spec.RevisionHistoryLimit != nil {
		limit = int(*ds.Spec.RevisionHistoryLimit)
	}
	live := map[string]bool{}
	for _, p := range pods {
		live[p.Labels[appsv1.ControllerRevisionHashLabelKey]] = true
	}
	inUse := func(r *appsv1.ControllerRevision) bool {
		return live[r.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]]
	}
	// Revisions in use count towards the limit, but are kept.
	for _, r := range h.old {
		if inUse(r) {
			limit--
		}
	}
	return revision.Prune(ctx, c.env.Kube, h.old, inUse, max(0, limit))
}
