// Package state is what the scheduler knows of nodes and of the pods on them,
// kept up to date event by event and laid out for being scanned: filters and
// scores walk one slice of nodes. It is owned by one goroutine and has no lock.
package state

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// State is all nodes and the pods that are on them, or will be.
type State struct {
	nodes  []*Node
	byName map[string]*Node
	pods   map[types.UID]*Pod
	// images counts on how many nodes each image is.
	images     map[string]int
	byKey      map[string]*Class
	classes    [classLists][]*Class
	topologies map[string]*Topology
	// nominated are the pods for which room is being made, by UID.
	nominated map[types.UID]*nomination
}

// Node is one node with the sums over its pods. Plugins read it and never
// write to it.
type Node struct {
	Name string
	// Object is nil while pods are known to be on a node that is not.
	Object      *corev1.Node
	Allocatable Resources
	// Requested sums the pods' requests.
	Requested Resources
	// Assumed sums the requests with something assumed for containers that
	// name none: a hundred such pods do not weigh nothing.
	AssumedCPU, AssumedMemory int64
	Pods                      []*Pod
	Ports                     map[Port]int
	// Images maps every name of an image to its size in bytes.
	Images map[string]int64
	// Nominated are the pods without a node for which room is being made
	// here.
	Nominated []*Pod
	index     int
}

// Pod is a pod with what is asked of it again and again.
type Pod struct {
	Object                    *corev1.Pod
	Requests                  Resources
	AssumedCPU, AssumedMemory int64
	Ports                     []Port
	// Terms of inter-pod affinity; nil when the pod has none.
	Terms *Terms
	// Priority, 0 when the pod names none.
	Priority int32

	key   string // of its class
	tally *Tally // nil while it is on no node
	node  *Node
	place int // in node.Pods
}

// Port is one port of a host that a pod takes.
type Port struct {
	IP       string // "0.0.0.0" takes it on all addresses
	Protocol corev1.Protocol
	Port     int32
}

// New returns an empty state.
func New() *State {
	return &State{
		byName: map[string]*Node{}, pods: map[types.UID]*Pod{}, images: map[string]int{},
		byKey: map[string]*Class{}, topologies: map[string]*Topology{}, nominated: map[types.UID]*nomination{},
	}
}

// Nodes returns all known nodes. The slice is the state's own.
func (s *State) Nodes() []*Node { return s.nodes }

// PodCount is how many pods are on nodes.
func (s *State) PodCount() int { return len(s.pods) }

// Node returns the node of that name, nil if it is not known.
func (s *State) Node(name string) *Node {
	n := s.byName[name]
	if n == nil || n.Object == nil {
		return nil
	}
	return n
}

// ImageNodes returns on how many nodes an image is.
func (s *State) ImageNodes(name string) int { return s.images[name] }

// SetNode adds a node or replaces what is known of it.
func (s *State) SetNode(obj *corev1.Node) {
	n := s.byName[obj.Name]
	if n == nil {
		n = s.addName(obj.Name)
	}
	if n.Object == nil {
		n.index = len(s.nodes)
		s.nodes = append(s.nodes, n)
	}
	if n.Object == nil || !maps.Equal(n.Object.Labels, obj.Labels) {
		clear(s.topologies)
	}
	s.forgetImages(n)
	n.Object = obj
	n.Allocatable = fromList(obj.Status.Allocatable)
	n.Images = map[string]int64{}
	for _, image := range obj.Status.Images {
		for _, name := range image.Names {
			n.Images[name] = image.SizeBytes
			s.images[name]++
		}
	}
}

func (s *State) forgetImages(n *Node) {
	for name := range n.Images {
		if s.images[name]--; s.images[name] <= 0 {
			delete(s.images, name)
		}
	}
	n.Images = nil
}

// RemoveNode forgets a node. Its pods stay known until they are removed, should
// the node come back first.
func (s *State) RemoveNode(name string) {
	n := s.byName[name]
	if n == nil || n.Object == nil {
		return
	}
	s.forgetImages(n)
	clear(s.topologies)
	last := len(s.nodes) - 1
	s.nodes[n.index] = s.nodes[last]
	s.nodes[n.index].index = n.index
	s.nodes[last] = nil
	s.nodes = s.nodes[:last]
	n.Object = nil
	n.Allocatable = Resources{}
	s.forgetEmpty(n)
}

// forgetEmpty forgets a node that is not known and that nothing is on.
func (s *State) forgetEmpty(n *Node) {
	if n.Object == nil && len(n.Pods) == 0 && len(n.Nominated) == 0 {
		delete(s.byName, n.Name)
	}
}

func (s *State) addName(name string) *Node {
	n := &Node{Name: name, Ports: map[Port]int{}}
	s.byName[name] = n
	return n
}

// Pod returns a pod that is on a node, nil if it is not known.
func (s *State) Pod(uid types.UID) *Pod { return s.pods[uid] }

// SetPod puts a pod on a node, or replaces what is known of it. The node is the
// one given, for a pod that is only assumed to be there does not say so itself.
func (s *State) SetPod(p *Pod, node string) {
	s.RemovePod(p.Object.UID)
	n := s.byName[node]
	if n == nil {
		n = s.addName(node)
	}
	p.node, p.place = n, len(n.Pods)
	n.Pods = append(n.Pods, p)
	n.Requested.Add(p.Requests, 1)
	n.AssumedCPU += p.AssumedCPU
	n.AssumedMemory += p.AssumedMemory
	for _, port := range p.Ports {
		n.Ports[port]++
	}
	s.pods[p.Object.UID] = p
	s.count(p)
}

// RemovePod takes a pod from its node.
func (s *State) RemovePod(uid types.UID) {
	p := s.pods[uid]
	if p == nil {
		return
	}
	delete(s.pods, uid)
	n := p.node
	last := len(n.Pods) - 1
	n.Pods[p.place] = n.Pods[last]
	n.Pods[p.place].place = p.place
	n.Pods[last] = nil
	n.Pods = n.Pods[:last]
	n.Requested.Add(p.Requests, -1)
	n.AssumedCPU -= p.AssumedCPU
	n.AssumedMemory -= p.AssumedMemory
	for _, port := range p.Ports {
		if n.Ports[port]--; n.Ports[port] <= 0 {
			delete(n.Ports, port)
		}
	}
	s.discount(p)
	p.node = nil
	s.forgetEmpty(n)
}

// NodeName returns where the pod is, "" if nowhere.
func (p *Pod) NodeName() string {
	if p.node == nil {
		return ""
	}
	return p.node.Name
}

// nomination is a node on which room is being made for a pod.
type nomination struct {
	pod  *Pod
	node *Node
}

// Nominate notes that room is being made for a pod without a node.
func (s *State) Nominate(p *Pod, node string) {
	s.Withdraw(p.Object.UID)
	n := s.byName[node]
	if n == nil {
		n = s.addName(node)
	}
	n.Nominated = append(n.Nominated, p)
	s.nominated[p.Object.UID] = &nomination{p, n}
}

// Withdraw forgets for which node a pod was nominated, if it was.
func (s *State) Withdraw(uid types.UID) {
	old := s.nominated[uid]
	if old == nil {
		return
	}
	delete(s.nominated, uid)
	old.node.Nominated = slices.DeleteFunc(old.node.Nominated, func(p *Pod) bool { return p == old.pod })
	s.forgetEmpty(old.node)
}

// NominatedNode returns the node for which a pod is nominated, nil if there is
// none that is known.
func (s *State) NominatedNode(uid types.UID) *Node {
	if n := s.nominated[uid]; n != nil && n.node.Object != nil {
		return n.node
	}
	return nil
}

// AnyNominated tells whether any pod is nominated for a node.
func (s *State) AnyNominated() bool { return len(s.nominated) > 0 }
