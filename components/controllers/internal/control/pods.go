package control

import (
	"context"
	"encoding/json"
	"fmt"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"math"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"hyperkube/internal/pod/podutil"
)

// Reasons of the events with which PodControl reports the results of creations and deletions of pods.
const (
	FailedCreate     = "FailedCreate"
	SuccessfulCreate = "SuccessfulCreate"
	FailedDelete     = "FailedDelete"
	SuccessfulDelete = "SuccessfulDelete"
)

// PodControl creates, patches and deletes pods of an owner, such as a ReplicaSet, and emits events on the owner.
type PodControl struct {
	Kube   kubernetes.Interface
	Events record.EventRecorder
}

// PodPrefix returns the prefix of the generated names of an owner's pods: the owner's name with a dash, or without it
// if the name would become too long.
func PodPrefix(owner string) string {
	prefix := owner + "-"
	if len(validation.NameIsDNSSubdomain(prefix, true)) != 0 {
		prefix = owner
	}
	return prefix
}

// PodFrom returns a pod from a pod template, with the owner reference ref, which may be nil. The caller sets the name
// or the prefix of a generated name.
func PodFrom(template *corev1.PodTemplateSpec, ref *metav1.OwnerReference) *corev1.Pod {
	t := template.DeepCopy()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Labels:      t.Labels,
			Annotations: t.Annotations,
			Finalizers:  t.Finalizers,
		},
		Spec: t.Spec,
	}
	if ref != nil {
		pod.OwnerReferences = []metav1.OwnerReference{*ref}
	}
	return pod
}

// Create creates a pod in the API server and emits an event with the result on owner. It emits no event if the
// namespace is terminating, because the creation of many pods may fail then.
func (c PodControl) Create(ctx context.Context, namespace string, pod *corev1.Pod, owner runtime.Object) (*corev1.Pod, error) {
	if len(pod.Labels) == 0 {
		return nil, fmt.Errorf("unable to create pods, no labels")
	}
	made, err := c.Kube.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		// Emit no event for each pod that cannot be created because the namespace is terminating.
		if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			c.Events.Eventf(owner, corev1.EventTypeWarning, FailedCreate, "Error creating: %v", err)
		}
		return nil, err
	}
	c.Events.Eventf(owner, corev1.EventTypeNormal, SuccessfulCreate, "Created pod: %v", made.Name)
	return made, nil
}

// Delete deletes a pod and emits an event with the result on owner. If the pod does not exist, or its name belongs to
// another pod by now, it emits no event and returns a NotFound error.
func (c PodControl) Delete(ctx context.Context, p *corev1.Pod, owner runtime.Object) error {
	err := c.Kube.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return apierrors.NewNotFound(corev1.Resource("pods"), p.Name)
	}
	if err != nil {
		c.Events.Eventf(owner, corev1.EventTypeWarning, FailedDelete, "Error deleting: %v", err)
		return fmt.Errorf("deleting pod: %w", err)
	}
	c.Events.Eventf(owner, corev1.EventTypeNormal, SuccessfulDelete, "Deleted pod: %v", p.Name)
	return nil
}

// Patch patches a pod in the API server. It has the signature of Claimer.Patch, so that a Claimer adopts and releases
// pods with it.
func (c PodControl) Patch(ctx context.Context, pod *corev1.Pod, kind types.PatchType, patch []byte) error {
	_, err := c.Kube.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, kind, patch, metav1.PatchOptions{})
	return err
}

// SlowStart calls f count times in batches of 1, 2, 4, …, with one goroutine per call. It stops
// after a batch in which a call failed, so that calls that cannot succeed, such as creations beyond
// a quota, are not repeated many times. It returns the number of successful calls and the first
// error.
func SlowStart(count int, f func() error) (int, error) {
	done := 0
	for size := min(count, 1); size > 0; size = min(2*size, count-done) {
		errs := make(chan error, size)
		var wg sync.WaitGroup
		for range size {
			wg.Go(func() {
				if err := f(); err != nil {
					errs <- err
				}
			})
		}
		wg.Wait()
		done += size - len(errs)
		if len(errs) > 0 {
			return done, <-errs
		}
	}
	return done, nil
}

// IsActive reports whether a pod is neither terminated nor being deleted.
func IsActive(p *corev1.Pod) bool {
	return !podutil.Terminal(p) && p.DeletionTimestamp == nil
}

// IsTerminating reports whether a pod is being deleted and has not terminated yet.
func IsTerminating(p *corev1.Pod) bool {
	return !podutil.Terminal(p) && p.DeletionTimestamp != nil
}

// PodCondition returns the condition of the type kind in the pod status s, or nil if there is none.
func PodCondition(s *corev1.PodStatus, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == kind {
			return &s.Conditions[i]
		}
	}
	return nil
}

// SetPodCondition sets a condition in the pod status s and reports whether anything changed. The transition time
// becomes now if the condition's status changes.
func SetPodCondition(s *corev1.PodStatus, cond corev1.PodCondition, now time.Time) bool {
	cond.LastTransitionTime = metav1.NewTime(now)
	old := PodCondition(s, cond.Type)
	if old == nil {
		s.Conditions = append(s.Conditions, cond)
		return true
	}
	if old.Status == cond.Status {
		cond.LastTransitionTime = old.LastTransitionTime
	}
	same := old.Status == cond.Status && old.Reason == cond.Reason && old.Message == cond.Message &&
		old.LastProbeTime.Equal(&cond.LastProbeTime) && old.LastTransitionTime.Equal(&cond.LastTransitionTime)
	*old = cond
	return !same
}

// IsAvailable reports whether a pod has been ready for at least minReady seconds at the time now.
func IsAvailable(p *corev1.Pod, minReady int32, now time.Time) bool {
	c := PodCondition(&p.Status, corev1.PodReady)
	if c == nil || c.Status != corev1.ConditionTrue {
		return false
	}
	wait := time.Duration(minReady) * time.Second
	return minReady == 0 || !c.LastTransitionTime.IsZero() && !c.LastTransitionTime.Add(wait).After(now)
}

// NextAvailable returns the time until the next ready but not yet available pod becomes available. It returns false if
// there is no such pod. The controller must then update its status, because no event occurs.
func NextAvailable(pods []*corev1.Pod, minReady int32, now time.Time) (time.Duration, bool) {
	next, found := time.Duration(0), false
	if minReady <= 0 {
		return 0, false
	}
	for _, p := range pods {
		c := PodCondition(&p.Status, corev1.PodReady)
		if c == nil || c.Status != corev1.ConditionTrue || c.LastTransitionTime.IsZero() {
			continue
		}
		left := c.LastTransitionTime.Add(time.Duration(minReady) * time.Second).Sub(now)
		if left > 0 && (!found || left < next) {
			next, found = left, true
		}
	}
	return next, found
}

// ID returns the namespace, name and UID of a pod as one string, which distinguishes pods that reuse a name.
func ID(p *corev1.Pod) string { return p.Namespace + "/" + p.Name + "/" + string(p.UID) }

// Victims sorts pods in the order in which a controller should delete them when it scales down. It implements
// sort.Interface.
type Victims struct {
	Pods []*corev1.Pod
	// Rank is the number of pods of the same owner on each pod's node. Pods with a higher rank are deleted first. It may
	// be nil.
	Rank []int
	// Now is the current time.
	Now time.Time
	// Plain ignores the deletion cost, and compares times exactly instead of on a logarithmic scale.
	Plain bool
}

func (v Victims) Len() int { return len(v.Pods) }

// Swap implements sort.Interface. It swaps two pods and their ranks.
func (v Victims) Swap(i, j int) {
	v.Pods[i], v.Pods[j] = v.Pods[j], v.Pods[i]
	if v.Rank != nil {
		v.Rank[i], v.Rank[j] = v.Rank[j], v.Rank[i]
	}
}

// Less reports whether the i-th pod should be deleted before the j-th. It compares, in this order: whether the pod is
// bound, phase, readiness, deletion cost, rank, time of readiness, restarts, age.
func (v Victims) Less(i, j int) bool {
	a, b := v.Pods[i], v.Pods[j]
	if x, y := a.Spec.NodeName == "", b.Spec.NodeName == ""; x != y {
		return x
	}
	if x, y := phaseOrder(a), phaseOrder(b); x != y {
		return x < y
	}
	readyA, readyB := podutil.Ready(a), podutil.Ready(b)
	if readyA != readyB {
		return !readyA
	}
	if x, y := deletionCost(a), deletionCost(b); !v.Plain && x != y {
		return x < y
	}
	if v.Rank != nil && v.Rank[i] != v.Rank[j] {
		return v.Rank[i] > v.Rank[j]
	}
	if readyA && readyB {
		if x, y := readySince(a), readySince(b); !x.Equal(&y) {
			return v.younger(x, y, a, b)
		}
	}
	if x, y := restarts(a), restarts(b); x != y {
		if x.regular != y.regular {
			return x.regular > y.regular
		}
		return x.sidecar > y.sidecar
	}
	if x, y := a.CreationTimestamp, b.CreationTimestamp; !x.Equal(&y) {
		return v.younger(x, y, a, b)
	}
	return false
}

// younger reports whether the pod a with the time x should be deleted before b with the time y, because it is
// younger. A pod without a time counts as younger. It compares the ages on a logarithmic scale, and the UIDs within
// the same step, so that the youngest pods, which tend to be on the same nodes, are not always deleted first. With
// Plain, it compares the times.
func (v Victims) younger(x, y metav1.Time, a, b *corev1.Pod) bool {
	if x.IsZero() || y.IsZero() {
		return x.IsZero()
	}
	if v.Plain {
		return x.After(y.Time)
	}
	if d := logAge(x, v.Now) - logAge(y, v.Now); d != 0 {
		return d < 0
	}
	return a.UID < b.UID
}

// logAge returns the binary logarithm of the age of t at now, or -1 if t is not before now.
func logAge(t metav1.Time, now time.Time) int {
	age := now.Sub(t.Time)
	if age <= 0 {
		return -1
	}
	return int(math.Log2(float64(age)))
}

// phaseOrder returns the order of deletion for the phase of a pod: pods that do not run first, then those of unknown
// phase, then running ones.
func phaseOrder(p *corev1.Pod) int {
	switch p.Status.Phase {
	case corev1.PodUnknown:
		return 1
	case corev1.PodRunning:
		return 2
	}
	return 0
}

// deletionCost returns the value of the pod deletion cost annotation, or zero if it is missing or
// not a 32 bit integer.
func deletionCost(p *corev1.Pod) int32 {
	s, ok := p.Annotations[corev1.PodDeletionCost]
	if !ok || s == "" {
		return 0
	}
	// The API server's validation rejects a plus sign and leading zeros.
	if first := s[0]; first == '+' || first == '0' && len(s) > 1 {
		return 0
	}
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil {
		return 0
	}
	return int32(n)
}

// readySince returns the time at which a ready pod became ready, or zero.
func readySince(p *corev1.Pod) metav1.Time {
	if c := PodCondition(&p.Status, corev1.PodReady); c != nil && c.Status == corev1.ConditionTrue {
		return c.LastTransitionTime
	}
	return metav1.Time{}
}

// restartCount is the highest number of restarts among the regular containers and the sidecars of a pod.
type restartCount struct{ regular, sidecar int32 }

// restarts returns the highest numbers of restarts of a pod's containers.
func restarts(p *corev1.Pod) restartCount {
	var r restartCount
	for i := range p.Status.ContainerStatuses {
		r.regular = max(r.regular, p.Status.ContainerStatuses[i].RestartCount)
	}
	sidecars := map[string]bool{}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if podutil.Sidecar(c) {
			sidecars[c.Name] = true
		}
	}
	for i := range p.Status.InitContainerStatuses {
		if s := &p.Status.InitContainerStatuses[i]; sidecars[s.Name] {
			r.sidecar = max(r.sidecar, s.RestartCount)
		}
	}
	return r
}

// PatchStatus changes the status of the pod p to next. It does nothing if they are equal. The patch applies only to the
// pod with p's UID.
func (c PodControl) PatchStatus(ctx context.Context, p *corev1.Pod, next corev1.PodStatus) error {
	old, err := json.Marshal(corev1.Pod{Status: p.Status})
	if err != nil {
		return err
	}
	cur, err := json.Marshal(corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: p.UID}, Status: next})
	if err != nil {
		return err
	}
	if equality.Semantic.DeepEqual(p.Status, next) {
		return nil
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(old, cur, &corev1.Pod{})
	if err != nil {
		return err
	}
	_, err = c.Kube.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}
