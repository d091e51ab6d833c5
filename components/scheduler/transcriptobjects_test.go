package scheduler

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cockroachdb/datadriven"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// parseNode returns the node of a command in a transcript.
func parseNode(name string, args []datadriven.CmdArg) (*corev1.Node, error) {
	n := node(name)
	for _, a := range args {
		var err error
		switch a.Key {
		case "cpu", "memory", "pods":
			n.Status.Allocatable[corev1.ResourceName(a.Key)], err = resource.ParseQuantity(a.Vals[0])
		case "labels":
			for key, value := range pairs(a.Vals) {
				n.Labels[key] = value
			}
		case "taints":
			for _, text := range a.Vals {
				pair, effect, _ := strings.Cut(text, ":")
				key, value, _ := strings.Cut(pair, "=")
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)})
			}
		case "unschedulable":
			n.Spec.Unschedulable = true
		default:
			err = fmt.Errorf("unknown argument %s", a.Key)
		}
		if err != nil {
			return nil, err
		}
	}
	return n, nil
}

// parsePod returns the pod of a command in a transcript.
func parsePod(name string, args []datadriven.CmdArg) (*corev1.Pod, error) {
	p := pod(name)
	requests := corev1.ResourceList{}
	p.Spec.Containers[0].Resources.Requests = requests
	for _, a := range args {
		var err error
		switch a.Key {
		case "cpu", "memory":
			requests[corev1.ResourceName(a.Key)], err = resource.ParseQuantity(a.Vals[0])
		case "priority":
			var v int64
			v, err = strconv.ParseInt(a.Vals[0], 10, 32)
			priority(int32(v))(p)
		case "node":
			p.Spec.NodeName = a.Vals[0]
		case "labels":
			p.Labels = pairs(a.Vals)
		case "selector":
			p.Spec.NodeSelector = pairs(a.Vals)
		case "gates":
			for _, gate := range a.Vals {
				p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: gate})
			}
		case "tolerations":
			for _, text := range a.Vals {
				pair, effect, _ := strings.Cut(text, ":")
				key, value, _ := strings.Cut(pair, "=")
				p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{
					Key: key, Operator: corev1.TolerationOpEqual, Value: value, Effect: corev1.TaintEffect(effect),
				})
			}
		case "spread":
			err = parseSpread(p, a.Vals[0])
		case "affinity", "anti-affinity":
			parseAffinity(p, a)
		case "preemption":
			policy := corev1.PreemptionPolicy(a.Vals[0])
			p.Spec.PreemptionPolicy = &policy
		default:
			err = fmt.Errorf("unknown argument %s", a.Key)
		}
		if err != nil {
			return nil, err
		}
	}
	return p, nil
}

// parseSpread adds a constraint KEY:SKEW[:WHENUNSATISFIABLE] for pods with the pod's labels.
func parseSpread(p *corev1.Pod, text string) error {
	parts := strings.Split(text, ":")
	if len(parts) < 2 {
		return fmt.Errorf("spread=%s: no skew", text)
	}
	skew, err := strconv.ParseInt(parts[1], 10, 32)
	if err != nil {
		return err
	}
	c := corev1.TopologySpreadConstraint{
		TopologyKey: parts[0], MaxSkew: int32(skew), WhenUnsatisfiable: corev1.DoNotSchedule,
		LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels},
	}
	if len(parts) > 2 {
		c.WhenUnsatisfiable = corev1.UnsatisfiableConstraintAction(parts[2])
	}
	p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, c)
	return nil
}

// parseAffinity sets a required term K=V@TOPOLOGYKEY.
func parseAffinity(p *corev1.Pod, a datadriven.CmdArg) {
	pair, topology, _ := strings.Cut(a.Vals[0], "@")
	terms := []corev1.PodAffinityTerm{{
		TopologyKey: topology, LabelSelector: &metav1.LabelSelector{MatchLabels: pairs([]string{pair})},
	}}
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &corev1.Affinity{}
	}
	if a.Key == "affinity" {
		p.Spec.Affinity.PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}
	} else {
		p.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}
	}
}

// parseBudget returns the PodDisruptionBudget of a command in a transcript.
func parseBudget(name string, args []datadriven.CmdArg) (*policyv1.PodDisruptionBudget, error) {
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	for _, a := range args {
		switch a.Key {
		case "selector":
			b.Spec.Selector = &metav1.LabelSelector{MatchLabels: pairs(a.Vals)}
		case "allowed":
			v, err := strconv.ParseInt(a.Vals[0], 10, 32)
			if err != nil {
				return nil, err
			}
			b.Status.DisruptionsAllowed = int32(v)
		default:
			return nil, fmt.Errorf("unknown argument %s", a.Key)
		}
	}
	return b, nil
}

// pairs parses a list of K=V.
func pairs(texts []string) map[string]string {
	out := map[string]string{}
	for _, text := range texts {
		key, value, _ := strings.Cut(text, "=")
		out[key] = value
	}
	return out
}
