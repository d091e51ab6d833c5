package state

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Class is all pods that are alike to selectors: of one namespace, with the
// same labels and the same inter-pod affinity. The pods of a ReplicaSet are one
// class, so that what is asked of every pod there is asked of few classes.
type Class struct {
	Namespace string
	Labels    labels.Set
	// Terminating: the pods are being deleted.
	Terminating bool
	// Terms of their inter-pod affinity; nil when they have none.
	Terms *Terms
	// On tells how many of them are on which nodes, those that are not
	// known among them. Nothing in it is zero.
	On []*Tally

	key    string
	byNode map[*Node]*Tally
	at     [classLists]int // in the lists of the State that it is in
}

// Tally is how many pods of one class are on one node.
type Tally struct {
	Node  *Node
	Count int64
	class *Class
	at    int // in class.On
}

// The lists of classes that a State has.
const (
	allClasses = iota
	awayClasses
	affineClasses
	classLists
)

// Classes returns all classes. The slice is the state's own, and changes with
// the pods.
func (s *State) Classes() []*Class { return s.classes[allClasses] }

// AwayClasses returns those that must be kept away from other pods.
func (s *State) AwayClasses() []*Class { return s.classes[awayClasses] }

// AffineClasses returns those with any terms of inter-pod affinity.
func (s *State) AffineClasses() []*Class { return s.classes[affineClasses] }

// classKey tells classes apart.
func classKey(pod *corev1.Pod, terms *Terms) string {
	var b strings.Builder
	b.WriteString(pod.Namespace)
	if pod.DeletionTimestamp != nil {
		b.WriteByte(1)
	}
	b.WriteByte(0)
	keys := make([]string, 0, len(pod.Labels))
	for key := range pod.Labels {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		b.WriteString(key)
		b.WriteByte(0)
		b.WriteString(pod.Labels[key])
		b.WriteByte(0)
	}
	if terms == nil {
		return b.String()
	}
	// What cannot be encoded cannot have come from an API; such pods share a
	// class with those whose encoding is empty.
	if a := pod.Spec.Affinity.PodAffinity; a != nil {
		data, _ := a.Marshal()
		b.WriteByte(1)
		b.Write(data)
	}
	if a := pod.Spec.Affinity.PodAntiAffinity; a != nil {
		data, _ := a.Marshal()
		b.WriteByte(2)
		b.Write(data)
	}
	return b.String()
}

// count puts a pod that has come to its node into its class.
func (s *State) count(p *Pod) {
	c := s.byKey[p.key]
	if c == nil {
		c = &Class{
			Namespace: p.Object.Namespace, Labels: p.Object.Labels, Terminating: p.Object.DeletionTimestamp != nil,
			Terms: p.Terms, key: p.key, byNode: map[*Node]*Tally{},
		}
		s.byKey[p.key] = c
		for list := range classLists {
			if c.belongs(list) {
				c.at[list] = len(s.classes[list])
				s.classes[list] = append(s.classes[list], c)
			}
		}
	}
	t := c.byNode[p.node]
	if t == nil {
		t = &Tally{Node: p.node, class: c, at: len(c.On)}
		c.byNode[p.node] = t
		c.On = append(c.On, t)
	}
	t.Count++
	p.tally = t
}

// discount takes a pod out of its class.
func (s *State) discount(p *Pod) {
	t := p.tally
	p.tally = nil
	if t.Count--; t.Count > 0 {
		return
	}
	c := t.class
	delete(c.byNode, t.Node)
	last := len(c.On) - 1
	c.On[t.at] = c.On[last]
	c.On[t.at].at = t.at
	c.On[last] = nil
	c.On = c.On[:last]
	if last > 0 {
		return
	}
	delete(s.byKey, c.key)
	for list := range classLists {
		if c.belongs(list) {
			all := s.classes[list]
			last := len(all) - 1
			all[c.at[list]] = all[last]
			all[c.at[list]].at[list] = c.at[list]
			all[last] = nil
			s.classes[list] = all[:last]
		}
	}
}

func (c *Class) belongs(list int) bool {
	switch list {
	case awayClasses:
		return c.Terms != nil && len(c.Terms.Away) > 0
	case affineClasses:
		return c.Terms != nil && c.Terms.Err == nil
	}
	return true
}

// Topology numbers the values that one label has on nodes.
type Topology struct {
	of      []int32 // by the index of the node; -1 without the label
	numbers map[string]int32
}

// maxTopologies bounds how many labels are remembered: which are asked for is
// up to users.
const maxTopologies = 64

// Topology returns the topology of a label. It is good until nodes change.
func (s *State) Topology(key string) *Topology {
	if t := s.topologies[key]; t != nil {
		return t
	}
	if len(s.topologies) >= maxTopologies {
		clear(s.topologies)
	}
	t := &Topology{of: make([]int32, len(s.nodes)), numbers: map[string]int32{}}
	for i, n := range s.nodes {
		value, ok := n.Object.Labels[key]
		if !ok {
			t.of[i] = -1
			continue
		}
		number, ok := t.numbers[value]
		if !ok {
			number = int32(len(t.numbers))
			t.numbers[value] = number
		}
		t.of[i] = number
	}
	s.topologies[key] = t
	return t
}

// Len returns how many values there are.
func (t *Topology) Len() int { return len(t.numbers) }

// Number returns the number of a value, false when no node has it.
func (t *Topology) Number(value string) (int, bool) {
	number, ok := t.numbers[value]
	return int(number), ok
}

// Of returns the number of the node's value, or -1 when it has none or is not
// known.
func (t *Topology) Of(n *Node) int {
	if n.Object == nil {
		return -1
	}
	return int(t.of[n.index])
}
