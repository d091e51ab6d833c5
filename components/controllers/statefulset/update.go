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
	"hyperkube/internal/podfacts"
)

// update is one sync of one StatefulSet. It is used by one goroutine.
type update struct {
	*Controller
	set  *appsv1.StatefulSet // our own copy
	pods []*corev1.Pod       // shared

	// all are the revisions, current the one that a rollout leaves, next the
	// one that it leads to.
	all           []*appsv1.ControllerRevision
	current, next *appsv1.ControllerRevision
	collisions    int32
	// replicas are the pods of the ordinals from start on, those that are to be
	// made being marked in missing; condemned are the others, the last first.
	replicas, condemned []*corev1.Pod
	missing             []bool
	// outdated are the pods that this sync deleted for an update.
	outdated int32
}

// revise finds or makes the revisions.
func (u *update) revise(ctx context.Context, selector labels.Selector) error {
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
	if n := len(all); u.next == nil && n > 0 && u.means(all[n-1], data) {
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

// means tells whether a revision is one of the present template, though an older
// version wrote it: with zeros that are left out by now, or without what is
// defaulted by now. A new one would have all pods made anew, the same as before.
func (u *update) means(r *appsv1.ControllerRevision, data []byte) bool {
	set, err := u.restored(r)
	if err != nil {
		return false
	}
	pod.DefaultTemplate(&set.Spec.Template)
	now, err := revision.Data(&set.Spec.Template)
	return err == nil && bytes.Equal(now, data)
}

// at returns the set as it was at a revision.
func (u *update) at(r *appsv1.ControllerRevision) (*appsv1.StatefulSet, error) {
	if r.Name == u.next.Name {
		return u.set, nil
	}
	return u.restored(r)
}

// restored is the set with the template of a revision.
func (u *update) restored(r *appsv1.ControllerRevision) (*appsv1.StatefulSet, error) {
	raw, err := json.Marshal(u.set)
	if err != nil {
		return nil, err
	}
	patched, err := strategicpatch.StrategicMergePatch(raw, r.Data.Raw, u.set)
	if err != nil {
		return nil, fmt.Errorf("reading revision %s: %w", r.Name, err)
	}
	out := &appsv1.StatefulSet{}
	if err := json.Unmarshal(patched, out); err != nil {
		return nil, fmt.Errorf("reading revision %s: %w", r.Name, err)
	}
	return out, nil
}

func partition(set *appsv1.StatefulSet) (int, bool) {
	if r := set.Spec.UpdateStrategy.RollingUpdate; r != nil && r.Partition != nil {
		return int(*r.Partition), true
	}
	return 0, false
}

// blank makes the pod of an ordinal that has none, from the revision that it
// belongs to.
func (u *update) blank(ordinal int) (*corev1.Pod, error) {
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
	set, err := u.at(r)
	if err != nil {
		return nil, err
	}
	return newPod(set, r.Name, ordinal), nil
}

func revisionOf(p *corev1.Pod) string { return p.Labels[appsv1.ControllerRevisionHashLabelKey] }

func (u *update) available(p *corev1.Pod) bool {
	return control.IsAvailable(p, u.set.Spec.MinReadySeconds, u.env.Clock.Now())
}

// down tells whether a pod counts as unavailable.
func (u *update) down(p *corev1.Pod) bool { return !u.available(p) || p.DeletionTimestamp != nil }

// ordered tells whether each pod waits for those before it.
func (u *update) ordered() bool {
	return u.set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement
}

// sort puts each pod into its place and fills the empty places with blank ones.
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
		if u.replicas[i], err = u.blank(first + i); err != nil {
			return err
		}
	}
	return nil
}

// work does the next step, or with parallel management the next step of each.
func (u *update) work(ctx context.Context) error {
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
		wait, err := u.replica(ctx, i)
		if err != nil {
			return err
		}
		if wait && u.ordered() {
			return nil
		}
	}
	for _, p := range u.condemned {
		if err := u.settleClaims(ctx, set, p); err != nil {
			return err
		}
	}
	unhealthy := u.firstDown()
	for _, p := range u.condemned {
		if err := u.condemn(ctx, p, unhealthy); err != nil || u.ordered() {
			return err
		}
	}
	if set.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType {
		return nil
	}
	return u.roll(ctx)
}

// firstDown is the pod that scaling down may take first; nil if all work.
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

// replica brings the i-th pod to life; it tells whether those after it have to
// wait.
func (u *update) replica(ctx context.Context, i int) (wait bool, err error) {
	set, p, ordinal := u.set, u.replicas[i], start(u.set)+i
	if podfacts.Terminal(p) {
		// The next is made when this one is gone.
		if p.DeletionTimestamp == nil {
			return true, u.delete(ctx, set, p)
		}
		return true, nil
	}
	if u.missing[i] {
		if u.claimsOfAnother(set, p, ordinal) {
			return true, nil
		}
		return true, u.create(ctx, set, p, ordinal)
	}
	if p.Status.Phase == corev1.PodPending {
		if err := u.ensureClaims(ctx, set, p, ordinal); err != nil {
			return true, err
		}
		if err := u.settleClaims(ctx, set, p); err != nil {
			u.record(set, p, "update", err)
			return true, err
		}
	}
	if u.ordered() && (u.down(p) || p.Status.Phase != corev1.PodRunning) {
		return true, nil
	}
	if isItself(set, p, ordinal) && u.claimsSettled(set, p) {
		return false, nil
	}
	err = u.amend(ctx, p, ordinal)
	u.record(set, p, "update", err)
	return err != nil, err
}

// amend gives a pod what tells it from the others, and its claims.
func (u *update) amend(ctx context.Context, p *corev1.Pod, ordinal int) error {
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
		if err := u.settleClaims(ctx, set, next); err != nil {
			return err
		}
		_, err := pods.Update(ctx, next, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) {
			// It changed meanwhile, as new pods do often.
			if now, getErr := pods.Get(ctx, p.Name, metav1.GetOptions{}); getErr == nil && now.UID == p.UID {
				next = now
			}
		}
		return err
	})
}

// condemn ends a pod beyond the wanted number. Where there is an order the next has to
// wait, whatever came of it.
func (u *update) condemn(ctx context.Context, p, unhealthy *corev1.Pod) error {
	if p.DeletionTimestamp != nil {
		return nil
	}
	// One of the others is in trouble: none that works is ended before.
	if u.ordered() && p != unhealthy && (!u.available(p) || p.Status.Phase != corev1.PodRunning) {
		return nil
	}
	return u.delete(ctx, u.set, p)
}

// mostDown is how many pods may be unavailable during a rollout, at least one.
func mostDown(set *appsv1.StatefulSet) (int, error) {
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

// roll deletes the pods of an older revision, the last first, as many at once
// as may be unavailable. With parallel management those that are down already
// go at once: they cost nothing.
//
// https://kep.k8s.io/961
func (u *update) roll(ctx context.Context) error {
	most, err := mostDown(u.set)
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
				// In order there is one round, in which each counts.
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

// outOfDate tells whether a pod is to be replaced by an update.
func (u *update) outOfDate(p *corev1.Pod) bool {
	return revisionOf(p) != u.next.Name && p.DeletionTimestamp == nil
}

// status counts the pods.
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
		if p.Status.Phase == corev1.PodRunning && podfacts.Ready(p) {
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
