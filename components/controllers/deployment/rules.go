package deployment

import (
	"math"
	"sort"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/intstr"

	"hyperkube/internal/base/tracing"
)

// Annotations with which a Deployment stores state on its ReplicaSets and itself.
const (
	revisionAnnotation        = "deployment.kubernetes.io/revision"
	revisionHistoryAnnotation = "deployment.kubernetes.io/revision-history"
	desiredReplicasAnnotation = "deployment.kubernetes.io/desired-replicas"
	maxReplicasAnnotation     = "deployment.kubernetes.io/max-replicas"
	rollbackAnnotation        = "deprecated.deployment.rollback.to"
)

// maxHistory is the maximum length in bytes of the annotation with the former revisions of a ReplicaSet.
const maxHistory = 2000

// ownAnnotations are the annotations that the controller uses itself. They are not copied between a Deployment and its
// ReplicaSets.
var ownAnnotations = map[string]bool{
	corev1.LastAppliedConfigAnnotation: true,
	revisionAnnotation:                 true,
	revisionHistoryAnnotation:          true,
	desiredReplicasAnnotation:          true,
	maxReplicasAnnotation:              true,
	rollbackAnnotation:                 true,
	tracing.Annotation:                 true,
}

// isRolling reports whether the strategy of d is RollingUpdate.
func isRolling(d *appsv1.Deployment) bool {
	return d.Spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType
}

// replicas returns a number of replicas in a spec, in which nil means 1.
func replicas(p *int32) int32 {
	if p == nil {
		return 1
	}
	return *p
}

// resolveFenceposts returns by how many pods a rolling update may exceed, and fall below, the desired number. A
// percentage of the surge is rounded up, one of the unavailable pods down. If both are zero, unavailable becomes one,
// because otherwise the update could not progress.
func resolveFenceposts(d *appsv1.Deployment) (surge, unavailable int32) {
	if !isRolling(d) {
		return 0, 0
	}
	want := int(replicas(d.Spec.Replicas))
	if u := d.Spec.Strategy.RollingUpdate; u != nil {
		surge = scaled(u.MaxSurge, want, true)
		unavailable = scaled(u.MaxUnavailable, want, false)
	}
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, unavailable
}

// scaled returns the value of a number or percentage of total, rounded up if up is true. It returns 0 if v is nil or
// invalid.
func scaled(v *intstr.IntOrString, total int, up bool) int32 {
	if v == nil {
		return 0
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(v, total, up)
	if err != nil {
		return 0
	}
	return int32(n)
}

// maxSurge returns by how many pods a rolling update may exceed the desired number.
func maxSurge(d *appsv1.Deployment) int32 {
	surge, _ := resolveFenceposts(d)
	return surge
}

// maxUnavailable returns how many of the desired pods may be unavailable during a rolling update.
func maxUnavailable(d *appsv1.Deployment) int32 {
	want := replicas(d.Spec.Replicas)
	if !isRolling(d) || want == 0 {
		return 0
	}
	_, u := resolveFenceposts(d)
	return min(u, want)
}

// hasDeadline reports whether d has a progress deadline. The maximum number means none.
func hasDeadline(d *appsv1.Deployment) bool {
	return d.Spec.ProgressDeadlineSeconds != nil && *d.Spec.ProgressDeadlineSeconds != math.MaxInt32
}

// hasHistoryLimit reports whether d limits the number of old ReplicaSets. The maximum number means no limit.
func hasHistoryLimit(d *appsv1.Deployment) bool {
	return d.Spec.RevisionHistoryLimit != nil && *d.Spec.RevisionHistoryLimit != math.MaxInt32
}

// sameTemplate reports whether two pod templates are equal, ignoring the hash label that ReplicaSets add.
func sameTemplate(a, b *corev1.PodTemplateSpec) bool {
	x, y := *a, *b
	x.Labels, y.Labels = withoutHash(a.Labels), withoutHash(b.Labels)
	return equality.Semantic.DeepEqual(x, y)
}

// withoutHash returns m without the hash label that ReplicaSets add. It returns m itself if it has no such label.
func withoutHash(m map[string]string) map[string]string {
	if _, ok := m[appsv1.DefaultDeploymentUniqueLabelKey]; !ok {
		return m
	}
	out := make(map[string]string, len(m))
	for k, v := range m {
		if k != appsv1.DefaultDeploymentUniqueLabelKey {
			out[k] = v
		}
	}
	return out
}

// olderFirst sorts ReplicaSets by their age, the oldest first.
func olderFirst(sets []*appsv1.ReplicaSet) {
	sort.SliceStable(sets, func(i, j int) bool { return older(sets[i], sets[j]) })
}

// older reports whether a was created before b. ReplicaSets of the same second are ordered by name.
func older(a, b *appsv1.ReplicaSet) bool {
	if a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.Name < b.Name
	}
	return a.CreationTimestamp.Before(&b.CreationTimestamp)
}

// findNew returns the ReplicaSet with the Deployment's current pod template, or nil. If there are several, it returns
// the oldest, so that the choice is deterministic.
func findNew(d *appsv1.Deployment, sets []*appsv1.ReplicaSet) *appsv1.ReplicaSet {
	sorted := append([]*appsv1.ReplicaSet(nil), sets...)
	olderFirst(sorted)
	for _, rs := range sorted {
		if sameTemplate(&rs.Spec.Template, &d.Spec.Template) {
			return rs
		}
	}
	return nil
}

// withoutSet returns sets without the one with the UID of not, which may be nil.
func withoutSet(sets []*appsv1.ReplicaSet, not *appsv1.ReplicaSet) []*appsv1.ReplicaSet {
	var out []*appsv1.ReplicaSet
	for _, rs := range sets {
		if not == nil || rs.UID != not.UID {
			out = append(out, rs)
		}
	}
	return out
}

// activeSets returns the ReplicaSets whose desired size is not zero. Nil entries are omitted.
func activeSets(sets []*appsv1.ReplicaSet) []*appsv1.ReplicaSet {
	var out []*appsv1.ReplicaSet
	for _, rs := range sets {
		if rs != nil && replicas(rs.Spec.Replicas) > 0 {
			out = append(out, rs)
		}
	}
	return out
}

// desiredReplicas returns the sum of the desired sizes of ReplicaSets.
func desiredReplicas(sets []*appsv1.ReplicaSet) (n int32) {
	for _, rs := range sets {
		n += replicas(rs.Spec.Replicas)
	}
	return n
}

// actualReplicas returns the sum of the existing pods of ReplicaSets, according to their status.
func actualReplicas(sets []*appsv1.ReplicaSet) (n int32) {
	for _, rs := range sets {
		n += rs.Status.Replicas
	}
	return n
}

// availableReplicas returns the sum of the available pods of ReplicaSets, according to their status.
func availableReplicas(sets []*appsv1.ReplicaSet) (n int32) {
	for _, rs := range sets {
		n += rs.Status.AvailableReplicas
	}
	return n
}

// revision returns the revision of the rollout in the annotations of a ReplicaSet, or 0 if there is none.
func revision(annotations map[string]string) int64 {
	n, err := strconv.ParseInt(annotations[revisionAnnotation], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// maxRevision returns the highest revision of the ReplicaSets, or 0 if there is none.
func maxRevision(sets []*appsv1.ReplicaSet) (n int64) {
	for _, rs := range sets {
		n = max(n, revision(rs.Annotations))
	}
	return n
}

// intAnnotation returns the number of pods in an annotation of rs. It returns false if there is no
// valid number.
func intAnnotation(rs *appsv1.ReplicaSet, key string) (int32, bool) {
	s, ok := rs.Annotations[key]
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 32)
	return int32(n), err == nil && n >= 0
}

// setReplicaAnnotations records the Deployment's desired and maximum number of pods in the annotations of a ReplicaSet,
// from which proportional scaling later reads the former size. It modifies rs and reports whether anything changed.
func setReplicaAnnotations(rs *appsv1.ReplicaSet, desired, maximum int32) bool {
	a := setAnnotation(rs, desiredReplicasAnnotation, strconv.Itoa(int(desired)))
	b := setAnnotation(rs, maxReplicasAnnotation, strconv.Itoa(int(maximum)))
	return a || b
}

// setAnnotation sets an annotation of rs and reports whether the annotation was changed. It always reports true for an
// empty value.
func setAnnotation(rs *appsv1.ReplicaSet, key, value string) bool {
	if rs.Annotations[key] == value && value != "" {
		return false
	}
	if rs.Annotations == nil {
		rs.Annotations = map[string]string{}
	}
	rs.Annotations[key] = value
	return true
}

// setNewAnnotations copies the Deployment's annotations to the new ReplicaSet and sets its revision to rev. exists is
// false if the ReplicaSet is not created yet; it then also records the Deployment's size. It modifies rs and reports
// whether anything changed.
func setNewAnnotations(d *appsv1.Deployment, rs *appsv1.ReplicaSet, rev int64, exists bool) bool {
	changed := false
	for k, v := range d.Annotations {
		if old, ok := rs.Annotations[k]; ownAnnotations[k] || ok && old == v {
			continue
		}
		if rs.Annotations == nil {
			rs.Annotations = map[string]string{}
		}
		rs.Annotations[k] = v
		changed = true
	}
	before, had := rs.Annotations[revisionAnnotation]
	beforeRev, err := strconv.ParseInt(before, 10, 64)
	if err != nil && before != "" {
		return false // invalid revision; leave it unchanged
	}
	if beforeRev < rev {
		setAnnotation(rs, revisionAnnotation, strconv.FormatInt(rev, 10))
		changed = true
		// A former template is current again: keep its former revision numbers.
		if had && before != "" {
			if h, ok := appendHistory(rs.Annotations[revisionHistoryAnnotation], before); ok {
				rs.Annotations[revisionHistoryAnnotation] = h
			}
		}
	}
	if !exists {
		want := replicas(d.Spec.Replicas)
		if setReplicaAnnotations(rs, want, want+maxSurge(d)) {
			changed = true
		}
	}
	return changed
}

// appendHistory appends a revision to a comma-separated list. If the list becomes longer than maxHistory, the first
// entries are removed. It returns false if rev alone is too long.
func appendHistory(history, rev string) (string, bool) {
	if history == "" {
		return rev, true
	}
	for len(history)+1+len(rev) > maxHistory {
		_, rest, ok := strings.Cut(history, ",")
		if !ok {
			return rev, len(rev) <= maxHistory
		}
		history = rest
	}
	return history + "," + rev, true
}

// setRevision sets the annotation of the Deployment d with the revision of the rollout, and reports whether it
// changed.
func setRevision(d *appsv1.Deployment, rev string) bool {
	if d.Annotations[revisionAnnotation] == rev {
		return false
	}
	if d.Annotations == nil {
		d.Annotations = map[string]string{}
	}
	d.Annotations[revisionAnnotation] = rev
	return true
}

// newSize returns the size to which the new ReplicaSet rs can be scaled now. It is the desired size. In a rolling
// update it is limited so that all ReplicaSets together have at most the desired number of pods plus maxSurge.
func newSize(d *appsv1.Deployment, all []*appsv1.ReplicaSet, rs *appsv1.ReplicaSet) int32 {
	want, have := replicas(d.Spec.Replicas), replicas(rs.Spec.Replicas)
	if !isRolling(d) {
		return want
	}
	room := want + maxSurge(d) - desiredReplicas(all)
	if room <= 0 {
		return have
	}
	return have + min(room, want-have)
}

// activeOrLatest returns the ReplicaSet to scale if no rollout is in progress: the only active one, or if none is
// active the new or latest one. It returns nil if several are active or there is none.
func activeOrLatest(newRS *appsv1.ReplicaSet, old []*appsv1.ReplicaSet) *appsv1.ReplicaSet {
	active := activeSets(append(append([]*appsv1.ReplicaSet(nil), old...), newRS))
	switch {
	case len(active) == 1:
		return active[0]
	case len(active) > 1:
		return nil
	case newRS != nil:
		return newRS
	}
	var latest *appsv1.ReplicaSet
	for _, rs := range old {
		if latest == nil || older(latest, rs) {
			latest = rs
		}
	}
	return latest
}

// isSaturated reports whether rs, the new ReplicaSet, has all desired pods of the Deployment and all are available. rs
// may be nil.
func isSaturated(d *appsv1.Deployment, rs *appsv1.ReplicaSet) bool {
	if rs == nil {
		return false
	}
	desired, ok := intAnnotation(rs, desiredReplicasAnnotation)
	want := replicas(d.Spec.Replicas)
	return ok && replicas(rs.Spec.Replicas) == want && desired == want && rs.Status.AvailableReplicas == want
}

// proportions distributes a change of the Deployment's size during a rollout over its active ReplicaSets, in proportion
// to their sizes. It returns the new sizes by name. It changes the order of sets.
func proportions(d *appsv1.Deployment, sets []*appsv1.ReplicaSet) map[string]int32 {
	allowed := int32(0)
	if want := replicas(d.Spec.Replicas); want > 0 {
		allowed = want + maxSurge(d)
	}
	toAdd := allowed - desiredReplicas(sets)
	// The largest get the remainder; of equal ones, the newer when scaling up, and the older when
	// scaling down.
	sort.SliceStable(sets, func(i, j int) bool {
		a, b := sets[i], sets[j]
		if x, y := replicas(a.Spec.Replicas), replicas(b.Spec.Replicas); x != y {
			return x > y
		}
		if toAdd > 0 {
			return older(b, a)
		}
		return older(a, b)
	})
	sizes := make(map[string]int32, len(sets))
	added := int32(0)
	for _, rs := range sets {
		p := proportion(d, rs, toAdd, added)
		sizes[rs.Name] = replicas(rs.Spec.Replicas) + p
		added += p
	}
	if toAdd != 0 && len(sets) > 0 {
		first := sets[0].Name
		sizes[first] = max(0, sizes[first]+toAdd-added)
	}
	return sizes
}

// proportion returns the change of the size of rs, limited so that the changes do not exceed toAdd. added is the sum of
// the changes of other ReplicaSets so far.
func proportion(d *appsv1.Deployment, rs *appsv1.ReplicaSet, toAdd, added int32) int32 {
	size := replicas(rs.Spec.Replicas)
	if size == 0 || toAdd == 0 || toAdd == added {
		return 0
	}
	share, left := fraction(d, rs), toAdd-added
	if toAdd > 0 {
		return min(share, left)
	}
	return max(share, left)
}

// fraction returns the change of the size of rs that keeps its proportion of the Deployment's maximum number of pods.
func fraction(d *appsv1.Deployment, rs *appsv1.ReplicaSet) int32 {
	size, want := replicas(rs.Spec.Replicas), replicas(d.Spec.Replicas)
	if want == 0 {
		return -size
	}
	before, ok := intAnnotation(rs, maxReplicasAnnotation)
	if !ok || before == 0 {
		before = d.Status.Replicas
		if before == 0 {
			return 0
		}
	}
	next := float64(size) * float64(want+maxSurge(d)) / float64(before)
	return int32(math.Floor(next+0.5)) - size
}
