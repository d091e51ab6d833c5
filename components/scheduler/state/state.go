// Package state is the scheduler's view of nodes and their pods. It is updated with each event, and
// optimized for iteration: filters and score plugins iterate over one slice of nodes. It belongs to
// one goroutine and is not safe for concurrent use.
package state

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// State contains all nodes, and the pods that are assigned or nominated to nodes. It is not safe for concurrent use.
type State struct {
	nodes  []*Node
	byName map[string]*Node
	pods   map[types.UID]*Pod
	// images is the number of nodes that have each image.
	images     map[string]int
	byKey      map[string]*Class
	classes    [classLists][]*Class
	topologies map[string]*Topology
	// nominated are the nominated pods by UID.
	nominated map[types.UID]*nomination
}

// Node is a node with the total resource requests and other sums over the pods on it, which the State keeps up to
// date. Plugins must not modify it.
type Node struct {
	Name string
	// Object is nil if pods are assigned to a node that does not exist.
	Object      *corev1.Node
	Allocatable Resources
	// Requested is the sum of the pods' requests.
	Requested Resources
	// NonZeroCPU and NonZeroMemory are the sums including default requests of containers without
	// requests, so that such pods affect the scores.
	NonZeroCPU, NonZeroMemory int64
	Pods                      []*Pod
	Ports                     map[Port]int
	// Images maps every name of an image to its size in bytes.
	Images map[string]int64
	// Nominated are the unscheduled pods that are nominated to this node.
	Nominated []*Pod
	index     int
}

// Pod is a pod with properties, such as its total requests, that are computed once. After NewPod, only the State
// modifies it.
type Pod struct {
	Object                    *corev1.Pod
	Requests                  Resources
	NonZeroCPU, NonZeroMemory int64
	Ports                     []Port
	// Terms are the inter-pod affinity terms; nil if there are none.
	Terms *Terms
	// Priority is 0 if the pod has none.
	Priority int32

	key   string // key of its class
	tally *Tally // nil if the pod is not on a node
	node  *Node
	index int // index in node.Pods
}

// Port is a host port that a container of a pod uses, on one or all addresses of the node.
type Port struct {
	IP       string // "0.0.0.0" means all addresses
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

// Nodes returns all existing nodes, in no particular order. The slice belongs to the State, and changes when nodes are
// removed.
func (s *State) Nodes() []*Node { return s.nodes }

// PodCount returns the number of pods on nodes.
func (s *State) PodCount() int { return len(s.pods) }

// Node returns the node with the name, or nil if the State contains no Node object of that name.
func (s *State) Node(name string) *Node {
	n := s.byName[name]
	if n == nil || n.Object == nil {
		return nil
	}
	return n
}

// ImageNodes returns the number of nodes that have pulled the image with this name.
func (s *State) ImageNodes(name string) int { return s.images[name] }

// SetNode adds a node or replaces its object. Pods that were assigned to it before it existed are kept.
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

// forgetImages decrements, for each image of the node n, the number of nodes that have the image, because n is deleted
// or its images are replaced.
func (s *State) forgetImages(n *Node) {
	for name := range n.Images {
		if s.images[name]--; s.images[name] <= 0 {
			delete(s.images, name)
		}
	}
	n.Images = nil
}

// RemoveNode removes a node. Its pods are kept until they are removed, because the node may be
// recreated first.
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

// forgetEmpty removes the entry of a deleted node if no pods refer to it any more.
func (s *State) forgetEmpty(n *Node) {
	if n.Object == nil && len(n.Pods) == 0 && len(n.Nominated) == 0 {
		delete(s.byName, n.Name)
	}
}

// addName adds a node by its name, without an object, because pods can be assigned or nominated to a node before the
// State contains the Node.
func (s *State) addName(name string) *Node {
	n := &Node{Name: name, Ports: map[Port]int{}}
	s.byName[name] = n
	return n
}

// Pod returns a pod that is assigned to a node, or nil.
func (s *State) Pod(uid types.UID) *Pod { return s.pods[uid] }

// SetPod assigns a pod to a node, or replaces the pod with the same UID. The node is a parameter because the spec of a
// pod that is being bound does not contain it yet. It need not exist.
func (s *State) SetPod(p *Pod, node string) {
	s.RemovePod(p.Object.UID)
	n := s.byName[node]
	if n == nil {
		n = s.addName(node)
	}
	p.node, p.index = n, len(n.Pods)
	n.Pods = append(n.Pods, p)
	n.Requested.Add(p.Requests, 1)
	n.NonZeroCPU += p.NonZeroCPU
	n.NonZeroMemory += p.NonZeroMemory
	for _, port := range p.Ports {
		n.Ports[port]++
	}
	s.pods[p.Object.UID] = p
	s.count(p)
}

// RemovePod removes a pod from its node. It does nothing if the pod is on no node.
func (s *State) RemovePod(uid types.UID) {
	p := s.pods[uid]
	if p == nil {
		return
	}
	delete(s.pods, uid)
	n := p.node
	last := len(n.Pods) - 1
	n.Pods[p.index] = n.Pods[last]
	n.Pods[p.index].index = p.index
	n.Pods[last] = nil
	n.Pods = n.Pods[:last]
	n.Requested.Add(p.Requests, -1)
	n.NonZeroCPU -= p.NonZeroCPU
	n.NonZeroMemory -= p.NonZeroMemory
	for _, port := range p.Ports {
		if n.Ports[port]--; n.Ports[port] <= 0 {
			delete(n.Ports, port)
		}
	}
	s.uncount(p)
	p.node = nil
	s.forgetEmpty(n)
}

// NodeName returns the name of the node that the pod is assigned to in the State, or "".
func (p *Pod) NodeName() string {
	if p.node == nil {
		return ""
	}
	return p.node.Name
}

// nomination is a pod without a node and the node that is reserved for it, because preemption evicts other pods there.
type nomination struct {
	pod  *Pod
	node *Node
}

// Nominate nominates a pod without a node to a node. The pod's previous nomination is removed.
func (s *State) Nominate(p *Pod, node string) {
	s.ClearNomination(p.Object.UID)
	n := s.byName[node]
	if n == nil {
		n = s.addName(node)
	}
	n.Nominated = append(n.Nominated, p)
	s.nominated[p.Object.UID] = &nomination{p, n}
}

// ClearNomination removes the nomination of a pod, if it has one.
func (s *State) ClearNomination(uid types.UID) {
	old := s.nominated[uid]
	if old == nil {
		return
	}
	delete(s.nominated, uid)
	old.node.Nominated = slices.DeleteFunc(old.node.Nominated, func(p *Pod) bool { return p == old.pod })
	s.forgetEmpty(old.node)
}

// NominatedNode returns the node to which a pod is nominated. It returns nil if there is no nomination or the node does
// not exist.
func (s *State) NominatedNode(uid types.UID) *Node {
	if n := s.nominated[uid]; n != nil && n.node.Object != nil {
		return n.node
	}
	return nil
}

// AnyNominated reports whether any pod is nominated to a node.
func (s *State) AnyNominated() bool { return len(s.nominated) > 0 }
