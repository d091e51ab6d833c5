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

	"hyperkube/internal/podfacts"
)

// Reasons of events about pods.
const (
	FailedCreate     = "FailedCreate"
	SuccessfulCreate = "SuccessfulCreate"
	FailedDelete     = "FailedDelete"
	SuccessfulDelete = "SuccessfulDelete"
)

// PodControl makes and deletes pods in the name of an owner and records events
// about it.
type PodControl struct {
	Kube   kubernetes.Interface
	Events record.EventRecorder
}

// PodPrefix is the start of the generated names of owner's pods.
func PodPrefix(owner string) string {
	prefix := owner + "-"
	if len(validation.NameIsDNSSubdomain(prefix, true)) != 0 {
		prefix = owner
	}
	return prefix
}

// PodFrom makes the pod of a template, owned as ref says (nil: not owned). The
// name is left to the caller.
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

// Create makes pod, and records that, or the failure, on owner.
func (c PodControl) Create(ctx context.Context, namespace string, pod *corev1.Pod, owner runtime.Object) (*corev1.Pod, error) {
	if len(pod.Labels) == 0 {
		return nil, fmt.Errorf("unable to create pods, no labels")
	}
	made, err := c.Kube.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		// Nobody wants to read of each pod that a namespace in deletion refuses.
		if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			c.Events.Eventf(owner, corev1.EventTypeWarning, FailedCreate, "Error creating: %v", err)
		}
		return nil, err
	}
	c.Events.Eventf(owner, corev1.EventTypeNormal, SuccessfulCreate, "Created pod: %v", made.Name)
	return made, nil
}

// Delete deletes a pod, and records that, or the failure, on owner. It is not found
// when another has its name by now.
func (c PodControl) Delete(ctx context.Context, p *corev1.Pod, owner runtime.Object) error {
	err := c.Kube.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return apierrors.NewNotFound(corev1.Resource("pods"), p.Name)
	}
	if err != nil {
		c.Events.Eventf(owner, corev1.EventTypeWarning, FailedDelete, "Error deleting: %v", err)
		return fmt.Errorf("unable to delete pods: %w", err)
	}
	c.Events.Eventf(owner, corev1.EventTypeNormal, SuccessfulDelete, "Deleted pod: %v", p.Name)
	return nil
}

// Patch sends a patch for a pod. It has the form that Claimer wants.
func (c PodControl) Patch(ctx context.Context, pod *corev1.Pod, kind types.PatchType, patch []byte) error {
	_, err := c.Kube.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, kind, patch, metav1.PatchOptions{})
	return err
}

// SlowStart calls f count times in batches of 1, 2, 4, …, each call in a
// goroutine of its own, and stops after a batch in which one failed: what must
// fail, such as creation beyond a quota, is not tried a thousand times. It
// returns how many calls succeeded and the first error.
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

// IsActive tells whether a pod is neither finished nor being deleted.
func IsActive(p *corev1.Pod) bool {
	return !podfacts.Terminal(p) && p.DeletionTimestamp == nil
}

// IsTerminating tells whether a pod is being deleted and has not finished yet.
func IsTerminating(p *corev1.Pod) bool {
	return !podfacts.Terminal(p) && p.DeletionTimestamp != nil
}

// PodCondition returns a condition of the status, nil if there is none.
func PodCondition(s *corev1.PodStatus, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == kind {
			return &s.Conditions[i]
		}
	}
	return nil
}

// SetPodCondition puts cond among the conditions of s and tells whether that
// changed anything.
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

// IsAvailable tells whether a pod has been ready for minReady seconds.
func IsAvailable(p *corev1.Pod, minReady int32, now time.Time) bool {
	c := PodCondition(&p.Status, corev1.PodReady)
	if c == nil || c.Status != corev1.ConditionTrue {
		return false
	}
	wait := time.Duration(minReady) * time.Second
	return minReady == 0 || !c.LastTransitionTime.IsZero() && !c.LastTransitionTime.Add(wait).After(now)
}

// NextAvailable tells in how long the next of the ready pods becomes
// available; false when none waits for that.
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

// ID names a pod among those of its owner, also after another took its name.
func ID(p *corev1.Pod) string { return p.Namespace + "/" + p.Name + "/" + string(p.UID) }

// Victims orders pods: those better deleted first. Rank may be nil; else it
// tells how many pods of the same purpose are on the pod's node. Plain leaves the
// deletion cost out, which is for replicas alone, and compares times as they are.
type Victims struct {
	Pods  []*corev1.Pod
	Rank  []int
	Now   time.Time
	Plain bool
}

func (v Victims) Len() int { return len(v.Pods) }

// Swap is sort.Interface's.
func (v Victims) Swap(i, j int) {
	v.Pods[i], v.Pods[j] = v.Pods[j], v.Pods[i]
	if v.Rank != nil {
		v.Rank[i], v.Rank[j] = v.Rank[j], v.Rank[i]
	}
}

// Less compares by, in this order: not bound, phase, readiness, the deletion
// cost annotation, doubling on the node, time of readiness, restarts, age.
func (v Victims) Less(i, j int) bool {
	a, b := v.Pods[i], v.Pods[j]
	if x, y := a.Spec.NodeName == "", b.Spec.NodeName == ""; x != y {
		return x
	}
	if x, y := phaseOrder(a), phaseOrder(b); x != y {
		return x < y
	}
	readyA, readyB := podfacts.Ready(a), podfacts.Ready(b)
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

// younger compares times by their distance from now on a logarithmic scale, and
// by UID within one step of it, so that the youngest are not always the ones to
// go: they tend to be on the same nodes.
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

func logAge(t metav1.Time, now time.Time) int {
	age := now.Sub(t.Time)
	if age <= 0 {
		return -1
	}
	return int(math.Log2(float64(age)))
}

func phaseOrder(p *corev1.Pod) int {
	switch p.Status.Phase {
	case corev1.PodUnknown:
		return 1
	case corev1.PodRunning:
		return 2
	}
	return 0
}

// deletionCost is the value of the annotation of that name, zero if it is
// missing or no 32 bit number.
func deletionCost(p *corev1.Pod) int32 {
	s, ok := p.Annotations[corev1.PodDeletionCost]
	if !ok || s == "" {
		return 0
	}
	// The API refuses a plus sign and leading zeros.
	if first := s[0]; first == '+' || first == '0' && len(s) > 1 {
		return 0
	}
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil {
		return 0
	}
	return int32(n)
}

func readySince(p *corev1.Pod) metav1.Time {
	if c := PodCondition(&p.Status, corev1.PodReady); c != nil && c.Status == corev1.ConditionTrue {
		return c.LastTransitionTime
	}
	return metav1.Time{}
}

type restartCount struct{ regular, sidecar int32 }

func restarts(p *corev1.Pod) restartCount {
	var r restartCount
	for i := range p.Status.ContainerStatuses {
		r.regular = max(r.regular, p.Status.ContainerStatuses[i].RestartCount)
	}
	sidecars := map[string]bool{}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if podfacts.Sidecar(c) {
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

// PatchStatus writes what differs between the status of p and next, under p's
// UID, and returns nil when nothing does.
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
