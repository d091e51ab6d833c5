package job

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/internal/podfacts"
)

// Waits before failed pods are replaced: the first, doubled with each failure in
// a row, and the longest.
const (
	firstBackoff = 10 * time.Second
	lastBackoff  = 10 * time.Minute
)

// failures are those in a row of a Job's pods.
type failures struct {
	count int
	last  time.Time
}

// backoff returns how long new pods must wait, after pods that newly failed and
// succeeded at those times; and the failures in a row, which are to be remembered
// once they are noted in the status: what is not is found again. Failures before
// the last success count no more.
func (c *Controller) backoff(k string, failed, succeeded []time.Time) (time.Duration, failures) {
	c.mu.Lock()
	f := c.failed[k]
	c.mu.Unlock()
	if len(succeeded) > 0 {
		last := slices.MaxFunc(succeeded, time.Time.Compare)
		f = failures{}
		failed = slices.DeleteFunc(slices.Clone(failed), func(at time.Time) bool { return !at.After(last) })
	}
	if len(failed) > 0 {
		f.count += len(failed)
		f.last = slices.MaxFunc(failed, time.Time.Compare)
	}
	if f.count == 0 {
		return 0, f
	}
	return max(0, backoffAfter(f.count)-c.env.Clock.Since(f.last)), f
}

// remember keeps the failures in a row of a Job.
func (c *Controller) remember(k string, f failures) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.count == 0 {
		delete(c.failed, k)
		return
	}
	c.failed[k] = f
}

// backoffAfter returns how long to wait after n failures in a row.
func backoffAfter(n int) time.Duration {
	wait := firstBackoff
	for range n - 1 {
		if wait *= 2; wait >= lastBackoff {
			return lastBackoff
		}
	}
	return wait
}

// finishedAt is when p ended, as well as its status tells: when the last of its
// containers did, if all have; when it stopped being ready; when it was deleted;
// else when it was made.
func finishedAt(p *corev1.Pod) time.Time {
	if at := lastContainer(p); !at.IsZero() {
		return at
	}
	if c := control.PodCondition(&p.Status, corev1.PodReady); c != nil && c.Status == corev1.ConditionFalse && !c.LastTransitionTime.IsZero() {
		return c.LastTransitionTime.Time
	}
	if p.DeletionTimestamp != nil {
		grace := time.Duration(0)
		if s := p.DeletionGracePeriodSeconds; s != nil {
			grace = time.Duration(*s) * time.Second
		}
		return p.DeletionTimestamp.Add(-grace)
	}
	return p.CreationTimestamp.Time
}

// lastContainer is when the last container of p ended, sidecars included, which end
// after the others; zero if one has not, or does not say when.
func lastContainer(p *corev1.Pod) (last time.Time) {
	statuses := slices.Clone(p.Status.ContainerStatuses)
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if !podfacts.Sidecar(c) {
			continue
		}
		for _, s := range p.Status.InitContainerStatuses {
			if s.Name == c.Name {
				statuses = append(statuses, s)
			}
		}
	}
	for i := range statuses {
		t := statuses[i].State.Terminated
		if t == nil || t.FinishedAt.IsZero() {
			return time.Time{}
		}
		if t.FinishedAt.After(last) {
			last = t.FinishedAt.Time
		}
	}
	return last
}
