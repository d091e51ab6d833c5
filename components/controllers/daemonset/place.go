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
	"hyperkube/internal/podfacts"
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
	held := false // the place, by a failed pod, until that may be replaced
	for _, pod := range on {
		switch {
		case pod.DeletionTimestamp != nil:
		case pod.Status.Phase == corev1.PodFailed:
			if wait := c.backOff(ds, n.Name); wait > 0 {
				c.AddAfter(key(ds), wait)
				held = true
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
	switch surge := surgeOf(ds, 1) > 0; {
	case len(running) == 0:
		// A pod that still terminates holds the node's place without surge; with
		// it, its successor may start.
		if surge && f.start && !held {
			p.create = append(p.create, n.Name)
		}
	case len(running) == 1:
	case surge:
		p.delete = append(p.delete, c.excess(ds, running, hash)...)
	default:
		p.delete = append(p.delete, running[1:]...)
	}
}

// excess returns all but one old and one new of several pods on a node; and the old
// one, too, once the new one can take its place or it serves nobody.
func (c *Controller) excess(ds *appsv1.DaemonSet, running []*corev1.Pod, hash string) (out []*corev1.Pod) {
	var oldest, newest *corev1.Pod
	for _, pod := range running {
		slot := &oldest
		if pod.Labels[appsv1.ControllerRevisionHashLabelKey] == hash {
			slot = &newest
		}
		if *slot == nil {
			*slot = pod
			continue
		}
		out = append(out, pod)
	}
	if oldest != nil && newest != nil && (!podfacts.Ready(oldest) || control.IsAvailable(newest, ds.Spec.MinReadySeconds, c.env.Clock.Now())) {
		out = append(out, oldest)
	}
	return out
}

// isUpdated tells whether a pod is of the present template. By its number are those
// whose revision an older server wrote in other words, so that it is not found.
func isUpdated(ds *appsv1.DaemonSet, p *corev1.Pod, hash string) bool {
	if hash != "" && p.Labels[appsv1.ControllerRevisionHashLabelKey] == hash {
		return true
	}
	g := generation(ds)
	return g != "" && p.Labels["pod-template-generation"] == g
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
	var all []onNode
	for _, n := range nodes {
		o := onNode{name: n.Name, start: fits(ds, n).start}
		if o.start {
			desired++
		}
		if !o.start && len(pods[n.Name]) == 0 {
			continue // nothing is missing there
		}
		o.find(ds, pods[n.Name], hash)
		all = append(all, o)
	}
	surge := surgeOf(ds, desired)
	unavailable, err := unavailableOf(ds, desired)
	if err != nil {
		return plan{}, err
	}
	now := c.env.Clock.Now()
	up := func(pod *corev1.Pod) bool {
		return pod != nil && control.IsAvailable(pod, ds.Spec.MinReadySeconds, now)
	}
	if surge > 0 {
		return surgeOver(all, desired, surge, up), nil
	}
	return replaceIn(all, max(1, unavailable), up), nil
}

// onNode are the pods of a DaemonSet on one node, those aside that are being
// deleted.
type onNode struct {
	name string
	// start: a pod should be there.
	start bool
	// old and new are those of former templates and of the present one; nil: none.
	old, new *corev1.Pod
	// several: there are more of either, which is put in order first.
	several bool
}

func (o *onNode) find(ds *appsv1.DaemonSet, pods []*corev1.Pod, hash string) {
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil {
			continue
		}
		slot := &o.old
		if isUpdated(ds, pod, hash) {
			slot = &o.new
		}
		o.several = o.several || *slot != nil
		*slot = pod
	}
}

// replaceIn plans to delete old pods: those that are not up, for they serve nobody,
// and as many of the others as may be missing at once.
func replaceIn(all []onNode, unavailable int, up func(*corev1.Pod) bool) (p plan) {
	down := 0
	var candidates []*corev1.Pod
	for _, o := range all {
		switch {
		case o.several, (o.old == nil) == (o.new == nil):
			down++
		case o.old != nil && up(o.old):
			candidates = append(candidates, o.old)
		case o.old != nil:
			p.delete = append(p.delete, o.old)
			down++
		case !up(o.new):
			down++
		}
	}
	p.delete = append(p.delete, candidates[:min(len(candidates), max(0, unavailable-down))]...)
	return p
}

// surgeOver plans to make new pods beside old ones: where those are not up, and
// else as many at once as the surge allows; and to delete the old ones beside which
// new ones are up. Where no pod should be any more the old ones stay until as many
// as should be are up elsewhere.
func surgeOver(all []onNode, desired, surge int, up func(*corev1.Pod) bool) (p plan) {
	surging, available := 0, 0
	var candidates []string
	var stray []*corev1.Pod
	for _, o := range all {
		if o.several {
			surging++
			continue
		}
		if o.old != nil && up(o.old) || o.old == nil && up(o.new) {
			available++
		}
		switch {
		case o.old == nil:
		case o.new != nil && up(o.new):
			p.delete = append(p.delete, o.old)
		case o.new != nil:
			surging++
		case !o.start && up(o.old):
			stray = append(stray, o.old)
		case !o.start:
			p.delete = append(p.delete, o.old)
		case up(o.old):
			candidates = append(candidates, o.name)
		default:
			p.create = append(p.create, o.name)
		}
	}
	p.delete = append(p.delete, stray[:min(len(stray), max(0, available-desired))]...)
	p.create = append(p.create, candidates[:min(len(candidates), max(0, surge-surging))]...)
	return p
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
		if podfacts.Ready(pod) {
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
