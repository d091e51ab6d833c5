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
	"hyperkube/internal/pod/podutil"
)

// fit is the result of fits: whether a pod of a DaemonSet should be started on a node, and whether a running one may
// stay there.
type fit struct{ start, stay bool }

// fits checks whether a node matches the name, selector, affinity and tolerations in the pod template of a DaemonSet.
// It does not check resources; the scheduler does.
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

// tolerationsOf returns the tolerations of a DaemonSet's pods: those of the template, and those that are added because
// the pods must run on unhealthy nodes too.
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

// podTemplate returns a copy of a DaemonSet's pod template with the tolerations and the revision labels of its pods.
// hash is the revision hash.
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

// generation returns the template generation in the deprecated annotation of a DaemonSet, or "" if there is none.
func generation(ds *appsv1.DaemonSet) string {
	s := ds.Annotations[appsv1.DeprecatedTemplateGeneration]
	if _, err := strconv.ParseInt(s, 10, 64); err != nil {
		return ""
	}
	return s
}

// pinTo replaces the required node affinity of pod by one for this node, so that the scheduler binds the pod to this
// node only. The controller itself has checked the affinity that is replaced.
func pinTo(pod *corev1.Pod, node string) {
	term := corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &corev1.Affinity{}
	}
	if pod.Spec.Affinity.NodeAffinity == nil {
		pod.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	// This replaces the terms of the template, because the node already matches them.
	pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}}
}

// nodeOf returns the name of the node that a pod is bound to, or that its node affinity selects (see pinTo). It returns
// "" if there is neither.
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

// byNode groups pods by the name of their node, which nodeOf returns. Within a node, pods that are bound to it come
// first, and then the older of two pods.
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

// plan contains the names of the nodes on which to create a pod, and the pods to delete.
type plan struct {
	create []string
	delete []*corev1.Pod
}

// planPlacement plans the creation and deletion of pods. A node where pods may start gets one if it has none. Where pods may
// only stay, for example despite a taint with NoSchedule, an existing pod is kept. On other nodes all are deleted. pods are
// the DaemonSet's pods by node, and hash is the revision hash of the current template, of whose update roll plans the rest.
func (c *Controller) planPlacement(ds *appsv1.DaemonSet, nodes []*corev1.Node, pods map[string][]*corev1.Pod, hash string) plan {
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
			c.planNode(ds, n, on, f, hash, &p)
		case !f.stay:
			for _, pod := range on {
				if pod.DeletionTimestamp == nil {
					p.delete = append(p.delete, pod)
				}
			}
		}
	}
	// Pods that select a deleted node never start, so delete them. Pods that are bound to one are
	// deleted by the pod garbage collector.
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

// planNode adds to the plan p which pods to create and delete on the node n. on are the DaemonSet's pods there, of
// which it may keep one, and f whether a pod may start and stay there. Terminated pods are deleted, failed ones after
// a back-off.
func (c *Controller) planNode(ds *appsv1.DaemonSet, n *corev1.Node, on []*corev1.Pod, f fit, hash string, p *plan) {
	var running []*corev1.Pod
	held := false // a failed pod occupies the node until its back-off is over
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
		// Without surge, a terminating pod must be deleted before its successor is created; with
		// surge, the successor may start immediately.
		if surge && f.start && !held {
			p.create = append(p.create, n.Name)
		}
	case len(running) == 1:
	case surge:
		p.delete = append(p.delete, c.excessPods(ds, running, hash)...)
	default:
		p.delete = append(p.delete, running[1:]...)
	}
}

// excessPods returns the pods to delete on a node with several running pods during an update with surge. It keeps one
// pod with the current template and one with a former template; the latter only while it is ready and the new one is
// not available.
func (c *Controller) excessPods(ds *appsv1.DaemonSet, running []*corev1.Pod, hash string) (out []*corev1.Pod) {
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
	if oldest != nil && newest != nil && (!podutil.Ready(oldest) || control.IsAvailable(newest, ds.Spec.MinReadySeconds, c.env.Clock.Now())) {
		out = append(out, oldest)
	}
	return out
}

// isUpdated reports whether a pod has the current template, which has the revision hash. It also compares the
// deprecated template generation, because a revision that an older API server serialized differently has another hash.
func isUpdated(ds *appsv1.DaemonSet, p *corev1.Pod, hash string) bool {
	if hash != "" && p.Labels[appsv1.ControllerRevisionHashLabelKey] == hash {
		return true
	}
	g := generation(ds)
	return g != "" && p.Labels["pod-template-generation"] == g
}

// surgeOf returns how many pods with the current template may run beside old ones on the same node during a rolling
// update. total is the number of nodes that should run a pod. It returns 0 for other update strategies, and if maxSurge
// is unset or invalid.
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

// unavailableOf returns how many of a DaemonSet's pods may be unavailable during a rolling update; 1 if maxUnavailable
// is unset. total is the number of nodes that should run a pod, of which maxUnavailable can be a percentage. It returns
// an error if maxUnavailable is invalid.
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

// roll plans the next step of a rolling update. It assumes that each node has its pod; the caller has created missing
// ones.
func (c *Controller) roll(ds *appsv1.DaemonSet, nodes []*corev1.Node, pods map[string][]*corev1.Pod, hash string) (plan, error) {
	desired := 0
	var all []nodePods
	for _, n := range nodes {
		o := nodePods{name: n.Name, start: fits(ds, n).start}
		if o.start {
			desired++
		}
		if !o.start && len(pods[n.Name]) == 0 {
			continue // no pod is needed there
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
		return surgeUpdate(all, desired, surge, up), nil
	}
	return replaceOutdated(all, max(1, unavailable), up), nil
}

// nodePods are the pods of a DaemonSet on one node, except those being deleted: one with a former and one with the
// current template.
type nodePods struct {
	name string
	// start is true if the node should run a pod.
	start bool
	// old and new are the pods with a former and with the current template, or nil.
	old, new *corev1.Pod
	// hasExcess is true if there is more than one old or new pod. The excess is deleted first.
	hasExcess bool
}

// find sets the fields old, new and hasExcess of o from pods, the DaemonSet's pods on the node. Pods that are being
// deleted are ignored. hash is the revision hash of the current template.
func (o *nodePods) find(ds *appsv1.DaemonSet, pods []*corev1.Pod, hash string) {
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil {
			continue
		}
		slot := &o.old
		if isUpdated(ds, pod, hash) {
			slot = &o.new
		}
		o.hasExcess = o.hasExcess || *slot != nil
		*slot = pod
	}
}

// replaceOutdated plans the deletion of pods with a former template: all unavailable ones, and as many available ones
// as unavailable allows. up reports whether a pod, which may be nil, is available. The next sync creates their
// replacements.
func replaceOutdated(all []nodePods, unavailable int, up func(*corev1.Pod) bool) (p plan) {
	down := 0
	var candidates []*corev1.Pod
	for _, o := range all {
		switch {
		case o.hasExcess, (o.old == nil) == (o.new == nil):
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

// surgeUpdate plans an update with surge. It creates new pods next to old ones: next to all unavailable old pods, and
// next to as many available ones as surge allows. It deletes an old pod when the new pod of its node is available. On
// nodes that should not run a pod any more, old pods stay until the desired number of pods is available elsewhere. up
// reports whether a pod, which may be nil, is available.
func surgeUpdate(all []nodePods, desired, surge int, up func(*corev1.Pod) bool) (p plan) {
	surging, available := 0, 0
	var candidates []string
	var stray []*corev1.Pod
	for _, o := range all {
		if o.hasExcess {
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

// status computes the status of a DaemonSet. pods are its pods by node, and hash is the current revision hash.
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
		if podutil.Ready(pod) {
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
