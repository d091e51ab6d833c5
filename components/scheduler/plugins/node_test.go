package plugins

import (
	"fmt"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
)

func makeNode(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("4Gi")}
	for _, f := range change {
		f(n)
	}
	return n
}

func cycleOf(p *corev1.Pod, nodes ...*corev1.Node) *framework.Cycle {
	s := state.New()
	for _, n := range nodes {
		s.SetNode(n)
	}
	return &framework.Cycle{Pod: state.NewPod(p), State: s}
}

func TestDeclaredFeatures(t *testing.T) {
	c := cycleOf(&corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{RestartPolicyRules: []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestartAllContainers}}}}}},
		makeNode("can", func(n *corev1.Node) {
			n.Status.DeclaredFeatures = []string{"A", "RestartAllContainersOnContainerExits"}
		}), makeNode("cannot"))
	check, err := NodeDeclaredFeatures{}.Filter(c)
	if err != nil || check == nil {
		t.Fatalf("%v, %v", check, err)
	}
	if r := check.Node(c.State.Node("can")); r != nil {
		t.Errorf("can: %v", r)
	}
	if r := check.Node(c.State.Node("cannot")); len(r) != 1 || r[0].Text != "node(s) didn't match Pod's required features" || !r[0].Unresolvable {
		t.Errorf("cannot: %v", r)
	}
	if check, err := (NodeDeclaredFeatures{}).Filter(cycleOf(&corev1.Pod{})); check != nil || err != nil {
		t.Errorf("a pod without required features: %v, %v", check, err)
	}
}

// TestConflict: terms that no node can match.
func TestConflict(t *testing.T) {
	field := func(name string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{name}}
	}
	c := cycleOf(&corev1.Pod{Spec: corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{field("a"), field("b")}}},
	}}}}})
	if check, err := (NodeAffinity{}).Filter(c); err != nil || check == nil || check.Refused != "pod affinity terms conflict" {
		t.Errorf("%+v, %v", check, err)
	}
}

// TestBalance: the score depends on how the pod changes the balance of a node.
func TestBalance(t *testing.T) {
	busy := func(cpu, memory string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "busy"}, Spec: corev1.PodSpec{NodeName: "x", Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}}}}}}
	}
	c := cycleOf(busy("1", "0"), makeNode("even"), makeNode("needy"))
	c.State.SetPod(state.NewPod(busy("0", "1Gi")), "needy")
	out := make([]int64, 2)
	nodes := []*state.Node{c.State.Node("even"), c.State.Node("needy")}
	if !(NodeResourcesBalancedAllocation{}).Score(c, nodes, out) {
		t.Fatal("no opinion")
	}
	// The balanced node: 100 without the pod, 87 with it. The other node: vice versa.
	if out[0] != 68 || out[1] != 81 {
		t.Errorf("scores %v", out)
	}
}

// TestImagesOfVolumes: images of image volumes count like images of containers.
func TestImagesOfVolumes(t *testing.T) {
	c := cycleOf(&corev1.Pod{Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Image: "elsewhere"}},
		Volumes:    []corev1.Volume{{VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "model"}}}},
	}}, makeNode("has", func(n *corev1.Node) {
		n.Status.Images = []corev1.ContainerImage{{Names: []string{"model:latest"}, SizeBytes: 2000 << 20}}
	}), makeNode("has not"))
	out := make([]int64, 2)
	if !(ImageLocality{}).Score(c, []*state.Node{c.State.Node("has"), c.State.Node("has not")}, out) || out[0] != 49 || out[1] != 0 {
		t.Errorf("scores %v", out)
	}
}

// TestRequired compares the function that is called for every node with upstream's library.
func TestRequired(t *testing.T) {
	chance := rand.New(rand.NewPCG(1, 2))
	keys, values := []string{"a", "b", "c"}, []string{"", "x", "y"}
	some := func() map[string]string {
		out := map[string]string{}
		for _, key := range keys {
			if chance.IntN(2) == 0 {
				out[key] = values[chance.IntN(len(values))]
			}
		}
		return out
	}
	matched := 0
	for range 2000 {
		var nodes []*corev1.Node
		for i := range 1 + chance.IntN(4) {
			nodes = append(nodes, makeNode(fmt.Sprint("n", i), func(n *corev1.Node) { n.Labels = some() }))
		}
		p := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: some()}}
		if chance.IntN(2) == 0 {
			term := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key: keys[chance.IntN(len(keys))], Operator: corev1.NodeSelectorOpNotIn, Values: values[:1+chance.IntN(2)],
			}}}
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}},
			}}
		}
		c := cycleOf(p, nodes...)
		matches := required(c)
		for _, n := range nodes {
			want, err := nodeaffinity.GetRequiredNodeAffinity(p).Match(n)
			if err != nil {
				t.Fatal(err)
			}
			if want {
				matched++
			}
			if got := matches(c.State.Node(n.Name)); got != want {
				t.Errorf("%v and %+v match a node with %v: %v, want %v", p.Spec.NodeSelector, p.Spec.Affinity, n.Labels, got, want)
			}
		}
		if matches(&state.Node{}) && (len(p.Spec.NodeSelector) > 0 || p.Spec.Affinity != nil) {
			t.Error("matches a deleted node")
		}
	}
	if matched < 500 {
		t.Errorf("only %d nodes matched", matched)
	}
}
