// Package memory gives containers of guaranteed pods memory and huge pages on
// as few NUMA nodes as can be: the static policy of the memory manager.
//
// https://kubernetes.io/docs/tasks/administer-cluster/memory-manager/
package memory

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

	"hyperkube/components/kubelet/numa"
	"hyperkube/components/kubelet/telemetry"
	"hyperkube/components/kubelet/topology"
	"hyperkube/internal/atomicfile"
)

// Config of a Manager. All fields must be filled.
type Config struct {
	Machine numa.Machine
	// Reserved are bytes that nobody gets, by node and kind.
	Reserved map[int]map[v1.ResourceName]int64
	// File is where it is remembered who has what.
	File string
	// Guaranteed tells whether a pod's class lets it have memory of its own.
	Guaranteed func(*v1.Pod) bool
	// Active returns the pods that have not ended: the memory of others is free,
	// once Known tells that these are all. Nil: they always are.
	Active func() []*v1.Pod
	Known  func() bool
	Log    *slog.Logger
	// Metrics counts what is given; may be nil.
	Metrics *telemetry.Metrics
}

// Manager knows who has which memory. Its methods are safe for several
// goroutines.
type Manager struct {
	cfg Config

	mu    sync.Mutex // guards given
	given map[types.UID]map[string][]Block
}

// Given tells whether a file of a Manager says that somebody has memory of their
// own: without one, nobody would give it back. No file is no error.
func Given(file string) (bool, error) {
	raw, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading who has which memory: %w", err)
	}
	s, err := decode(raw)
	return err == nil && s.Policy == policy && len(s.Entries) > 0, err
}

// New makes a Manager that remembers what the file says. A file that does not
// fit the machine is an error, as upstream's is: what runs has memory that
// nobody knows of.
func New(cfg Config) (*Manager, error) {
	some := false
	for _, kinds := range cfg.Reserved {
		some = some || kinds[v1.ResourceMemory] > 0
	}
	if !some {
		return nil, errors.New("the Static policy of the memory manager needs reservedMemory of some NUMA node")
	}
	m := &Manager{cfg: cfg, given: map[types.UID]map[string][]Block{}}
	raw, err := os.ReadFile(cfg.File)
	if errors.Is(err, os.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading who has which memory: %w", err)
	}
	s, err := decode(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.File, err)
	}
	if s.Policy != policy || len(s.Entries) == 0 {
		return m, nil
	}
	for id, n := range lay(cfg.Machine, cfg.Reserved, nil) {
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
	m.given = s.Entries
	return m, nil
}

// save writes the file. The caller holds mu.
func (m *Manager) save() error {
	raw, err := encode(state{Policy: policy, Machine: lay(m.cfg.Machine, m.cfg.Reserved, m.given), Entries: m.given})
	if err != nil {
		return err
	}
	return atomicfile.Write(atomicfile.File{Path: m.cfg.File, Data: raw, Mode: 0o600})
}

// wants is what a container has for itself, in bytes by kind; nil for nothing.
func (m *Manager) wants(pod *v1.Pod, c *v1.Container) map[v1.ResourceName]int64 {
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

// Hints implements topology.Provider.
func (m *Manager) Hints(pod *v1.Pod, c *v1.Container) topology.Hints {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hints(pod, m.wants(pod, c), m.given[pod.UID][c.Name])
}

// PodHints implements topology.Provider.
func (m *Manager) PodHints(pod *v1.Pod) topology.Hints {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[v1.ResourceName]int64{}
	for c := range topology.Containers(pod) {
		for name := range m.wants(pod, c) {
			all[name] = topology.Request(pod, func(c *v1.Container) int64 { return m.wants(pod, c)[name] })
		}
	}
	var own []Block
	for _, blocks := range m.given[pod.UID] {
		own = append(own, blocks...)
	}
	return m.hints(pod, all, own)
}

// hints are those for all that is wanted together: each kind has the same ones. Of it
// own is given already, as to a pod that was admitted by the kubelet before: that stays
// where it is. The caller holds mu.
func (m *Manager) hints(pod *v1.Pod, want map[v1.ResourceName]int64, own []Block) topology.Hints {
	if len(want) == 0 {
		return nil
	}
	m.forget(pod.UID)
	if len(own) > 0 {
		return given(want, own)
	}
	list := m.fitting(pod, want)
	out := topology.Hints{}
	for name := range want {
		out[string(name)] = list
	}
	return out
}

// given are the hints for what is wanted and has been given: the nodes that it is on.
// What was given in another size, as to a container whose memory others have again, is
// of no wishes.
func given(want map[v1.ResourceName]int64, own []Block) topology.Hints {
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

// fitting lists the sets of nodes that have all that is wanted. A node is given
// out either alone or always with the same others. The caller holds mu.
func (m *Manager) fitting(pod *v1.Pod, want map[v1.ResourceName]int64) []topology.Hint {
	nodes := lay(m.cfg.Machine, m.cfg.Reserved, m.given)
	all := m.cfg.Machine.All()
	return topology.Fitting(all, 1, func(s numa.Set) (could, free int64, ok bool) {
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
		return could, free, !m.breaks(nodes, s)
	})
}

// breaks tells whether s is of other nodes than some that are given out already.
func (m *Manager) breaks(nodes map[int]*nodeState, s numa.Set) bool {
	for _, id := range s.IDs() {
		if n := nodes[id]; n == nil || n.Assignments > 0 && n.group() != s {
			return true
		}
	}
	return false
}

// reusable is how much a pod's containers that end before others start have on
// exactly these nodes. The caller holds mu.
func (m *Manager) reusable(pod *v1.Pod, s numa.Set, kind v1.ResourceName) int64 {
	var out int64
	for name, blocks := range m.given[pod.UID] {
		if !topology.Passing(pod, name) {
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

// forget frees the memory of pods that have ended; but is one that has not. The
// caller holds mu.
func (m *Manager) forget(but types.UID) {
	if len(m.given) == 0 {
		return
	}
	gone := topology.Gone(m.cfg.Active, m.cfg.Known, but)
	maps.DeleteFunc(m.given, func(uid types.UID, _ map[string][]Block) bool { return gone(uid) })
}

// Allocate implements topology.Provider.
func (m *Manager) Allocate(_ context.Context, pod *v1.Pod, c *v1.Container, nodes numa.Set) error {
	want := m.wants(pod, c)
	if len(want) == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget(pod.UID)
	if _, there := m.given[pod.UID][c.Name]; there {
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
	if m.given[pod.UID] == nil {
		m.given[pod.UID] = map[string][]Block{}
	}
	m.given[pod.UID][c.Name] = blocks
	return nil
}

// choose finds the nodes for a container: those that it is to have and, when
// they do not suffice, some more. The caller holds mu.
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

// reuse takes up to n bytes from a pod's containers that end before others
// start. The caller holds mu.
func (m *Manager) reuse(pod *v1.Pod, s numa.Set, kind v1.ResourceName, n int64) {
	for c := range topology.Containers(pod) {
		if !topology.Passing(pod, c.Name) {
			continue
		}
		blocks := m.given[pod.UID][c.Name]
		for i := range blocks {
			if b := &blocks[i]; b.Type == kind && b.set() == s {
				part := min(n, b.Size)
				b.Size, n = b.Size-part, n-part
			}
		}
	}
}

// Settle implements topology.Provider.
func (m *Manager) Settle(pod *v1.Pod, ok bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return topology.Settle(m.given, pod.UID, ok, m.save)
}

// Release frees the memory of a pod that has ended.
func (m *Manager) Release(pod types.UID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.given[pod]; !ok {
		return nil
	}
	delete(m.given, pod)
	return m.save()
}

// Nodes are the NUMA nodes that a container's memory has to be on; 0 for all.
func (m *Manager) Nodes(pod types.UID, container string) numa.Set {
	m.mu.Lock()
	defer m.mu.Unlock()
	var s numa.Set
	for _, b := range m.given[pod][container] {
		s |= b.set()
	}
	return s
}

// Of returns a copy of what a container has.
func (m *Manager) Of(pod types.UID, container string) []Block {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.given[pod][container])
}

// Allocatable is all that can be given out: one block for each kind and node.
func (m *Manager) Allocatable() []Block {
	var out []Block
	nodes := lay(m.cfg.Machine, m.cfg.Reserved, nil)
	for _, id := range slices.Sorted(maps.Keys(nodes)) {
		for _, kind := range slices.Sorted(maps.Keys(nodes[id].Memory)) {
			if n := nodes[id].Memory[kind].Allocatable; n > 0 {
				out = append(out, Block{Nodes: []int{id}, Type: kind, Size: n})
			}
		}
	}
	return out
}

// Reserve checks what a configuration sets aside on each node against what the
// node as a whole keeps of each kind of memory, and fills what it does not name
// with nothing.
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
