package horizontalpodautoscaling

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/internal/pod/podutil"
)

// sample is a value of a pod's metric in thousandths. It was measured over the duration window that ended at the time
// at.
type sample struct {
	value  int64
	at     time.Time
	window time.Duration
}

// tolerance is by how much the ratio of the current value to the target value may be below (down) or above (up) 1
// without scaling.
type tolerance struct{ down, up float64 }

// covers reports whether a ratio is so close to 1 that the target is not scaled.
func (t tolerance) covers(ratio float64) bool { return 1-t.down <= ratio && ratio <= 1+t.up }

// podGroups divides the pods of a target: the number of ready pods with a sample, and the names of pods that are not
// ready, that have no sample, and that do not count because they are terminating or failed.
type podGroups struct {
	ready                     int
	unready, missing, ignored map[string]bool
}

// classifyPods divides pods into groups. name is the resource that the samples measure, or empty. A starting pod counts
// as not ready for CPU, because its usage is not representative.
func (c *Controller) classifyPods(pods []*corev1.Pod, samples map[string]sample, name corev1.ResourceName) podGroups {
	g := podGroups{unready: map[string]bool{}, missing: map[string]bool{}, ignored: map[string]bool{}}
	now := c.env.Clock.Now()
	for _, p := range pods {
		if p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodFailed {
			g.ignored[p.Name] = true
			continue
		}
		if p.Status.Phase == corev1.PodPending {
			g.unready[p.Name] = true
			continue
		}
		s, ok := samples[p.Name]
		if !ok {
			g.missing[p.Name] = true
			continue
		}
		if name == corev1.ResourceCPU && c.starting(p, s, now) {
			g.unready[p.Name] = true
			continue
		}
		g.ready++
	}
	return g
}

// starting reports whether the CPU sample s of a pod is not representative, because the pod was still starting. This
// includes pods without a Ready condition or a start time.
func (c *Controller) starting(p *corev1.Pod, s sample, now time.Time) bool {
	ready := control.PodCondition(&p.Status, corev1.PodReady)
	if ready == nil || p.Status.StartTime == nil {
		return true
	}
	if p.Status.StartTime.Add(c.cfg.CPUInitialization).After(now) {
		return ready.Status == corev1.ConditionFalse || s.at.Before(ready.LastTransitionTime.Add(s.window))
	}
	return ready.Status == corev1.ConditionFalse && p.Status.StartTime.Add(c.cfg.ReadinessDelay).After(ready.LastTransitionTime.Time)
}

// roundUp rounds x up to a number of replicas. It accepts any value, including NaN and infinities, and returns at least
// 0.
func roundUp(x float64) int32 {
	switch x = math.Ceil(x); {
	case !(x > 0): // or NaN
		return 0
	case x > math.MaxInt32:
		return math.MaxInt32
	}
	return int32(x)
}

// comparison defines how the samples of pods are compared with the target value of a metric. The functions usage and
// utilization create it.
type comparison struct {
	ratio func(samples map[string]sample) (float64, error)
	// full is the usage assumed for a pod without a sample when the others use less than their
	// target.
	full func(pod string) int64
}

// replicasFor returns the number of replicas at which the metric would meet its target value. For pods without a sample
// it assumes values that reduce the change. It returns current if the ratio is within the tolerance t or the
// assumptions would reverse the direction. It removes samples of pods that do not count. It returns an error if there
// are no pods or no samples.
func (c *Controller) replicasFor(current int32, pods []*corev1.Pod, samples map[string]sample, name corev1.ResourceName, t tolerance, m comparison) (int32, error) {
	if len(pods) == 0 {
		return 0, errors.New("no pods returned by selector while calculating replica count")
	}
	g := c.classifyPods(pods, samples, name)
	for p := range g.ignored {
		delete(samples, p)
	}
	for p := range g.unready {
		delete(samples, p)
	}
	if len(samples) == 0 {
		return 0, errors.New("did not receive metrics for targeted pods (pods might be unready)")
	}
	ratio, err := m.ratio(samples)
	if err != nil {
		return 0, err
	}
	growing := len(g.unready) > 0 && ratio > 1
	if !growing && len(g.missing) == 0 {
		if t.covers(ratio) {
			return current, nil
		}
		return roundUp(ratio * float64(g.ready)), nil
	}
	// Assume values for missing samples that reduce the change.
	for p := range g.missing {
		switch {
		case ratio < 1:
			samples[p] = sample{value: m.full(p)}
		case ratio > 1:
			samples[p] = sample{}
		}
	}
	if growing {
		for p := range g.unready {
			samples[p] = sample{}
		}
	}
	again, err := m.ratio(samples)
	if err != nil {
		return 0, err
	}
	if t.covers(again) || ratio < 1 && again > 1 || ratio > 1 && again < 1 {
		return current, nil
	}
	n := roundUp(again * float64(len(samples)))
	if again < 1 && n > current || again > 1 && n < current {
		return current, nil
	}
	return n, nil
}

// utilization compares the usage of pods with their requests, in percent. ask returns the requests by pod name; it is
// called only if there are samples. The first comparison sets now to the measured utilization in percent and average to
// the average usage.
func utilization(target int32, ask func() (map[string]int64, error), now *int32, average *int64) comparison {
	var requests map[string]int64
	return comparison{
		ratio: func(samples map[string]sample) (float64, error) {
			if requests == nil {
				var err error
				if requests, err = ask(); err != nil {
					return 0, err
				}
			}
			var used, requested int64
			n := int64(0)
			for p, s := range samples {
				r, ok := requests[p]
				if !ok {
					continue
				}
				used, requested, n = used+s.value, requested+r, n+1
			}
			if requested == 0 {
				return 0, errors.New("no metrics returned matched known pods")
			}
			percent := int32(used * 100 / requested)
			if *average < 0 { // the measured values, without assumed ones
				*now, *average = percent, used/n
			}
			return float64(percent) / float64(target), nil
		},
		full: func(p string) int64 { return requests[p] * int64(max(100, target)) / 100 },
	}
}

// usage compares the average value of the samples with a target value, in thousandths. The first comparison sets
// average to the measured average.
func usage(target int64, average *int64) comparison {
	return comparison{
		ratio: func(samples map[string]sample) (float64, error) {
			var sum int64
			for _, s := range samples {
				sum += s.value
			}
			mean := sum / int64(len(samples))
			if *average < 0 {
				*average = mean
			}
			return float64(mean) / float64(target), nil
		},
		full: func(string) int64 { return target },
	}
}

// byRatio returns the number of replicas for a metric with one value for the entire target. ratio is the value divided
// by its target value, and ready the number of ready pods. From zero replicas, it scales to the ratio, regardless of
// the tolerance.
func byRatio(current int32, ratio float64, ready int, t tolerance) int32 {
	if current == 0 {
		return roundUp(ratio)
	}
	if t.covers(ratio) {
		return current
	}
	return roundUp(ratio * float64(ready))
}

// perPod returns the number of replicas for a metric with one value for the entire target, of which each pod should
// account for target.
func perPod(value, target int64, replicas int32, t tolerance) int32 {
	ratio := float64(value) / (float64(target) * float64(replicas))
	if replicas > 0 && t.covers(ratio) {
		return replicas
	}
	return roundUp(float64(value) / float64(target))
}

// requestsOf returns the resource requests of each pod by name, in thousandths: of its regular containers and sidecars,
// of one container if container is not empty, or of the pod itself if it has pod-level requests. A missing request is
// an error.
func requestsOf(pods []*corev1.Pod, container string, name corev1.ResourceName) (map[string]int64, error) {
	all := make(map[string]int64, len(pods))
	for _, p := range pods {
		var sum int64
		containers := p.Spec.Containers
		for i := range p.Spec.InitContainers {
			if c := &p.Spec.InitContainers[i]; podutil.Sidecar(c) {
				containers = append(slices.Clip(containers), *c)
			}
		}
		if container == "" && resourcehelper.IsPodLevelRequestsSet(p) {
			q, ok := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})[name]
			if !ok {
				return nil, fmt.Errorf("missing pod-level request for %s in Pod %s", name, p.Name)
			}
			all[p.Name] = q.MilliValue()
			continue
		}
		if container != "" && !slices.ContainsFunc(containers, func(x corev1.Container) bool { return x.Name == container }) {
			return nil, fmt.Errorf("container %s not found in Pod %s", container, p.Name)
		}
		for _, x := range containers {
			if container != "" && container != x.Name {
				continue
			}
			q, ok := x.Resources.Requests[name]
			if !ok {
				return nil, fmt.Errorf("missing request for %s in container %s of Pod %s", name, x.Name, p.Name)
			}
			sum += q.MilliValue()
		}
		all[p.Name] = sum
	}
	return all, nil
}
