package daemonset

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"hyperkube/components/controllers/internal/control"
)

// fit says whether a pod should start on a node, and whether one that runs
// there may go on.
type fit struct{ start, stay bool }

// fits tells how ds and a node fit: by name, selector, affinity and taints.
// Whether there is room is for the scheduler.
func fits(ds *appsv1.DaemonSet, n *corev1.Node) fit {
	spec := &ds.Spec.Template.Spec
	if spec.NodeName != "" && spec.NodeName != n.Name {
		return fit{}
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: spec.NodeSelector, Affinity: spec.Affinity}}
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(n); err != nil || !ok {
		return fit{}
	}
	tolerations := tolerationsOf(ds)
	untolerated := func(effects ...corev1.TaintEffect) bool {
		_, found := schedulinghelper.FindMatchingUntoleratedTaint(logr.Logger{}, n.Spec.Taints, tolerations,
			func(t *corev1.Taint) bool { return slices.Contains(effects, t.Effect) }, true)
		return found
	}
	if untolerated(corev1.TaintEffectNoExecute) {
		return fit{}
	}
	return fit{start: !untolerated(corev1.TaintEffectNoSchedule), stay: true}
}

// tolerationsOf are the template's and those that every DaemonSet's pods have:
// a node in trouble needs its daemons most.
func tolerationsOf(ds *appsv1.DaemonSet) []corev1.Toleration {
	out := slices.Clone(ds.Spec.Template.Spec.Tolerations)
	add := func(key string, effect corev1.TaintEffect) {
		t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: effect}
		for i := range out {
			if out[i].MatchToleration(&t) {
				out[i] = t
				return
			}
		}
		out = append(out, t)
	}
	add(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute)
	add(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute)
	add(corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule)
	add(corev1.TaintNodeMemoryPressure, corev1.TaintEffectNoSchedule)
	add(corev1.TaintNodePIDPressure, corev1.TaintEffectNoSchedule)
	add(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)
	if ds.Spec.Template.Spec.HostNetwork {
		add(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule)
	}
	return out
}

// podTemplate is the template of ds's pods, with what marks their revision.
func podTemplate(ds *appsv1.DaemonSet, hash string) *corev1.PodTemplateSpec {
	t := ds.Spec.Template.DeepCopy()
	t.Spec.Tolerations = tolerationsOf(ds)
	if t.Labels == nil {
		t.Labels = map[string]string{}
	}
	if g := generation(ds); g != "" {
		t.Labels["pod-template-generation"] = g
	}
	if hash != "" {
		t.Labels[appsv1.ControllerRevisionHashLabelKey] = hash
	}
	return t
}

// generation is the deprecated number of the template, empty if there is none.
func generation(ds *appsv1.DaemonSet) string {
	s := ds.Annotations[appsv1.DeprecatedTemplateGeneration]
	if _, err := strconv.ParseInt(s, 10, 64); err != nil {
		return ""
	}
	return s
}

// pinTo makes the scheduler bind pod to the node of that name and no other.
func pinTo(pod *corev1.Pod, node string) {
	term := corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &corev1.Affinity{}
	}
	if pod.Spec.Affinity.NodeAffinity == nil {
		pod.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	// The node fits the template's own terms, or it would not be here.
	pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}}
}

// nodeOf is the node that a pod is on, or is pinned to.
func nodeOf(p *corev1.Pod) string {
	if p.Spec.NodeName != "" {
		return p.Spec.NodeName
	}
	a := p.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, f := range term.MatchFields {
			if f.Key == "metadata.name" && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 {
				return f.Values[0]
			}
		}
	}
	return ""
}

// byNode sorts pods by node; on each, bound and old ones come first.
func byNode(pods []*corev1.Pod) map[string][]*corev1.Pod {
	out := map[string][]*corev1.Pod{}
	for _, p := range pods {
		out[nodeOf(p)] = append(out[nodeOf(p)], p)
	}
	for _, on := range out {
		sort.Slice(on, func(i, j int) bool {
			a, b := on[i], on[j]
			if x, y := a.Spec.NodeName != "", b.Spec.NodeName != ""; x != y {
				return x
			}
			if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
				return a.CreationTimestamp.Before(&b.CreationTimestamp)
			}
			return a.Name < b.Name
		})
	}
	return out
}

// plan is what to do: nodes that need a pod, and pods to delete.
type plan struct {
	create []string
	delete []*corev1.Pod
}

// place plans to have one pod on each node that fits, and none elsewhere.
func (c *Controller) place(ds *appsv1.DaemonSet, nodes []*corev1.Node, pods map[string][]*corev1.Pod, hash string) plan {
	var p plan
	there := map[string]bool{}
	for _, n := range nodes {
		there[n.Name] = true
		on := pods[n.Name]
		f := fits(ds, n)
		switch {
		case f.start && len(on) == 0:
			p.create = append(p.create, n.Name)
		case f.stay && len(on) > 0:
			c.keepOne(ds, n, on, f, hash, &p)
		case !f.stay:
			for _, pod := range on {
				if pod.DeletionTimestamp == nil {
					p.delete = append(p.delete, pod)
				}
			}
		}
	}
	// Those pinned to a node that is gone will never start. Those bound to it
	// are the pod garbage collector's.
	for name, on := range pods {
		if there[name] {
			continue
		}
		for _, pod := range on {
			if pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil {
				p.delete = append(p.delete, pod)
			}
		}
	}
	return p
}

// keepOne plans for a node that has pods and may go on to have one.
func (c *Controller) keepOne(ds *appsv1.DaemonSet, n *corev1.Node, on []*corev1.Pod, f fit, hash string, p *plan) {
	var running []*corev1.Pod
	replace := false
	for _, pod := range on {
		switch {
		case pod.DeletionTimestamp != nil:
		case pod.Status.Phase == corev1.PodFailed:
			if wait := c.backOff(ds, n.Name); wait > 0 {
				c.AddAfter(key(ds), wait)
				running = append(running, pod) // it holds the place until then
				continue
			}
			c.env.Events.Eventf(ds, corev1.EventTypeWarning, "FailedDaemonPod", "Found failed daemon pod %s/%s on node %s, will try to kill it", pod.Namespace, pod.Name, n.Name)
			p.delete = append(p.delete, pod)
		case pod.Status.Phase == corev1.PodSucceeded:
			c.env.Events.Eventf(ds, corev1.EventTypeNormal, "SucceededDaemonPod", "Found succeeded daemon pod %s/%s on node %s, will try to delete it", pod.Namespace, pod.Name, n.Name)
			p.delete = append(p.delete, pod)
		default:
			running = append(running, pod)
		}
	}
	surge := surgeOf(ds, 1) > 0
	switch {
	case !surge && len(running) > 1:
		p.delete = append(p.delete, running[1:]...)
	case surge && len(running) > 1:
		// One old and one new may stand side by side.
		var oldest, newest *corev1.Pod
		for _, pod := range running {
			slot := &oldest
			if isUpdated(ds, pod, hash) {
				slot = &newest
			}
			if *slot == nil {
				*slot = pod
				continue
			}
			p.delete = append(p.delete, pod)
		}
		if oldest != nil && newest != nil && control.IsAvailable(newest, ds.Spec.MinReadySeconds, c.env.Clock.Now()) {
			p.delete = append(p.delete, oldest)
		}
	}
	// A pod that still terminates holds the node's place without surge; with
	// it, its successor may start.
	if len(running) == 0 && len(p.delete) == 0 {
		replace = surge && f.start
	}
	if replace {
		p.create = append(p.create, n.Name)
	}
}

// isUpdated tells whether a pod is of the present template.
func isUpdated(ds *appsv1.DaemonSet, p *corev1.Pod, hash string) bool {
	if hash != "" && p.Labels[appsv1.ControllerRevisionHashLabelKey] == hash {
		return true
	}
	g := generation(ds)
	return g != "" && p.Labels["pod-template-generation"] == g && p.Labels[appsv1.ControllerRevisionHashLabelKey] == ""
}

func surgeOf(ds *appsv1.DaemonSet, total int) int {
	u := ds.Spec.UpdateStrategy.RollingUpdate
	if ds.Spec.UpdateStrategy.Type != appsv1.RollingUpdateDaemonSetStrategyType || u == nil || u.MaxSurge == nil {
		return 0
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(u.MaxSurge, total, true)
	if err != nil {
		return 0
	}
	return n
}

func unavailableOf(ds *appsv1.DaemonSet, total int) (int, error) {
	u := ds.Spec.UpdateStrategy.RollingUpdate
	if u == nil || u.MaxUnavailable == nil {
		return 1, nil
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(u.MaxUnavailable, total, true)
	if err != nil {
		return 0, fmt.Errorf("invalid value for MaxUnavailable: %w", err)
	}
	return n, nil
}

// roll plans the next step of a rolling update.
func (c *Controller) roll(ds *appsv1.DaemonSet, nodes []*corev1.Node, pods map[string][]*corev1.Pod, hash string) (plan, error) {
	desired := 0
	for _, n := range nodes {
		if fits(ds, n).start {
			desired++
		}
	}
	surge := surgeOf(ds, desired)
	unavailable, err := unavailableOf(ds, desired)
	if err != nil {
		return plan{}, err
	}
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	if surge > 0 {
		unavailable = 0
	}
	var p plan
	now := c.env.Clock.Now()
	var candidates []*corev1.Pod
	var candidateNodes, nowNodes []string
	down, surging := 0, 0
	for _, n := range nodes {
		if !fits(ds, n).stay {
			continue
		}
		var oldest, newest *corev1.Pod
		ambiguous := false
		for _, pod := range pods[n.Name] {
			if pod.DeletionTimestamp != nil && surge > 0 {
				continue
			}
			slot := &oldest
			if isUpdated(ds, pod, hash) {
				slot = &newest
			}
			ambiguous = ambiguous || *slot != nil
			*slot = pod
		}
		up := func(pod *corev1.Pod) bool {
			return pod != nil && pod.DeletionTimestamp == nil && control.IsAvailable(pod, ds.Spec.MinReadySeconds, now)
		}
		switch {
		case ambiguous:
			down++
			surging++
		case surge == 0 && oldest == nil && !up(newest), surge == 0 && oldest != nil && newest != nil:
			down++
		case surge == 0 && oldest != nil && oldest.DeletionTimestamp != nil:
			down++
		case surge == 0 && oldest != nil && !up(oldest):
			// It serves nobody: replacing it costs nothing.
			p.delete = append(p.delete, oldest)
			down++
		case surge == 0 && oldest != nil:
			candidates = append(candidates, oldest)
		case surge > 0 && oldest != nil && newest != nil:
			if up(newest) {
				p.delete = append(p.delete, oldest)
			} else {
				surging++
			}
		case surge > 0 && oldest != nil && !up(oldest):
			nowNodes = append(nowNodes, n.Name)
			surging++
		case surge > 0 && oldest != nil:
			candidateNodes = append(candidateNodes, n.Name)
		}
	}
	if surge > 0 {
		p.create = append(nowNodes, candidateNodes[:min(len(candidateNodes), max(0, surge-surging))]...)
		return p, nil
	}
	p.delete = append(p.delete, candidates[:min(len(candidates), max(0, unavailable-down))]...)
	return p, nil
}

// status counts nodes and pods.
func status(ds *appsv1.DaemonSet, nodes []*corev1.Node, pods map[string][]*corev1.Pod, hash string, now time.Time) appsv1.DaemonSetStatus {
	s := appsv1.DaemonSetStatus{
		ObservedGeneration: ds.Generation,
		CollisionCount:     ds.Status.CollisionCount,
		Conditions:         ds.Status.Conditions,
	}
	for _, n := range nodes {
		on := pods[n.Name]
		if !fits(ds, n).start {
			if len(on) > 0 {
				s.NumberMisscheduled++
			}
			continue
		}
		s.DesiredNumberScheduled++
		if len(on) == 0 {
			continue
		}
		s.CurrentNumberScheduled++
		pod := on[0]
		if control.IsReady(pod) {
			s.NumberReady++
			if control.IsAvailable(pod, ds.Spec.MinReadySeconds, now) {
				s.NumberAvailable++
			}
		}
		if isUpdated(ds, pod, hash) {
			s.UpdatedNumberScheduled++
		}
	}
	s.NumberUnavailable = s.DesiredNumberScheduled - s.NumberAvailable
	return s
}
