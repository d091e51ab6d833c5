package state

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Class is a set of pods that selectors cannot distinguish: they have the same namespace, labels,
// and inter-pod affinity. The pods of a ReplicaSet are one class, so that selectors need to be
// evaluated for few classes instead of many pods.
type Class struct {
	Namespace string
	Labels    labels.Set
	// Terminating is true if the pods are being deleted.
	Terminating bool
	// Terms are the inter-pod affinity terms; nil if there are none.
	Terms *Terms
	// On are the nonzero numbers of the class's pods by node. It includes nodes that are not in the
	// State.
	On []*Tally

	key    string
	byNode map[*Node]*Tally
	at     [classLists]int // indexes in the lists of the State
}

// Tally is the number of pods of one class on one node.
type Tally struct {
	Node  *Node
	Count int64
	class *Class
	at    int // index in class.On
}

// Indexes of the lists of classes that a State maintains: all classes, those with required anti-affinity, and those
// with valid inter-pod affinity or anti-affinity.
const (
	allClasses = iota
	awayClasses
	affineClasses
	classLists
)

// Classes returns the classes of all pods that are on nodes. The slice belongs to the State: the caller must not modify
// it, nor use it after the pods of the State have changed.
func (s *State) Classes() []*Class { return s.classes[allClasses] }

// AwayClasses returns the classes whose pods have required anti-affinity, which may exclude nodes for other pods.
func (s *State) AwayClasses() []*Class { return s.classes[awayClasses] }

// AffineClasses returns the classes whose pods have valid inter-pod affinity or anti-affinity, which may prefer nodes
// for other pods.
func (s *State) AffineClasses() []*Class { return s.classes[affineClasses] }

// classKey returns a key that is equal for pods of the same class. terms are the parsed terms of the pod, or nil.
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
	// Marshal cannot fail for objects that an API server returned.
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

// count adds a pod, which is on a node, to its class. The class is created for the first pod.
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

// uncount removes a pod from its class. The class is deleted with its last pod.
func (s *State) uncount(p *Pod) {
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

// belongs reports whether the class belongs in a list of the State. list is one of the constants allClasses,
// awayClasses and affineClasses.
func (c *Class) belongs(list int) bool {
	switch list {
	case awayClasses:
		return c.Terms != nil && len(c.Terms.Away) > 0
	case affineClasses:
		return c.Terms != nil && c.Terms.Err == nil
	}
	return true
}

// Topology assigns a number to each value of a node label, such as each zone. Plugins use the numbers as slice indexes
// to count pods by value.
type Topology struct {
	of      []int32 // value number by node index; -1 without the label
	numbers map[string]int32
}

// maxTopologies is the maximum number of labels whose topology is cached, because users choose the labels.
const maxTopologies = 64

// Topology returns the topology of the node label key. It is valid until a node is added or removed or its labels
// change.
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

// Len returns the number of values.
func (t *Topology) Len() int { return len(t.numbers) }

// Number returns the number of a label value. It returns false if no node has the value.
func (t *Topology) Number(value string) (int, bool) {
	number, ok := t.numbers[value]
	return int(number), ok
}

// Of returns the number of a node's value, or -1 if the node does not have the label or is not in
// the State.
func (t *Topology) Of(n *Node) int {
	if n.Object == nil {
		return -1
	}
	return int(t.of[n.index])
}
