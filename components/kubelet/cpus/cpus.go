// Package cpus gives containers CPUs of their own: the static policy of the CPU
// manager. All other containers share what is left.
//
// https://kubernetes.io/docs/concepts/policy/node-resource-managers/
package cpus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"os"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/resource"
	"k8s.io/utils/cpuset"

	"hyperkube/components/kubelet/numa"
	"hyperkube/components/kubelet/telemetry"
	"hyperkube/components/kubelet/topology"
	"hyperkube/internal/atomicfile"
)

// Config of a Manager. All fields must be filled but those that say otherwise.
type Config struct {
	// Machine is which CPUs there are.
	Machine Topology
	// Reserved CPUs are nobody's own; not empty.
	Reserved cpuset.CPUSet
	// Strict keeps those that share from the reserved CPUs, too.
	Strict bool
	// WholeCores gives out nothing less than all threads of a core; ByCache
	// prefers all CPUs of a cache; Spread takes what does not fit on one NUMA
	// node in equal parts of several.
	WholeCores, ByCache, Spread bool
	// File is where it is remembered who has what.
	File string
	// Guaranteed tells whether a pod's class lets it have CPUs of its own.
	Guaranteed func(*v1.Pod) bool
	// Active returns the pods that have not ended: CPUs of others are free,
	// once Known tells that these are all. Nil: they always are.
	Active func() []*v1.Pod
	Known  func() bool
	Log    *slog.Logger
	// Metrics counts what is given; may be nil.
	Metrics *telemetry.Metrics
}

// Manager knows who has which CPUs. Its methods are safe for several
// goroutines.
type Manager struct {
	cfg Config

	mu  sync.Mutex // guards own
	own map[types.UID]map[string]cpuset.CPUSet
}

// state is the file. The checksum is of the rest.
type state struct {
	Policy   string                          `json:"policyName"`
	Default  string                          `json:"defaultCpuSet"`
	Entries  map[types.UID]map[string]string `json:"entries,omitempty"`
	Checksum uint32                          `json:"checksum"`
}

const policy = "static"

// New makes a Manager that remembers what the file says. A file that does not
// fit the machine is an error: pods run on CPUs that nobody knows of.
func New(cfg Config) (*Manager, error) {
	if cfg.Reserved.IsEmpty() {
		return nil, errors.New("the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero")
	}
	if !cfg.Reserved.IsSubsetOf(cfg.Machine.All()) {
		return nil, fmt.Errorf("reserved CPUs %s are not all of the machine's %s", cfg.Reserved, cfg.Machine.All())
	}
	m := &Manager{cfg: cfg, own: map[types.UID]map[string]cpuset.CPUSet{}}
	raw, err := os.ReadFile(cfg.File)
	if errors.Is(err, os.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading who has which CPUs: %w", err)
	}
	if m.own, err = decode(raw); err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.File, err)
	}
	taken := m.taken()
	if !taken.IsSubsetOf(cfg.Machine.All()) {
		return nil, fmt.Errorf("%s: CPUs %s are not all of the machine's %s", cfg.File, taken, cfg.Machine.All())
	}
	if !taken.Intersection(cfg.Reserved).IsEmpty() {
		// They were not reserved when they were given.
		return nil, fmt.Errorf("%s: not all reserved cpus: %q are present in defaultCpuSet: %q", cfg.File, cfg.Reserved, cfg.Machine.All().Difference(taken))
	}
	return m, nil
}

// Given tells whether a file of a Manager says that somebody has CPUs of their own:
// without one, nobody would give them back. No file is no error.
func Given(file string) (bool, error) {
	raw, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading who has which CPUs: %w", err)
	}
	own, err := decode(raw)
	return len(own) > 0, err
}

func decode(raw []byte) (map[types.UID]map[string]cpuset.CPUSet, error) {
	var s state
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, fmt.Errorf("decoding who has which CPUs: %w", err)
	}
	own := map[types.UID]map[string]cpuset.CPUSet{}
	if s.Policy != policy {
		return own, nil // nobody had any
	}
	for uid, containers := range s.Entries {
		own[uid] = map[string]cpuset.CPUSet{}
		for name, text := range containers {
			set, err := cpuset.Parse(text)
			if err != nil {
				return nil, fmt.Errorf("decoding who has which CPUs: %w", err)
			}
			own[uid][name] = set
		}
	}
	return own, nil
}

// save writes the file. The caller holds mu.
func (m *Manager) save() error {
	s := state{Policy: policy, Default: m.shared().String(), Entries: map[types.UID]map[string]string{}}
	for uid, containers := range m.own {
		s.Entries[uid] = map[string]string{}
		for name, set := range containers {
			s.Entries[uid][name] = set.String()
		}
	}
	raw, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encoding who has which CPUs: %w", err)
	}
	sum := fnv.New32a()
	_, _ = sum.Write(raw)
	s.Checksum = sum.Sum32()
	if raw, err = json.Marshal(s); err != nil {
		return fmt.Errorf("encoding who has which CPUs: %w", err)
	}
	return atomicfile.Write(atomicfile.File{Path: m.cfg.File, Data: raw, Mode: 0o600})
}

// taken are all CPUs that someone has. The caller holds mu.
func (m *Manager) taken() cpuset.CPUSet {
	out := cpuset.New()
	for _, containers := range m.own {
		for _, set := range containers {
			out = out.Union(set)
		}
	}
	return out
}

// shared are the CPUs of all others. The caller holds mu.
func (m *Manager) shared() cpuset.CPUSet {
	out := m.cfg.Machine.All().Difference(m.taken())
	if m.cfg.Strict {
		out = out.Difference(m.cfg.Reserved)
	}
	return out
}

// Of returns the container's CPUs, and whether they are its own.
func (m *Manager) Of(pod types.UID, container string) (set cpuset.CPUSet, own bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if set, ok := m.own[pod][container]; ok {
		return set, true
	}
	return m.shared(), false
}

// Allocatable are the CPUs that can be someone's own.
func (m *Manager) Allocatable() cpuset.CPUSet { return m.cfg.Machine.All().Difference(m.cfg.Reserved) }

// Hints implements topology.Provider.
func (m *Manager) Hints(pod *v1.Pod, c *v1.Container) topology.Hints {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hints(pod, m.whole(pod, c), m.own[pod.UID][c.Name])
}

// PodHints implements topology.Provider.
func (m *Manager) PodHints(pod *v1.Pod) topology.Hints {
	m.mu.Lock()
	defer m.mu.Unlock()
	own := cpuset.New()
	for _, set := range m.own[pod.UID] {
		own = own.Union(set)
	}
	return m.hints(pod, int(topology.Request(pod, func(c *v1.Container) int64 { return int64(m.whole(pod, c)) })), own)
}

// hints are for n CPUs of a pod, of which own are given already, as to a pod that was
// admitted by the kubelet before: they stay where they are. The caller holds mu.
func (m *Manager) hints(pod *v1.Pod, n int, own cpuset.CPUSet) topology.Hints {
	if n == 0 {
		return nil
	}
	m.forget(pod.UID)
	again := m.reusable(pod)
	free := m.Allocatable().Difference(m.taken())
	if !own.IsEmpty() {
		if own.Size() != n {
			return topology.Hints{string(v1.ResourceCPU): {}}
		}
		again, free = cpuset.New(), own
	}
	var used numa.Set
	for _, c := range m.cfg.Machine {
		if again.Contains(c.ID) {
			used |= numa.Of(c.NUMA)
		}
	}
	return topology.Hints{string(v1.ResourceCPU): topology.Fitting(m.cfg.Machine.nodes(), int64(n), func(s numa.Set) (int64, int64, bool) {
		in := m.cfg.Machine.In(s)
		// What is to be used again has to be of it.
		return int64(in.Size()), int64(in.Intersection(free).Size() + again.Size()), used&^s == 0
	})}
}

// whole is how many CPUs a container has for itself, 0 for none.
func (m *Manager) whole(pod *v1.Pod, c *v1.Container) int {
	if !m.cfg.Guaranteed(pod) || resource.IsPodLevelResourcesSet(pod) {
		return 0
	}
	return whole(c)
}

// forget frees the CPUs of pods that have ended; but is one that has not. The
// caller holds mu.
func (m *Manager) forget(but types.UID) {
	if len(m.own) == 0 {
		return
	}
	gone := topology.Gone(m.cfg.Active, m.cfg.Known, but)
	maps.DeleteFunc(m.own, func(uid types.UID, _ map[string]cpuset.CPUSet) bool { return gone(uid) })
}

// reusable are the CPUs of a pod's containers that end before others start,
// unless another has them again already. The caller holds mu.
func (m *Manager) reusable(pod *v1.Pod) cpuset.CPUSet {
	out := cpuset.New()
	for c := range topology.Containers(pod) {
		if set, ok := m.own[pod.UID][c.Name]; ok && topology.Passing(pod, c.Name) {
			out = out.Union(set)
		} else if ok {
			out = out.Difference(set)
		}
	}
	return out
}

// Allocate implements topology.Provider: a container that asks for whole CPUs,
// in a pod whose class allows it, gets CPUs of its own.
func (m *Manager) Allocate(_ context.Context, pod *v1.Pod, c *v1.Container, nodes numa.Set) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.whole(pod, c)
	if n == 0 {
		return nil
	}
	m.forget(pod.UID)
	if _, there := m.own[pod.UID][c.Name]; there {
		return nil
	}
	set, err := m.take(m.Allocatable().Difference(m.taken()), m.reusable(pod), n, nodes)
	m.cfg.Metrics.CPUsPinned(err)
	if m.cfg.WholeCores {
		m.cfg.Metrics.Aligned(telemetry.ScopeContainer, telemetry.OnPhysicalCPU, err == nil)
	}
	if err != nil {
		return err
	}
	if m.own[pod.UID] == nil {
		m.own[pod.UID] = map[string]cpuset.CPUSet{}
	}
	m.own[pod.UID][c.Name] = set
	return nil
}

// Use is how many CPUs are shared by those who have none of their own, without those
// that are reserved, and how many are somebody's, in all and by NUMA node.
func (m *Manager) Use() (shared, own int, byNode map[int]int) {
	m.mu.Lock()
	taken, rest := m.taken(), m.shared()
	m.mu.Unlock()
	byNode = map[int]int{}
	for _, id := range m.cfg.Machine.nodes().IDs() {
		byNode[id] = m.cfg.Machine.In(numa.Of(id)).Intersection(taken).Size()
	}
	return rest.Difference(m.cfg.Reserved).Size(), taken.Size(), byNode
}

// Settle implements topology.Provider.
func (m *Manager) Settle(pod *v1.Pod, ok bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return topology.Settle(m.own, pod.UID, ok, m.save)
}

// Shared are the CPUs of all containers that have none of their own.
func (m *Manager) Shared() cpuset.CPUSet {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.shared()
}

// take chooses n CPUs, those that can be used again first, then those on nodes.
func (m *Manager) take(free, again cpuset.CPUSet, n int, nodes numa.Set) (cpuset.CPUSet, error) {
	threads := m.cfg.Machine.Threads()
	if m.cfg.WholeCores && n%threads != 0 {
		return cpuset.CPUSet{}, &AlignmentError{Requested: n, Threads: threads}
	}
	if all := free.Size() + again.Size(); all < n {
		return cpuset.CPUSet{}, fmt.Errorf("not enough cpus available to satisfy request: requested=%d, available=%d", n, all)
	}
	group := 1
	if m.cfg.WholeCores {
		group = threads
	}
	choose := func(of cpuset.CPUSet, n int) cpuset.CPUSet {
		if m.cfg.Spread {
			return m.cfg.Machine.Spread(of, n, group, m.cfg.ByCache)
		}
		return m.cfg.Machine.Choose(of, n, m.cfg.ByCache)
	}
	out := cpuset.New(again.List()[:min(n, again.Size())]...)
	free = free.Difference(out)
	if nodes != 0 {
		near := free.Intersection(m.cfg.Machine.In(nodes))
		out = out.Union(choose(near, min(n-out.Size(), near.Size())))
		free = free.Difference(out)
	}
	return out.Union(choose(free, n-out.Size())), nil
}

// AlignmentError says that a request is not one of whole cores.
type AlignmentError struct{ Requested, Threads int }

func (e *AlignmentError) Error() string {
	return fmt.Sprintf("SMT Alignment Error: requested %d cpus not multiple cpus per core = %d", e.Requested, e.Threads)
}

// Release frees the CPUs of a pod that has ended, and tells whether it had any.
func (m *Manager) Release(pod types.UID) (changed bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.own[pod]; !ok {
		return false, nil
	}
	delete(m.own, pod)
	return true, m.save()
}

// whole is how many CPUs a container asks for, 0 if not whole ones.
func whole(c *v1.Container) int {
	q := c.Resources.Requests[v1.ResourceCPU]
	if q.MilliValue()%1000 != 0 {
		return 0
	}
	return int(q.Value())
}
