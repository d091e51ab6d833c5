// Package memorymanager implements the Static policy of the memory manager: it allocates memory and huge
// pages to containers of Guaranteed pods on as few NUMA nodes as possible.
//
// https://kubernetes.io/docs/tasks/administer-cluster/memory-manager/
package memorymanager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/resource"

	"hyperkube/components/kubelet/resources/numa"
	"hyperkube/components/kubelet/resources/topology"
	"hyperkube/components/kubelet/telemetry"
	"hyperkube/internal/host/atomicfile"
)

// Config is the configuration of a Manager. All fields are required unless their comment says
// otherwise.
type Config struct {
	Machine numa.Machine
	// Reserved are the bytes that are not allocated, by NUMA node and memory type.
	Reserved map[int]map[v1.ResourceName]int64
	// File is the state file of the allocations.
	File string
	// Guaranteed reports whether a pod's QoS class is Guaranteed.
	Guaranteed func(*v1.Pod) bool
	// Active returns the pods that have not terminated. Memory of other pods is freed once Known
	// reports that the list is complete. If Known is nil, it always is.
	Active func() []*v1.Pod
	Known  func() bool
	Log    *slog.Logger
	// Metrics counts allocations. It may be nil.
	Metrics *telemetry.Allocation
}

// Manager allocates memory and huge pages on NUMA nodes to containers, and saves the allocations in a file.
// Its methods are safe for concurrent use.
type Manager struct {
	cfg Config

	// mu guards assignments, the allocated blocks by pod and container.
	mu          sync.Mutex // guards assignments
	assignments map[types.UID]map[string][]Block
}

// HasAllocations reports whether a state file contains allocations of memory. Without a Manager they would
// never be released. A file that does not exist or is of another policy has none; one that cannot be read or
// decoded is an error.
func HasAllocations(file string) (bool, error) {
	raw, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading memory manager state: %w", err)
	}
	s, err := decode(raw)
	return err == nil && s.Policy == policy && len(s.Entries) > 0, err
}

// New returns a Manager with the allocations of the state file. It ignores a state file of another policy. As
// upstream, a state file that does not match the machine is an error, because running containers could use memory
// that the Manager does not track. It also returns an error if cfg reserves no memory.
func New(cfg Config) (*Manager, error) {
	some := false
	for _, kinds := range cfg.Reserved {
		some = some || kinds[v1.ResourceMemory] > 0
	}
	if !some {
		return nil, errors.New("the Static policy of the memory manager requires reservedMemory for at least one NUMA node")
	}
	m := &Manager{cfg: cfg, assignments: map[types.UID]map[string][]Block{}}
	raw, err := os.ReadFile(cfg.File)
	if errors.Is(err, os.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading memory manager state: %w", err)
	}
	s, err := decode(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.File, err)
	}
	if s.Policy != policy || len(s.Entries) == 0 {
		return m, nil
	}
	for id, n := range machineState(cfg.Machine, cfg.Reserved, nil) {
		had := s.Machine[id]
		if had == nil || len(s.Machine) != len(cfg.Machine) {
			return nil, fmt.Errorf("%s: [memorymanager] the expected machine state is different from the real one", cfg.File)
		}
		for kind, t := range n.Memory {
			if h := had.Memory[kind]; h == nil || h.SystemReserved != t.SystemReserved || (kind != v1.ResourceMemory && h.Total != t.Total) {
				return nil, fmt.Errorf("%s: [memorymanager] the expected machine state is different from the real one", cfg.File)
			}
		}
	}
	m.assignments = s.Entries
	return m, nil
}

// save writes the memory allocations to the state file, from which New reads them after a restart. The caller must
// hold mu.
func (m *Manager) save() error {
	raw, err := encode(state{Policy: policy, Machine: machineState(m.cfg.Machine, m.cfg.Reserved, m.assignments), Entries: m.assignments})
	if err != nil {
		return err
	}
	return atomicfile.Write(atomicfile.File{Path: m.cfg.File, Data: raw, Mode: 0o600})
}

// requests returns the bytes that must be allocated to a container, by memory type, or nil if its pod is not
// Guaranteed or has pod-level resources.
func (m *Manager) requests(pod *v1.Pod, c *v1.Container) map[v1.ResourceName]int64 {
	if !m.cfg.Guaranteed(pod) || resource.IsPodLevelResourcesSet(pod) {
		return nil
	}
	var out map[v1.ResourceName]int64
	for name, q := range c.Resources.Requests {
		if (name == v1.ResourceMemory || strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)) && q.Value() > 0 {
			if out == nil {
				out = map[v1.ResourceName]int64{}
			}
			out[name] = q.Value()
		}
	}
	return out
}

// Hints returns the sets of NUMA nodes from which the memory of the container can be allocated, or nil if it
// gets none. It implements topology.Provider.
func (m *Manager) Hints(pod *v1.Pod, c *v1.Container) topology.Hints {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hints(pod, m.requests(pod, c), m.assignments[pod.UID][c.Name])
}

// PodHints returns the hints for the memory of all containers of the pod together. It implements
// topology.Provider.
func (m *Manager) PodHints(pod *v1.Pod) topology.Hints {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[v1.ResourceName]int64{}
	for c := range topology.Containers(pod) {
		for name := range m.requests(pod, c) {
			all[name] = topology.Request(pod, func(c *v1.Container) int64 { return m.requests(pod, c)[name] })
		}
	}
	var own []Block
	for _, blocks := range m.assignments[pod.UID] {
		own = append(own, blocks...)
	}
	return m.hints(pod, all, own)
}

// hints returns the topology hints for all memory types of want together; each type has the same hints. want has
// the requested bytes by memory type. own is the memory that the pod already has, such as after a restart of the
// kubelet; the pod keeps it. The caller must hold mu.
func (m *Manager) hints(pod *v1.Pod, want map[v1.ResourceName]int64, own []Block) topology.Hints {
	if len(want) == 0 {
		return nil
	}
	m.freeInactive(pod.UID)
	if len(own) > 0 {
		return assignedHints(want, own)
	}
	list := m.fitting(pod, want)
	out := topology.Hints{}
	for name := range want {
		out[string(name)] = list
	}
	return out
}

// assignedHints returns the hints for memory that is already allocated: its NUMA nodes. It returns nil if the
// allocated size differs from the request, such as for a container whose memory later containers have reused.
func assignedHints(want map[v1.ResourceName]int64, own []Block) topology.Hints {
	out := topology.Hints{}
	for name, size := range want {
		hint := topology.Hint{Preferred: true}
		for i := range own {
			if own[i].Type == name {
				hint.Nodes |= own[i].set()
				size -= own[i].Size
			}
		}
		if size != 0 {
			return nil
		}
		out[string(name)] = []topology.Hint{hint}
	}
	return out
}

// fitting returns the sets of NUMA nodes that can satisfy all requests of want. A node is allocated either alone or
// always in the same group of nodes, so a set that contains only a part of a group, or a group and other nodes, is
// excluded. The caller must hold mu.
func (m *Manager) fitting(pod *v1.Pod, want map[v1.ResourceName]int64) []topology.Hint {
	nodes := machineState(m.cfg.Machine, m.cfg.Reserved, m.assignments)
	all := m.cfg.Machine.All()
	return topology.NewHints(all, 1, func(s numa.Set) (could, free int64, ok bool) {
		could, free = 1, 1
		for name, size := range want {
			var most, left int64
			for _, id := range s.IDs() {
				if t := nodes[id].Memory[name]; t != nil {
					most, left = most+t.Allocatable, left+t.Free
				}
			}
			if most < size {
				could = 0
			}
			if left+m.reusable(pod, s, name) < size {
				free = 0
			}
		}
		return could, free, !m.splitsGroup(nodes, s)
	})
}

// splitsGroup reports whether s overlaps a group of allocated nodes without being equal to it, or has a node
// that does not exist.
func (m *Manager) splitsGroup(nodes map[int]*nodeState, s numa.Set) bool {
	for _, id := range s.IDs() {
		if n := nodes[id]; n == nil || n.Assignments > 0 && n.group() != s {
			return true
		}
	}
	return false
}

// reusable returns the bytes of the memory type kind that later containers of the pod can reuse on exactly
// the NUMA nodes s: those of containers that terminate before the next one starts, such as init containers.
// The caller must hold mu.
func (m *Manager) reusable(pod *v1.Pod, s numa.Set, kind v1.ResourceName) int64 {
	var out int64
	for name, blocks := range m.assignments[pod.UID] {
		if !topology.TerminatesBeforeNext(pod, name) {
			continue
		}
		for i := range blocks {
			if blocks[i].Type == kind && blocks[i].set() == s {
				out += blocks[i].Size
			}
		}
	}
	return out
}

// freeInactive frees the memory of pods that have terminated or do not exist any more, except that of the pod
// `but`. The caller must hold mu.
func (m *Manager) freeInactive(but types.UID) {
	if len(m.assignments) == 0 {
		return
	}
	gone := topology.Inactive(m.cfg.Active, m.cfg.Known, but)
	maps.DeleteFunc(m.assignments, func(uid types.UID, _ map[string][]Block) bool { return gone(uid) })
}

// Allocate allocates the memory that a container requests, on the NUMA nodes or more of them. It does nothing
// for a container of a pod that is not Guaranteed and for one that already has its memory. The allocation is
// reverted unless Settle is called with ok. It returns an error if there is too little free memory. It
// implements topology.Provider.
func (m *Manager) Allocate(_ context.Context, pod *v1.Pod, c *v1.Container, nodes numa.Set) error {
	want := m.requests(pod, c)
	if len(want) == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.freeInactive(pod.UID)
	if _, there := m.assignments[pod.UID][c.Name]; there {
		return nil
	}
	nodes, err := m.choose(pod, want, nodes)
	m.cfg.Metrics.MemoryPinned(err)
	if err != nil {
		return err
	}
	var blocks []Block
	for _, kind := range slices.Sorted(maps.Keys(want)) {
		m.reuse(pod, nodes, kind, want[kind])
		blocks = append(blocks, Block{Nodes: nodes.IDs(), Type: kind, Size: want[kind]})
	}
	if m.assignments[pod.UID] == nil {
		m.assignments[pod.UID] = map[string][]Block{}
	}
	m.assignments[pod.UID][c.Name] = blocks
	return nil
}

// choose returns the NUMA nodes to allocate the requests of want on: nodes, extended by others if they do not
// suffice. It returns an error if no set suffices. The caller must hold mu.
func (m *Manager) choose(pod *v1.Pod, want map[v1.ResourceName]int64, nodes numa.Set) (numa.Set, error) {
	var best *topology.Hint
	list := m.fitting(pod, want)
	for i := range list {
		h := &list[i]
		if nodes != 0 && h.Nodes&nodes != nodes {
			continue
		}
		if best == nil || h.Nodes == nodes || best.Nodes != nodes && (h.Preferred && !best.Preferred || h.Preferred == best.Preferred && h.Nodes.Narrower(best.Nodes)) {
			best = h
		}
	}
	switch {
	case best != nil:
		return best.Nodes, nil
	case nodes == 0:
		return 0, errors.New("[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available")
	}
	return 0, errors.New("[memorymanager] failed to find NUMA nodes to extend the current topology hint")
}

// reuse takes up to n bytes of the memory type kind on the NUMA nodes s from the pod's containers that
// terminate before the next one starts. The caller must hold mu.
func (m *Manager) reuse(pod *v1.Pod, s numa.Set, kind v1.ResourceName, n int64) {
	for c := range topology.Containers(pod) {
		if !topology.TerminatesBeforeNext(pod, c.Name) {
			continue
		}
		blocks := m.assignments[pod.UID][c.Name]
		for i := range blocks {
			if b := &blocks[i]; b.Type == kind && b.set() == s {
				part := min(n, b.Size)
				b.Size, n = b.Size-part, n-part
			}
		}
	}
}

// Settle keeps the memory allocated to a pod and writes the state file if ok is true, and otherwise frees it,
// because the pod is rejected. It implements topology.Provider.
func (m *Manager) Settle(pod *v1.Pod, ok bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return topology.Settle(m.assignments, pod.UID, ok, m.save)
}

// Release frees the memory of a terminated pod and writes the state file. A pod without memory is no error.
func (m *Manager) Release(pod types.UID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.assignments[pod]; !ok {
		return nil
	}
	delete(m.assignments, pod)
	return m.save()
}

// Nodes returns the NUMA nodes that the memory of a container is restricted to; the empty set means no
// restriction.
func (m *Manager) Nodes(pod types.UID, container string) numa.Set {
	m.mu.Lock()
	defer m.mu.Unlock()
	var s numa.Set
	for _, b := range m.assignments[pod][container] {
		s |= b.set()
	}
	return s
}

// Blocks returns a copy of the memory blocks that are allocated to a container.
func (m *Manager) Blocks(pod types.UID, container string) []Block {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.assignments[pod][container])
}

// Allocatable returns the memory that can be allocated: one block for each memory type and NUMA
// node.
func (m *Manager) Allocatable() []Block {
	var out []Block
	nodes := machineState(m.cfg.Machine, m.cfg.Reserved, nil)
	for _, id := range slices.Sorted(maps.Keys(nodes)) {
		for _, kind := range slices.Sorted(maps.Keys(nodes[id].Memory)) {
			if n := nodes[id].Memory[kind].Allocatable; n > 0 {
				out = append(out, Block{Nodes: []int{id}, Type: kind, Size: n})
			}
		}
	}
	return out
}

// Reserve returns the memory reserved on each NUMA node of the machine. given is the configured memory by
// node and memory type. It returns an error if a configured node does not exist, or if the sum of a memory
// type does not equal all, what the node as a whole reserves of it.
func Reserve(machine numa.Machine, given map[int]map[v1.ResourceName]int64, all map[v1.ResourceName]int64) (map[int]map[v1.ResourceName]int64, error) {
	sum := map[v1.ResourceName]int64{}
	for id, kinds := range given {
		if !machine.All().Has(id) {
			return nil, fmt.Errorf("reservedMemory: the reserved memory configuration references a NUMA node %d that does not exist on this machine", id)
		}
		for kind, n := range kinds {
			sum[kind] += n
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(all)) {
		if sum[kind] != all[kind] {
			return nil, fmt.Errorf("the total amount %d of type %q is not equal to the value %d determined by Node Allocatable feature", sum[kind], kind, all[kind])
		}
	}
	for kind, n := range sum {
		if _, ok := all[kind]; !ok && n > 0 {
			return nil, fmt.Errorf("the total amount %d of type %q is not equal to the value 0 determined by Node Allocatable feature", n, kind)
		}
	}
	out := map[int]map[v1.ResourceName]int64{}
	for i := range machine {
		out[machine[i].ID] = maps.Clone(given[machine[i].ID])
	}
	return out, nil
}
