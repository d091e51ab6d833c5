package statefulset

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sort"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/components/controllers/internal/revision"
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
	collisions    *int32
	// made and gone correct the status for what this sync did.
	made []*corev1.Pod
	gone map[string]bool
}

// revise finds or makes the revisions.
func (u *update) revise(ctx context.Context, selector labels.Selector) error {
	set := u.set
	all, err := revision.Claim(ctx, u.env.Kube, u.revisions, set, Kind, selector, u.canAdopt(set))
	if err != nil {
		return err
	}
	u.all, u.collisions = all, set.Status.CollisionCount
	u.gone = map[string]bool{}
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
	number := revision.NextNumber(all)
	switch {
	case u.next != nil && u.next.Revision+1 < number:
		if u.next, err = revision.Renumber(ctx, u.env.Kube, u.next, number); err != nil {
			return err
		}
	case u.next == nil:
		hash := revision.Hash(data, u.collisions)
		meta := maps.Clone(set.Spec.Template.Labels)
		if meta == nil {
			meta = map[string]string{}
		}
		meta[hashLabel] = hash
		rev := revision.New(set, Kind, meta, data, number, set.Name+"-"+hash)
		rev.Annotations = maps.Clone(set.Annotations)
		delete(rev.Annotations, corev1.LastAppliedConfigAnnotation)
		u.next, err = revision.Create(ctx, u.env.Kube, rev)
		if errors.Is(err, revision.ErrCollision) {
			n := int32(1)
			if u.collisions != nil {
				n += *u.collisions
			}
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

// at returns the set as it was at a revision.
func (u *update) at(r *appsv1.ControllerRevision) (*appsv1.StatefulSet, error) {
	if r.Name == u.next.Name {
		return u.set, nil
	}
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
	return isHealthy(p) && control.IsAvailable(p, u.set.Spec.MinReadySeconds, u.env.Clock.Now())
}

// work does the next step, or with parallel management the next step of each.
func (u *update) work(ctx context.Context) error {
	set := u.set
	if set.DeletionTimestamp != nil {
		return nil
	}
	first, n := start(set), size(set)
	byOrdinal := map[int]*corev1.Pod{}
	var condemned []*corev1.Pod
	for _, p := range u.pods {
		o, ok := ordinalOf(set, p)
		if !ok {
			continue
		}
		if o >= first && o < first+n {
			byOrdinal[o] = p
		} else {
			condemned = append(condemned, p)
		}
	}
	sort.Slice(condemned, func(i, j int) bool {
		a, _ := ordinalOf(set, condemned[i])
		b, _ := ordinalOf(set, condemned[j])
		return a > b
	})
	ordered := set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement
	for o := first; o < first+n; o++ {
		wait, err := u.replica(ctx, byOrdinal[o], o)
		if err != nil {
			return err
		}
		if wait && ordered {
			return nil
		}
	}
	unhealthy := u.firstUnhealthy(byOrdinal, condemned)
	for _, p := range condemned {
		wait, err := u.condemn(ctx, p, unhealthy, ordered)
		if err != nil {
			return err
		}
		if wait && ordered {
			return nil
		}
	}
	if set.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType {
		return nil
	}
	return u.roll(ctx, byOrdinal)
}

// firstUnhealthy is the pod that scaling down may take first.
func (u *update) firstUnhealthy(byOrdinal map[int]*corev1.Pod, condemned []*corev1.Pod) *corev1.Pod {
	for o := start(u.set); o < start(u.set)+size(u.set); o++ {
		if p := byOrdinal[o]; p != nil && !isHealthy(p) {
			return p
		}
	}
	for i := len(condemned) - 1; i >= 0; i-- {
		if !isHealthy(condemned[i]) {
			return condemned[i]
		}
	}
	return nil
}

// replica brings the pod of an ordinal to life; it tells whether those after it
// have to wait.
func (u *update) replica(ctx context.Context, p *corev1.Pod, ordinal int) (wait bool, err error) {
	set := u.set
	if p != nil && control.IsTerminal(p) {
		if p.DeletionTimestamp != nil {
			return true, nil
		}
		reason, what := "RecreatingFailedPod", "failed"
		if p.Status.Phase == corev1.PodSucceeded {
			reason, what = "RecreatingTerminatedPod", "terminated"
		}
		u.env.Events.Eventf(set, corev1.EventTypeWarning, reason, "StatefulSet %s/%s is recreating %s Pod %s", set.Namespace, set.Name, what, p.Name)
		if err := u.delete(ctx, set, p); err != nil {
			return true, err
		}
		u.gone[p.Name] = true
		return true, nil
	}
	if p == nil {
		fresh, err := u.blank(ordinal)
		if err != nil {
			return true, err
		}
		if err := u.create(ctx, set, fresh, ordinal); err != nil {
			return true, err
		}
		u.made = append(u.made, fresh)
		return true, nil
	}
	if p.DeletionTimestamp != nil {
		return true, nil
	}
	if err := u.settleClaims(ctx, set, p, ordinal, false); err != nil {
		return true, err
	}
	if !u.available(p) {
		if set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement {
			return true, nil
		}
	}
	if isItself(set, p, ordinal) {
		return false, nil
	}
	next := p.DeepCopy()
	identify(next, ordinal)
	for _, claim := range claims(set, ordinal) {
		if err := u.ensureClaim(ctx, set, next, claim); err != nil {
			return true, err
		}
	}
	_, err = u.env.Kube.CoreV1().Pods(p.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	u.record(set, p, "update", err)
	return false, err
}

// condemn ends a pod beyond the wanted number; it tells whether the next have
// to wait.
func (u *update) condemn(ctx context.Context, p, unhealthy *corev1.Pod, ordered bool) (wait bool, err error) {
	if p.DeletionTimestamp != nil {
		return true, nil
	}
	// One of the others is in trouble: none that works is ended before.
	if ordered && !u.available(p) && p != unhealthy {
		return true, nil
	}
	if o, ok := ordinalOf(u.set, p); ok {
		if err := u.settleClaims(ctx, u.set, p, o, true); err != nil {
			return true, err
		}
	}
	if err := u.delete(ctx, u.set, p); err != nil {
		return true, err
	}
	u.gone[p.Name] = true
	return true, nil
}

// roll deletes the pods of an older revision, the last first, as many at once
// as may be unavailable.
func (u *update) roll(ctx context.Context, byOrdinal map[int]*corev1.Pod) error {
	first, n := start(u.set), size(u.set)
	least, _ := partition(u.set)
	least += first
	most := 1
	if r := u.set.Spec.UpdateStrategy.RollingUpdate; r != nil && r.MaxUnavailable != nil {
		v, err := intstr.GetScaledValueFromIntOrPercent(r.MaxUnavailable, n, true)
		if err != nil {
			return fmt.Errorf("invalid value for maxUnavailable: %w", err)
		}
		most = max(1, v)
	}
	down := 0
	for o := first; o < first+n; o++ {
		p := byOrdinal[o]
		if p == nil || !u.available(p) || u.gone[p.Name] {
			down++
		}
	}
	for o := first + n - 1; o >= least; o-- {
		p := byOrdinal[o]
		if p == nil {
			if most == 1 {
				return nil
			}
			continue
		}
		if revisionOf(p) != u.next.Name && p.DeletionTimestamp == nil && !u.gone[p.Name] {
			// One that is down anyway costs nothing.
			if u.available(p) && down >= most {
				return nil
			}
			if u.available(p) {
				down++
			}
			if err := u.delete(ctx, u.set, p); err != nil {
				return err
			}
			u.gone[p.Name] = true
			if most == 1 {
				return nil
			}
			continue
		}
		// In order, each waits for the one after it.
		if most == 1 && !u.available(p) {
			return nil
		}
	}
	return nil
}

// status counts the pods.
func (u *update) status() appsv1.StatefulSetStatus {
	set := u.set
	s := appsv1.StatefulSetStatus{
		ObservedGeneration: set.Generation,
		CurrentRevision:    u.current.Name,
		UpdateRevision:     u.next.Name,
		CollisionCount:     u.collisions,
		Conditions:         set.Status.Conditions,
	}
	if s.CollisionCount == nil {
		s.CollisionCount = new(int32)
	}
	count := func(p *corev1.Pod) {
		s.Replicas++
		if p.Status.Phase == corev1.PodRunning && control.IsReady(p) {
			s.ReadyReplicas++
			if control.IsAvailable(p, set.Spec.MinReadySeconds, u.env.Clock.Now()) {
				s.AvailableReplicas++
			}
		}
		if p.DeletionTimestamp != nil || u.gone[p.Name] {
			return
		}
		if revisionOf(p) == u.current.Name {
			s.CurrentReplicas++
		}
		if revisionOf(p) == u.next.Name {
			s.UpdatedReplicas++
		}
	}
	for _, p := range u.pods {
		count(p)
	}
	for _, p := range u.made {
		count(p)
	}
	n := int32(size(set))
	if set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType &&
		s.UpdatedReplicas == n && s.ReadyReplicas == n && s.Replicas == n {
		s.CurrentReplicas, s.CurrentRevision = s.UpdatedReplicas, s.UpdateRevision
	}
	return s
}
