package podexplain

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// obstacle is a reason of the scheduler why a node is not suitable, and what it means.
type obstacle struct {
	// pattern matches the scheduler's text without the number of nodes.
	pattern *regexp.Regexp
	reason  string
	// meaning continues a sentence that begins with the number of nodes, with $1 for the first group of pattern.
	meaning, remedy string
}

// obstacles returns the known reasons of the scheduler.
func obstacles() []obstacle {
	one := func(pattern, reason, meaning, remedy string) obstacle {
		return obstacle{regexp.MustCompile("^" + pattern), reason, meaning, remedy}
	}
	return []obstacle{
		one(`Insufficient (\S+)`, "InsufficientResources", "do not have enough free $1 for the requests of the pod", "Lower the requests of the pod, delete or scale down other pods, or add a node. `kubectl describe nodes` shows what is allocated."),
		one(`Too many pods`, "TooManyPods", "have the maximum number of pods", "Add a node, or raise maxPods of the kubelet."),
		one(`node\(s\) had untolerated taints?(?: \{([^}]*)\}|\(s\))?`, "Taint", "have a taint that the pod does not tolerate ($1)", "Add a toleration to the pod, or remove the taint: `kubectl taint nodes NODE KEY-`."),
		one(`node\(s\) were unschedulable`, "Cordoned", "are cordoned", "Run `kubectl uncordon NODE`."),
		one(`node\(s\) didn't match Pod's node affinity/selector`, "NodeSelector", "do not match the nodeSelector or the node affinity of the pod", "Correct the nodeSelector or the affinity of the pod, or label a node: `kubectl label nodes NODE KEY=VALUE`."),
		one(`node\(s\) didn't match the requested node name`, "NodeName", "do not have the node name that the pod requests", "Correct nodeName of the pod."),
		one(`node\(s\) didn't match pod affinity`, "PodAffinity", "do not run pods that the pod affinity requires", "Start the pods that the affinity selects, or relax the affinity."),
		one(`node\(s\) didn't match pod anti-affinity`, "PodAntiAffinity", "run pods that the pod anti-affinity excludes", "Add nodes, lower the replicas, or use preferredDuringSchedulingIgnoredDuringExecution."),
		one(`node\(s\) didn't satisfy existing pods anti-affinity`, "PodAntiAffinity", "run pods whose anti-affinity excludes this pod", "Add nodes, or change the anti-affinity of these pods."),
		one(`node\(s\) didn't have free ports`, "HostPort", "already use a host port that the pod requests", "Select another hostPort, or run at most one such pod on each node."),
		one(`node\(s\) didn't match pod topology spread`, "TopologySpread", "would violate a topologySpreadConstraint of the pod", "Add nodes in other domains, or set whenUnsatisfiable: ScheduleAnyway."),
		one(`node\(s\) (?:had volume node affinity conflict|didn't match PersistentVolume's node affinity|didn't find available persistent volumes to bind)`, "VolumeNode", "cannot access a volume of the pod", "The pod must run where its volume is. Free resources on that node, or delete the claim if its data is not needed."),
		one(`node\(s\) did not have enough free storage`, "VolumeCapacity", "do not have enough storage for a claim of the pod", "Request a smaller volume or add storage."),
		one(`node\(s\) exceed max volume count`, "VolumeCount", "have the maximum number of volumes", "Add a node, or use fewer volumes on each."),
		one(`node\(s\) had no available volume zone`, "VolumeZone", "are in another zone than a volume of the pod", "Add a node in the zone of the volume."),
		one(`node\(s\) unavailable due to .*resourceclaim`, "ResourceClaim", "cannot provide a device that the pod claims", "Check the ResourceClaim: `kubectl describe resourceclaims`."),
	}
}

// scheduling explains why the pod has no node.
func (f *findings) scheduling() {
	pod := f.in.Pod
	if len(pod.Spec.SchedulingGates) > 0 {
		var names []string
		for _, g := range pod.Spec.SchedulingGates {
			names = append(names, g.Name)
		}
		f.problem("SchedulingGate", "The controller that has added the gates must remove them. Check that it runs.", "The scheduler ignores the pod until its scheduling gates are removed: %s.", strings.Join(names, ", "))
		return
	}
	message := ""
	if c := condition(pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		message = c.Message
	}
	if e := f.lastEvent("", "", "FailedScheduling"); e != nil && message == "" {
		message = e.Message
	}
	if message == "" {
		if name := pod.Spec.SchedulerName; name != "" && name != corev1.DefaultSchedulerName {
			f.problem("NoScheduler", "Start this scheduler, or correct schedulerName.", "The pod waits for the scheduler %q, which has not reported anything. It probably does not run.", name)
			return
		}
		f.problem("NotScheduled", "Check that the scheduler runs. A cluster with many new pods needs some seconds.", "The scheduler has not processed the pod yet.")
		return
	}
	f.unschedulable(message)
	if name := pod.Status.NominatedNodeName; name != "" {
		f.info("Preemption", "", "The scheduler is evicting pods of lower priority from node %q to start this pod there.", name)
	}
}

// count matches the number of nodes before a reason.
var count = regexp.MustCompile(`^(\d+) `)

// unschedulable explains a message of the scheduler, such as "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were
// unschedulable. preemption: …".
func (f *findings) unschedulable(message string) {
	all := between(message, "0/", " nodes are available")
	_, text, ok := strings.Cut(message, " nodes are available: ")
	if !ok {
		if name := between(message, `persistentvolumeclaim "`, `" not found`); name != "" {
			f.missingClaim(name)
			return
		}
		f.problem("Unschedulable", "", "The scheduler cannot find a node: %s", sentence(message))
		return
	}
	if strings.HasPrefix(message, "no nodes available") || all == "0" {
		f.problem("NoNodes", "Add a node.", "The cluster has no nodes.")
	}
	text, _, _ = strings.Cut(text, " preemption:")
	text = strings.TrimRight(text, ". ")
	known := obstacles()
	for _, part := range splitReasons(text) {
		m := count.FindStringSubmatch(part)
		reason := strings.TrimSuffix(count.ReplaceAllString(part, ""), ".")
		nodes := "Nodes"
		if m != nil {
			nodes = fmt.Sprintf("%s of %s nodes", m[1], all)
		}
		if name := between(reason, `persistentvolumeclaim "`, `" not found`); name != "" {
			f.missingClaim(name)
			continue
		}
		if contains(reason, "unbound immediate PersistentVolumeClaims") {
			if !f.in.ClaimsKnown {
				f.problem("UnboundClaim", "Run `kubectl describe pvc`.", "A claim of the pod is not bound to a volume.")
			}
			continue // volumes explains the claims
		}
		i := slices.IndexFunc(known, func(o obstacle) bool { return o.pattern.MatchString(reason) })
		if i < 0 {
			f.problem("Unschedulable", "", "%s are not suitable: %s", nodes, sentence(reason))
			continue
		}
		meaning := strings.ReplaceAll(known[i].meaning, "$1", "")
		if groups := known[i].pattern.FindStringSubmatch(reason); len(groups) > 1 {
			meaning = strings.ReplaceAll(known[i].meaning, "$1", strings.TrimSuffix(strings.TrimSpace(groups[1]), ":"))
		}
		meaning = strings.ReplaceAll(meaning, " ()", "")
		f.problem(known[i].reason, known[i].remedy, "%s %s.", nodes, meaning)
	}
}

// splitReasons splits the list of reasons at commas that a number of nodes follows, because reasons contain commas too.
func splitReasons(text string) []string {
	var out []string
	for part := range strings.SplitSeq(text, ", ") {
		if len(out) > 0 && !count.MatchString(part) {
			out[len(out)-1] += ", " + part
			continue
		}
		out = append(out, part)
	}
	return out
}

// placement explains why the pod is on its node.
func (f *findings) placement() {
	pod := f.in.Pod
	name := pod.Spec.NodeName
	var why []string
	if pod.Annotations[corev1.MirrorPodAnnotationKey] != "" {
		f.info("StaticPod", "", "The pod is a static pod of node %q: the kubelet runs it from a file, and the scheduler is not involved.", name)
		return
	}
	for _, owner := range pod.OwnerReferences {
		if owner.Kind == "DaemonSet" {
			f.info("DaemonSet", "", "The pod is on node %q because the DaemonSet %q has a pod on each matching node.", name, owner.Name)
			return
		}
	}
	keys := make([]string, 0, len(pod.Spec.NodeSelector))
	for key, value := range pod.Spec.NodeSelector {
		keys = append(keys, key+"="+value)
	}
	slices.Sort(keys)
	if len(keys) > 0 {
		why = append(why, "its nodeSelector requires "+strings.Join(keys, ", "))
	}
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		why = append(why, "its node affinity restricts the nodes")
	}
	for i := range f.in.Claims {
		if node := f.in.Claims[i].Annotations["volume.kubernetes.io/selected-node"]; node == name {
			why = append(why, fmt.Sprintf("the volume of its claim %q was created for this node", f.in.Claims[i].Name))
		}
	}
	if len(why) == 0 {
		f.info("Placement", "", "The scheduler has selected node %q, which had the most suitable free resources.", name)
		return
	}
	f.info("Placement", "", "The pod is on node %q: %s.", name, strings.Join(why, "; "))
}

// node explains problems of the node of the pod.
func (f *findings) node() {
	n := f.in.Node
	if n == nil {
		return
	}
	for i := range n.Status.Conditions {
		c := &n.Status.Conditions[i]
		switch {
		case c.Type == corev1.NodeReady && c.Status == corev1.ConditionUnknown:
			f.problem("NodeUnreachable", "Check the machine, its network and its kubelet. After five minutes, the pods of controllers are created on other nodes.", "The kubelet of node %q has stopped to report, so the state of the pod is unknown.", n.Name)
		case c.Type == corev1.NodeReady && c.Status == corev1.ConditionFalse:
			f.problem("NodeNotReady", "Run `kubectl describe node "+n.Name+"` and read the log of its kubelet.", "Node %q is not ready: %s", n.Name, sentence(c.Message))
		case c.Status == corev1.ConditionTrue && slices.Contains([]corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure}, c.Type):
			f.problem(string(c.Type), "Free the resource on the node; the kubelet evicts pods until then.", "Node %q has the condition %s: %s", n.Name, c.Type, sentence(c.Message))
		}
	}
}
