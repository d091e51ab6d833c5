package deployment

import (
	"context"
	"fmt"
	"maps"
	"sort"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/internal/pod/podutil"
)

// rollout is the state of one sync of one Deployment: the Deployment and its new and old ReplicaSets. It is not safe
// for concurrent use.
type rollout struct {
	*Controller
	// d is a private copy of the Deployment, updated after every write.
	d *appsv1.Deployment
	// owned are all its ReplicaSets. They are shared with the cache and read-only, unless replaced
	// by the result of an update.
	owned []*appsv1.ReplicaSet

	// new is the ReplicaSet with the Deployment's current pod template, or nil if it does not exist.
	// old are the others. find sets both.
	new *appsv1.ReplicaSet
	old []*appsv1.ReplicaSet
}

// all returns the old ReplicaSets of the Deployment, followed by the new one if it exists.
func (r *rollout) all() []*appsv1.ReplicaSet {
	out := append([]*appsv1.ReplicaSet(nil), r.old...)
	if r.new != nil {
		out = append(out, r.new)
	}
	return out
}

// find determines the new ReplicaSet of the Deployment, which has its current pod template, and the old ones, and
// stores them in r.new and r.old. It updates the annotations of the new ReplicaSet and the revision of the Deployment.
// If there is no new ReplicaSet, find creates it if create is true, and otherwise leaves r.new nil.
func (r *rollout) find(ctx context.Context, create bool) error {
	existing := findNew(r.d, r.owned)
	r.old = withoutSet(r.owned, existing)
	rev := maxRevision(r.old) + 1
	if existing != nil {
		rs := existing.DeepCopy()
		changed := setNewAnnotations(r.d, rs, rev, true)
		if changed || rs.Spec.MinReadySeconds != r.d.Spec.MinReadySeconds {
			rs.Spec.MinReadySeconds = r.d.Spec.MinReadySeconds
			updated, err := r.env.Kube.AppsV1().ReplicaSets(rs.Namespace).Update(ctx, rs, metav1.UpdateOptions{})
			if err != nil {
				return err
			}
			r.new = updated
			return nil
		}
		r.new = existing
		note := setRevision(r.d, rs.Annotations[revisionAnnotation])
		if hasDeadline(r.d) && condition(&r.d.Status, appsv1.DeploymentProgressing) == nil {
			r.set(&r.d.Status, appsv1.DeploymentProgressing, corev1.ConditionTrue, foundNewRS, fmt.Sprintf("Found new replica set %q", rs.Name))
			note = true
		}
		if note {
			return r.writeRevision(ctx)
		}
		return nil
	}
	if !create {
		return nil
	}
	return r.create(ctx, rev)
}

// writeRevision writes the annotations and conditions of the Deployment. For Deployments, the status subresource also
// updates annotations, as upstream's does.
func (r *rollout) writeRevision(ctx context.Context) error { return r.writeStatus(ctx, r.d) }

// create creates the new ReplicaSet with the revision rev and the size that the rollout allows now. After a hash
// collision it increments the collision count and returns an error, so that the sync is retried. If the namespace is
// terminating, it does nothing.
func (r *rollout) create(ctx context.Context, rev int64) error {
	d := r.d
	template := d.Spec.Template.DeepCopy()
	hash := control.TemplateHash(template, d.Status.CollisionCount)
	template.Labels = withLabel(d.Spec.Template.Labels, appsv1.DefaultDeploymentUniqueLabelKey, hash)
	selector := d.Spec.Selector.DeepCopy()
	selector.MatchLabels = withLabel(selector.MatchLabels, appsv1.DefaultDeploymentUniqueLabelKey, hash)
	zero := int32(0)
	rs := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Name:            setName(d.Name, hash),
			Namespace:       d.Namespace,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, Kind)},
			Labels:          template.Labels,
		},
		Spec: appsv1.ReplicaSetSpec{
			Replicas:        &zero,
			MinReadySeconds: d.Spec.MinReadySeconds,
			Selector:        selector,
			Template:        *template,
		},
	}
	size := newSize(d, append(append([]*appsv1.ReplicaSet(nil), r.old...), rs), rs)
	rs.Spec.Replicas = &size
	setNewAnnotations(d, rs, rev, false)

	existed := false
	made, err := r.env.Kube.AppsV1().ReplicaSets(d.Namespace).Create(ctx, rs, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		existed = true
		there, getErr := r.sets.ReplicaSets(rs.Namespace).Get(rs.Name)
		if getErr != nil {
			// The ReplicaSet is not in the cache yet: retry.
			return getErr
		}
		ref := metav1.GetControllerOfNoCopy(there)
		if ref == nil || ref.UID != d.UID || !sameTemplate(&d.Spec.Template, &there.Spec.Template) {
			// Another template has the same hash, or another owner uses the name: the retry
			// includes the collision count in the hash.
			n := int32(1)
			if d.Status.CollisionCount != nil {
				n += *d.Status.CollisionCount
			}
			d.Status.CollisionCount = &n
			if statusErr := r.writeStatus(ctx, d); statusErr != nil {
				return statusErr
			}
			return err
		}
		made = there
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	case err != nil:
		msg := fmt.Sprintf("Failed to create new replica set %q: %v", rs.Name, err)
		if hasDeadline(d) {
			r.set(&d.Status, appsv1.DeploymentProgressing, corev1.ConditionFalse, failedCreateRS, msg)
			// The error of the creation is returned and retried; an error of this write is ignored.
			_ = r.writeStatus(ctx, d)
		}
		r.env.Events.Event(d, corev1.EventTypeWarning, failedCreateRS, msg)
		return err
	}
	r.new = made
	if !existed && size > 0 {
		r.env.Events.Eventf(d, corev1.EventTypeNormal, "ScalingReplicaSet", "Scaled up replica set %s from 0 to %d", made.Name, size)
	}
	note := setRevision(d, strconv.FormatInt(rev, 10))
	if !existed && hasDeadline(d) {
		r.set(&d.Status, appsv1.DeploymentProgressing, corev1.ConditionTrue, newRSCreated, fmt.Sprintf("Created new replica set %q", made.Name))
		note = true
	}
	if note {
		return r.writeRevision(ctx)
	}
	return nil
}

// setName returns the name of the ReplicaSet of a template. A long Deployment name is truncated so
// that the hash fits.
func setName(deployment, hash string) string {
	end := "-" + hash
	return deployment[:min(len(deployment), max(0, validation.DNS1123SubdomainMaxLength-len(end)))] + end
}

// withLabel returns a copy of m with the label key set to value.
func withLabel(m map[string]string, key, value string) map[string]string {
	out := make(map[string]string, len(m)+1)
	maps.Copy(out, m)
	out[key] = value
	return out
}

// scale sets the size of a ReplicaSet and records the Deployment's desired size in its annotations, in one update. It
// replaces rs in new or old by the result, emits an event and reports whether the size changed.
func (r *rollout) scale(ctx context.Context, rs *appsv1.ReplicaSet, size int32) (bool, error) {
	want := replicas(r.d.Spec.Replicas)
	before := replicas(rs.Spec.Replicas)
	next := rs.DeepCopy()
	noted := setReplicaAnnotations(next, want, want+maxSurge(r.d))
	if before == size && !noted {
		return false, nil
	}
	next.Spec.Replicas = &size
	updated, err := r.env.Kube.AppsV1().ReplicaSets(rs.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return false, err
	}
	if r.new != nil && r.new.UID == rs.UID {
		r.new = updated
	}
	for i := range r.old {
		if r.old[i].UID == rs.UID {
			r.old[i] = updated
		}
	}
	if before != size {
		op := "up"
		if size < before {
			op = "down"
		}
		r.env.Events.Eventf(r.d, corev1.EventTypeNormal, "ScalingReplicaSet", "Scaled %s replica set %s from %d to %d", op, rs.Name, before, size)
	}
	return before != size, nil
}

// resize does the same as scale, but writes nothing if the ReplicaSet already has the size, even if its annotations
// are outdated.
func (r *rollout) resize(ctx context.Context, rs *appsv1.ReplicaSet, size int32) (bool, error) {
	if replicas(rs.Spec.Replicas) == size {
		return false, nil
	}
	return r.scale(ctx, rs, size)
}

// isScaling reports whether spec.replicas of the Deployment has changed since its active ReplicaSets were last scaled.
// The sync then scales them in proportion before it continues the rollout.
func (r *rollout) isScaling() bool {
	for _, rs := range activeSets(r.owned) {
		if n, ok := intAnnotation(rs, desiredReplicasAnnotation); ok && n != replicas(r.d.Spec.Replicas) {
			return true
		}
	}
	return false
}

// scaleOnly applies a change of spec.replicas without rolling out a new pod template. It is also used for paused
// Deployments.
func (r *rollout) scaleOnly(ctx context.Context) error {
	if err := r.find(ctx, false); err != nil {
		return err
	}
	if err := r.scaleProportionally(ctx); err != nil {
		return err
	}
	if r.d.Spec.Paused {
		if err := r.cleanup(ctx); err != nil {
			return err
		}
	}
	return r.syncStatus(ctx)
}

// scaleProportionally scales the only active ReplicaSet to the desired size. During a rollout it distributes the
// desired size over the active ReplicaSets in proportion to their sizes.
func (r *rollout) scaleProportionally(ctx context.Context) error {
	if rs := activeOrLatest(r.new, r.old); rs != nil {
		_, err := r.resize(ctx, rs, replicas(r.d.Spec.Replicas))
		return err
	}
	if isSaturated(r.d, r.new) {
		for _, rs := range activeSets(r.old) {
			if _, err := r.resize(ctx, rs, 0); err != nil {
				return err
			}
		}
		return nil
	}
	if !isRolling(r.d) {
		return nil
	}
	active := activeSets(r.all())
	sizes := proportions(r.d, active)
	for _, rs := range active {
		if _, err := r.scale(ctx, rs, sizes[rs.Name]); err != nil {
			return err
		}
	}
	return nil
}

// recreate implements the strategy Recreate: it terminates all old pods before it creates new ones. Deletions of pods
// trigger the next sync.
func (r *rollout) recreate(ctx context.Context) error {
	if err := r.find(ctx, false); err != nil {
		return err
	}
	scaledDown := false
	for _, rs := range activeSets(r.old) {
		changed, err := r.resize(ctx, rs, 0)
		if err != nil {
			return err
		}
		scaledDown = scaledDown || changed
	}
	if scaledDown {
		return r.syncProgress(ctx)
	}
	running, err := r.oldPodsRun()
	if err != nil {
		return err
	}
	if running {
		return r.syncProgress(ctx)
	}
	if r.new == nil {
		if err := r.find(ctx, true); err != nil || r.new == nil {
			return err
		}
	}
	if _, err := r.resize(ctx, r.new, replicas(r.d.Spec.Replicas)); err != nil {
		return err
	}
	if complete(r.d, &r.d.Status) {
		if err := r.cleanup(ctx); err != nil {
			return err
		}
	}
	return r.syncProgress(ctx)
}

// oldPodsRun reports whether a pod of an old ReplicaSet may still be running.
func (r *rollout) oldPodsRun() (bool, error) {
	if actualReplicas(r.old) > 0 {
		return true, nil
	}
	for _, rs := range r.old {
		pods, err := control.Owned[*corev1.Pod](r.podIndex, rs, false)
		if err != nil {
			return false, err
		}
		for _, p := range pods {
			// A pod with an unknown phase, on a lost node, may be running as well.
			if !podutil.Terminal(p) {
				return true, nil
			}
		}
	}
	return false, nil
}

// rollingUpdate implements the strategy RollingUpdate: it scales up the new ReplicaSet as far as maxSurge allows, or
// else scales down old ones as far as maxUnavailable allows. When the rollout is complete, it deletes old ReplicaSets
// beyond the history limit.
func (r *rollout) rollingUpdate(ctx context.Context) error {
	if err := r.find(ctx, true); err != nil || r.new == nil {
		return err
	}
	size := replicas(r.d.Spec.Replicas)
	if replicas(r.new.Spec.Replicas) < size {
		size = newSize(r.d, r.all(), r.new)
	}
	up, err := r.resize(ctx, r.new, size)
	if err != nil {
		return err
	}
	if up {
		return r.syncProgress(ctx)
	}
	down, err := r.scaleDownOld(ctx)
	if err != nil {
		return err
	}
	if !down && complete(r.d, &r.d.Status) {
		if err := r.cleanup(ctx); err != nil {
			return err
		}
	}
	return r.syncProgress(ctx)
}

// scaleDownOld scales down old ReplicaSets as far as the minimum number of available pods allows, first by their
// unavailable pods. It reports whether it has scaled one down.
func (r *rollout) scaleDownOld(ctx context.Context) (bool, error) {
	old := activeSets(r.old)
	if desiredReplicas(old) == 0 {
		return false, nil
	}
	minAvailable := replicas(r.d.Spec.Replicas) - maxUnavailable(r.d)
	newUnavailable := replicas(r.new.Spec.Replicas) - r.new.Status.AvailableReplicas
	budget := desiredReplicas(r.all()) - minAvailable - newUnavailable
	if budget <= 0 {
		return false, nil
	}
	olderFirst(old)
	total := int32(0)
	for _, rs := range old {
		size := replicas(rs.Spec.Replicas)
		n := min(budget-total, size-rs.Status.AvailableReplicas)
		if n <= 0 {
			continue
		}
		if _, err := r.resize(ctx, rs, size-n); err != nil {
			return false, err
		}
		total += n
	}
	// The sizes changed, so determine the active ReplicaSets again.
	old = activeSets(r.old)
	olderFirst(old)
	budget = availableReplicas(r.all()) - minAvailable
	for _, rs := range old {
		size := replicas(rs.Spec.Replicas)
		n := min(budget, size)
		if n <= 0 {
			continue
		}
		if _, err := r.resize(ctx, rs, size-n); err != nil {
			return false, err
		}
		budget -= n
		total += n
	}
	return total > 0, nil
}

// cleanup deletes the oldest ReplicaSets beyond spec.revisionHistoryLimit that have no pods.
func (r *rollout) cleanup(ctx context.Context) error {
	if !hasHistoryLimit(r.d) {
		return nil
	}
	var sets []*appsv1.ReplicaSet
	for _, rs := range r.old {
		if rs.DeletionTimestamp == nil {
			sets = append(sets, rs)
		}
	}
	excess := len(sets) - int(*r.d.Spec.RevisionHistoryLimit)
	if excess <= 0 {
		return nil
	}
	sort.SliceStable(sets, func(i, j int) bool {
		a, b := revision(sets[i].Annotations), revision(sets[j].Annotations)
		if a != b {
			return a < b
		}
		return older(sets[i], sets[j])
	})
	for _, rs := range sets[:excess] {
		if rs.Status.Replicas != 0 || replicas(rs.Spec.Replicas) != 0 || rs.Generation > rs.Status.ObservedGeneration {
			continue
		}
		err := r.env.Kube.AppsV1().ReplicaSets(rs.Namespace).Delete(ctx, rs.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}
