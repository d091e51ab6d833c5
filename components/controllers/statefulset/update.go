package statefulset

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/util/retry"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/components/controllers/internal/revision"
	"hyperkube/internal/api/core/pod"
	"hyperkube/internal/pod/podutil"
)

// update is the state of one sync of one StatefulSet: its pods, its revisions and the progress of a rollout. It is not
// safe for concurrent use.
type update struct {
	*Controller
	set  *appsv1.StatefulSet // a private copy
	pods []*corev1.Pod       // shared with the cache; read-only

	// all are the set's revisions. A rollout replaces current with next; both are equal if there is
	// none.
	all           []*appsv1.ControllerRevision
	current, next *appsv1.ControllerRevision
	collisions    int32
	// replicas are the pods of the desired ordinals. Those that must be created are marked in
	// missing. condemned are the other pods, in descending order.
	replicas, condemned []*corev1.Pod
	missing             []bool
	// outdated is the number of pods that this sync deleted for an update.
	outdated int32
}

// findRevisions sets the revisions of the StatefulSet: next for the current pod template, which is created if it does
// not exist, and current for the revision that a rollout replaces. After a hash collision, it increments the collision
// count and returns an error, so that the sync is retried.
func (u *update) findRevisions(ctx context.Context, selector labels.Selector) error {
	set := u.set
	all, err := revision.Claim(ctx, u.env.Kube, u.revisions, &revision.Claimer{Owner: set, Kind: Kind, Selector: selector, CanAdopt: u.canAdopt(set)})
	if err != nil {
		return err
	}
	u.all = all
	if set.Status.CollisionCount != nil {
		u.collisions = *set.Status.CollisionCount
	}
	data, err := revision.Data(&set.Spec.Template)
	if err != nil {
		return err
	}
	for _, r := range all {
		if string(r.Data.Raw) == string(data) {
			u.next = r
		}
		if r.Name == set.Status.CurrentRevision {
			u.current = r
		}
	}
	if n := len(all); u.next == nil && n > 0 && u.sameTemplate(all[n-1], data) {
		u.next = all[n-1]
	}
	number := revision.NextNumber(all)
	switch {
	case u.next != nil && u.next.Revision+1 < number:
		if u.next, err = revision.Renumber(ctx, u.env.Kube, u.next, number); err != nil {
			return err
		}
	case u.next == nil:
		hash := revision.Hash(data, &u.collisions)
		meta := maps.Clone(set.Spec.Template.Labels)
		if meta == nil {
			meta = map[string]string{}
		}
		meta[hashLabel] = hash
		rev := revision.New(set, Kind, meta, data, number, set.Name+"-"+hash)
		rev.Annotations = maps.Clone(set.Annotations)
		u.next, err = revision.Create(ctx, u.env.Kube, rev)
		if errors.Is(err, revision.ErrCollision) {
			n := u.collisions + 1
			s := *set.Status.DeepCopy()
			s.CollisionCount = &n
			if statusErr := u.writeStatus(ctx, set, s); statusErr != nil {
				return statusErr
			}
		}
		if err != nil {
			return err
		}
	}
	if u.current == nil {
		u.current = u.next
	}
	return nil
}

// sameTemplate reports whether a revision contains the current pod template although its data differs, because an older
// version serialized it with zero values or without new defaults. data is that of the current template. A new revision
// would cause a rollout that recreates all pods without a change.
func (u *update) sameTemplate(r *appsv1.ControllerRevision, data []byte) bool {
	set, err := u.restored(r)
	if err != nil {
		return false
	}
	pod.DefaultTemplate(&set.Spec.Template)
	now, err := revision.Data(&set.Spec.Template)
	return err == nil && bytes.Equal(now, data)
}

// setAt returns the StatefulSet with the pod template of a revision. For the current template it returns u.set itself,
// so the result must not be modified.
func (u *update) setAt(r *appsv1.ControllerRevision) (*appsv1.StatefulSet, error) {
	if r.Name == u.next.Name {
		return u.set, nil
	}
	return u.restored(r)
}

// restored returns a copy of the StatefulSet with the pod template of a revision.
func (u *update) restored(r *appsv1.ControllerRevision) (*appsv1.StatefulSet, error) {
	raw, err := json.Marshal(u.set)
	if err != nil {
		return nil, err
	}
	patched, err := strategicpatch.StrategicMergePatch(raw, r.Data.Raw, u.set)
	if err != nil {
		return nil, fmt.Errorf("applying revision %s: %w", r.Name, err)
	}
	out := &appsv1.StatefulSet{}
	if err := json.Unmarshal(patched, out); err != nil {
		return nil, fmt.Errorf("decoding revision %s: %w", r.Name, err)
	}
	return out, nil
}

// partition returns spec.updateStrategy.rollingUpdate.partition: pods with a lower ordinal are not updated. It returns
// false if the partition is not set.
func partition(set *appsv1.StatefulSet) (int, bool) {
	if r := set.Spec.UpdateStrategy.RollingUpdate; r != nil && r.Partition != nil {
		return int(*r.Partition), true
	}
	return 0, false
}

// newReplica returns the pod to create for an ordinal. It has the old revision if the ordinal is below the partition
// or, without a partition, if the rollout has not reached it yet. With the update strategy OnDelete it always has the
// new one.
func (u *update) newReplica(ordinal int) (*corev1.Pod, error) {
	r := u.next
	if u.set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType {
		bound, partitioned := partition(u.set)
		if !partitioned {
			bound = int(u.set.Status.CurrentReplicas)
		}
		if ordinal < start(u.set)+bound {
			r = u.current
		}
	}
	set, err := u.setAt(r)
	if err != nil {
		return nil, err
	}
	return newPod(set, r.Name, ordinal), nil
}

// revisionOf returns the name of the revision from which p was created.
func revisionOf(p *corev1.Pod) string { return p.Labels[appsv1.ControllerRevisionHashLabelKey] }

func (u *update) available(p *corev1.Pod) bool {
	return control.IsAvailable(p, u.set.Spec.MinReadySeconds, u.env.Clock.Now())
}

// down reports whether a pod counts as unavailable during a rollout: it is not available or is being deleted.
func (u *update) down(p *corev1.Pod) bool { return !u.available(p) || p.DeletionTimestamp != nil }

// ordered reports whether pods are created and deleted one at a time, in the order of ordinals (pod management policy
// OrderedReady).
func (u *update) ordered() bool {
	return u.set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement
}

// sort divides the pods into u.replicas, those with desired ordinals, and u.condemned, those to delete. For desired
// ordinals without a pod, it adds new pods, which are not created in the API server yet.
func (u *update) sort() error {
	first, n := start(u.set), size(u.set)
	u.replicas, u.missing = make([]*corev1.Pod, n), make([]bool, n)
	for _, p := range u.pods {
		o, ok := ordinalOf(u.set, p)
		switch {
		case !ok:
		case o >= first && o < first+n:
			u.replicas[o-first] = p
		default:
			u.condemned = append(u.condemned, p)
		}
	}
	slices.SortFunc(u.condemned, func(a, b *corev1.Pod) int {
		x, _ := ordinalOf(u.set, a)
		y, _ := ordinalOf(u.set, b)
		return y - x
	})
	for i, p := range u.replicas {
		if p != nil {
			continue
		}
		u.missing[i] = true
		var err error
		if u.replicas[i], err = u.newReplica(first + i); err != nil {
			return err
		}
	}
	return nil
}

// syncPods makes the next step towards the desired pods: it creates or repairs a replica, deletes a condemned pod, or
// replaces an outdated pod. With parallel pod management, it makes the next step for each pod. It changes no pods if
// the StatefulSet is being deleted. The update strategy Recreate, which is not supported, is an error.
func (u *update) syncPods(ctx context.Context) error {
	set := u.set
	if err := u.sort(); err != nil {
		return err
	}
	if set.DeletionTimestamp != nil {
		return nil
	}
	if set.Spec.UpdateStrategy.Type == appsv1.RecreateStatefulSetStrategyType {
		err := fmt.Errorf("statefulset %s/%s uses Recreate strategy but feature gate StatefulSetRecreateStrategy is disabled", set.Namespace, set.Name)
		u.env.Events.Event(set, corev1.EventTypeWarning, "UnknownStrategy", err.Error())
		return err
	}
	for i := range u.replicas {
		wait, err := u.syncReplica(ctx, i)
		if err != nil {
			return err
		}
		if wait && u.ordered() {
			return nil
		}
	}
	for _, p := range u.condemned {
		if err := u.updateClaimOwners(ctx, set, p); err != nil {
			return err
		}
	}
	unhealthy := u.firstDown()
	for _, p := range u.condemned {
		if err := u.deleteCondemned(ctx, p, unhealthy); err != nil || u.ordered() {
			return err
		}
	}
	if set.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType {
		return nil
	}
	return u.rollingUpdate(ctx)
}

// firstDown returns the first unavailable pod, or nil if all are available. With ordered pod management, scaling down
// may not delete any other unavailable pod.
func (u *update) firstDown() *corev1.Pod {
	for _, p := range u.replicas {
		if u.down(p) {
			return p
		}
	}
	for _, p := range slices.Backward(u.condemned) {
		if u.down(p) {
			return p
		}
	}
	return nil
}

// syncReplica creates the i-th replica if it is missing, deletes it if it has terminated, or repairs it. wait is true
// if the replicas after it must wait.
func (u *update) syncReplica(ctx context.Context, i int) (wait bool, err error) {
	set, p, ordinal := u.set, u.replicas[i], start(u.set)+i
	if podutil.Terminal(p) {
		// The replacement is created after this pod is deleted.
		if p.DeletionTimestamp == nil {
			return true, u.delete(ctx, set, p)
		}
		return true, nil
	}
	if u.missing[i] {
		if u.claimsOfFormerPod(set, p, ordinal) {
			return true, nil
		}
		return true, u.create(ctx, set, p, ordinal)
	}
	if p.Status.Phase == corev1.PodPending {
		if err := u.ensureClaims(ctx, set, p, ordinal); err != nil {
			return true, err
		}
		if err := u.updateClaimOwners(ctx, set, p); err != nil {
			u.record(set, p, "update", err)
			return true, err
		}
	}
	if u.ordered() && (u.down(p) || p.Status.Phase != corev1.PodRunning) {
		return true, nil
	}
	if hasIdentity(set, p, ordinal) && u.claimOwnersCorrect(set, p) {
		return false, nil
	}
	err = u.repairPod(ctx, p, ordinal)
	u.record(set, p, "update", err)
	return err != nil, err
}

// repairPod adds missing identity labels, claims and claim owners to the pod of an ordinal. It retries if the pod is
// updated concurrently.
func (u *update) repairPod(ctx context.Context, p *corev1.Pod, ordinal int) error {
	set, next := u.set, p.DeepCopy()
	pods := u.env.Kube.CoreV1().Pods(p.Namespace)
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		identify(next, ordinal)
		if !hasClaims(set, next, ordinal) {
			attach(set, next, ordinal)
			if err := u.ensureClaims(ctx, set, next, ordinal); err != nil {
				return err
			}
		}
		if err := u.updateClaimOwners(ctx, set, next); err != nil {
			return err
		}
		_, err := pods.Update(ctx, next, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) {
			// The pod was updated concurrently, which is frequent for new pods.
			if now, getErr := pods.Get(ctx, p.Name, metav1.GetOptions{}); getErr == nil && now.UID == p.UID {
				next = now
			}
		}
		return err
	})
}

// deleteCondemned deletes a pod that is not desired any more. With ordered pod management, it does not delete an
// unavailable pod other than unhealthy, the result of firstDown, and the caller waits for the next sync after the first
// condemned pod.
func (u *update) deleteCondemned(ctx context.Context, p, unhealthy *corev1.Pod) error {
	if p.DeletionTimestamp != nil {
		return nil
	}
	// If another pod is unhealthy, do not delete this one first.
	if u.ordered() && p != unhealthy && (!u.available(p) || p.Status.Phase != corev1.PodRunning) {
		return nil
	}
	return u.delete(ctx, u.set, p)
}

// maxUnavailable returns how many pods may be unavailable during a rollout. It is at least one.
func maxUnavailable(set *appsv1.StatefulSet) (int, error) {
	r := set.Spec.UpdateStrategy.RollingUpdate
	if r == nil || r.MaxUnavailable == nil {
		return 1, nil
	}
	v, err := intstr.GetScaledValueFromIntOrPercent(r.MaxUnavailable, size(set), false)
	if err != nil {
		return 0, fmt.Errorf("invalid value for maxUnavailable: %w", err)
	}
	return max(1, v), nil
}

// rollingUpdate deletes pods of an old revision in descending order of ordinals, as many as maxUnavailable allows, down
// to the partition. The next syncs create their replacements. With parallel pod management, it also deletes all
// outdated pods that are already unavailable.
//
// https://kep.k8s.io/961
func (u *update) rollingUpdate(ctx context.Context) error {
	most, err := maxUnavailable(u.set)
	if err != nil {
		return err
	}
	least, _ := partition(u.set)
	down, stale := 0, 0
	for _, p := range u.replicas {
		if u.down(p) {
			down++
			if !u.ordered() && u.outOfDate(p) {
				stale++
			}
		}
	}
	if down >= most && stale == 0 {
		return nil
	}
	left := most - down
	for _, late := range []bool{false, true} {
		for i := len(u.replicas) - 1; i >= least; i-- {
			p := u.replicas[i]
			if !u.outOfDate(p) {
				continue
			}
			switch {
			case u.ordered():
				// With ordered pod management there is only one round, in which each deleted pod
				// counts.
				if late || left <= 0 {
					continue
				}
				left--
			case !late && u.available(p), late && (left <= 0 || !u.available(p)):
				continue
			case late:
				left--
			}
			if err := u.delete(ctx, u.set, p); err != nil {
				return err
			}
			u.outdated++
		}
	}
	return nil
}

// outOfDate reports whether an update must replace a pod: it does not have the update revision, and is not already
// being deleted.
func (u *update) outOfDate(p *corev1.Pod) bool {
	return revisionOf(p) != u.next.Name && p.DeletionTimestamp == nil
}

// status computes the status of the StatefulSet from its pods and from the pods that this sync has deleted.
func (u *update) status() appsv1.StatefulSetStatus {
	set := u.set
	s := appsv1.StatefulSetStatus{
		ObservedGeneration: set.Generation,
		CurrentRevision:    u.current.Name,
		UpdateRevision:     u.next.Name,
		CollisionCount:     &u.collisions,
		Conditions:         set.Status.Conditions,
	}
	for _, p := range u.pods {
		s.Replicas++
		if p.Status.Phase == corev1.PodRunning && podutil.Ready(p) {
			s.ReadyReplicas++
			if u.available(p) {
				s.AvailableReplicas++
			}
		}
		if p.DeletionTimestamp != nil {
			continue
		}
		if revisionOf(p) == u.current.Name {
			s.CurrentReplicas++
		}
		if revisionOf(p) == u.next.Name {
			s.UpdatedReplicas++
		}
	}
	s.CurrentReplicas -= u.outdated
	n := int32(size(set))
	if s.UpdatedReplicas == n && s.ReadyReplicas == n && s.Replicas == n {
		s.CurrentReplicas, s.CurrentRevision = s.UpdatedReplicas, s.UpdateRevision
	}
	return s
}
