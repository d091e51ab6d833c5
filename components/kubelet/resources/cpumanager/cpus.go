// Package cpumanager implements the static policy of the CPU manager: it allocates exclusive CPUs to
// containers. All other containers share the remaining CPUs.
//
// https://kubernetes.io/docs/concepts/policy/node-resource-managers/
package cpumanager

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

	"hyperkube/components/kubelet/resources/numa"
	"hyperkube/components/kubelet/resources/topology"
	"hyperkube/components/kubelet/telemetry"
	"hyperkube/internal/host/atomicfile"
)

// Config is the configuration of a Manager. All fields are required unless their comment says
// otherwise.
type Config struct {
	// Machine is the CPU topology of the machine.
	Machine Topology
	// Reserved CPUs are never allocated exclusively. The set must not be empty.
	Reserved cpuset.CPUSet
	// StrictReservation also excludes the reserved CPUs from the shared pool.
	StrictReservation bool
	// FullPCPUsOnly allocates only whole physical cores. AlignByUncoreCache prefers all CPUs that share an
	// uncore cache. DistributeAcrossNUMA distributes CPUs that do not fit on one NUMA node evenly across
	// several.
	FullPCPUsOnly, AlignByUncoreCache, DistributeAcrossNUMA bool
	// File is the state file of the allocations.
	File string
	// Guaranteed reports whether a pod's QoS class is Guaranteed.
	Guaranteed func(*v1.Pod) bool
	// Active returns the pods that have not terminated. CPUs of other pods are freed once Known
	// reports that the list is complete. If Known is nil, it always is.
	Active func() []*v1.Pod
	Known  func() bool
	Log    *slog.Logger
	// Metrics counts allocations. It may be nil.
	Metrics *telemetry.Allocation
}

// Manager allocates exclusive CPUs to containers and saves the allocations in a file. Its methods are safe
// for concurrent use.
type Manager struct {
	cfg Config

	mu sync.Mutex // guards exclusive
	// exclusive are the allocated CPUs by pod and container.
	exclusive map[types.UID]map[string]cpuset.CPUSet
}

// state is the content of the state file, in upstream's format. The checksum covers the other fields.
type state struct {
	Policy   string                          `json:"policyName"`
	Default  string                          `json:"defaultCpuSet"`
	Entries  map[types.UID]map[string]string `json:"entries,omitempty"`
	Checksum uint32                          `json:"checksum"`
}

// policy is the name of the CPU manager policy that the state file contains.
const policy = "static"

// New returns a Manager with the allocations of the state file. A state file that does not match
// the machine is an error, because running containers could use CPUs that the Manager does not
// track.
func New(cfg Config) (*Manager, error) {
	if cfg.Reserved.IsEmpty() {
		return nil, errors.New("the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero")
	}
	if !cfg.Reserved.IsSubsetOf(cfg.Machine.All()) {
		return nil, fmt.Errorf("reserved CPUs %s are not a subset of the machine's CPUs %s", cfg.Reserved, cfg.Machine.All())
	}
	m := &Manager{cfg: cfg, exclusive: map[types.UID]map[string]cpuset.CPUSet{}}
	raw, err := os.ReadFile(cfg.File)
	if errors.Is(err, os.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading CPU manager state: %w", err)
	}
	if m.exclusive, err = decode(raw); err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.File, err)
	}
	taken := m.allocated()
	if !taken.IsSubsetOf(cfg.Machine.All()) {
		return nil, fmt.Errorf("%s: CPUs %s are not a subset of the machine's CPUs %s", cfg.File, taken, cfg.Machine.All())
	}
	if !taken.Intersection(cfg.Reserved).IsEmpty() {
		// The CPUs were allocated before they were reserved.
		return nil, fmt.Errorf("%s: not all reserved cpus: %q are present in defaultCpuSet: %q", cfg.File, cfg.Reserved, cfg.Machine.All().Difference(taken))
	}
	return m, nil
}

// HasAllocations reports whether a state file contains allocations of exclusive CPUs. Without a Manager they
// would never be released. A file that does not exist has none; one that cannot be read or decoded is an error.
func HasAllocations(file string) (bool, error) {
	raw, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading CPU manager state: %w", err)
	}
	own, err := decode(raw)
	return len(own) > 0, err
}

// decode returns the allocations in the content of a state file, by pod and container. A file of another policy
// has none. The checksum is not verified.
func decode(raw []byte) (map[types.UID]map[string]cpuset.CPUSet, error) {
	var s state
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, fmt.Errorf("decoding CPU manager state: %w", err)
	}
	own := map[types.UID]map[string]cpuset.CPUSet{}
	if s.Policy != policy {
		return own, nil // no exclusive CPUs
	}
	for uid, containers := range s.Entries {
		own[uid] = map[string]cpuset.CPUSet{}
		for name, text := range containers {
			set, err := cpuset.Parse(text)
			if err != nil {
				return nil, fmt.Errorf("decoding CPU manager state: %w", err)
			}
			own[uid][name] = set
		}
	}
	return own, nil
}

// save writes the allocations of exclusive CPUs to the state file, from which New reads them after a restart. The
// caller must hold mu.
func (m *Manager) save() error {
	s := state{Policy: policy, Default: m.shared().String(), Entries: map[types.UID]map[string]string{}}
	for uid, containers := range m.exclusive {
		s.Entries[uid] = map[string]string{}
		for name, set := range containers {
			s.Entries[uid][name] = set.String()
		}
	}
	raw, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encoding CPU manager state: %w", err)
	}
	sum := fnv.New32a()
	_, _ = sum.Write(raw)
	s.Checksum = sum.Sum32()
	if raw, err = json.Marshal(s); err != nil {
		return fmt.Errorf("encoding CPU manager state: %w", err)
	}
	return atomicfile.Write(atomicfile.File{Path: m.cfg.File, Data: raw, Mode: 0o600})
}

// allocated returns the CPUs that are exclusively allocated to any container. The caller must hold mu.
func (m *Manager) allocated() cpuset.CPUSet {
	out := cpuset.New()
	for _, containers := range m.exclusive {
		for _, set := range containers {
			out = out.Union(set)
		}
	}
	return out
}

// shared returns the CPUs of the shared pool, which containers without exclusive CPUs use. The caller must
// hold mu.
func (m *Manager) shared() cpuset.CPUSet {
	out := m.cfg.Machine.All().Difference(m.allocated())
	if m.cfg.StrictReservation {
		out = out.Difference(m.cfg.Reserved)
	}
	return out
}

// Get returns the CPUs that a container may use: its exclusive ones, then own is true, or those of the shared
// pool.
func (m *Manager) Get(pod types.UID, container string) (set cpuset.CPUSet, own bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if set, ok := m.exclusive[pod][container]; ok {
		return set, true
	}
	return m.shared(), false
}

// Allocatable returns the CPUs that can be allocated exclusively.
func (m *Manager) Allocatable() cpuset.CPUSet { return m.cfg.Machine.All().Difference(m.cfg.Reserved) }

// Hints returns the sets of NUMA nodes from which the exclusive CPUs of the container can be allocated, or nil
// if it gets none. For a container that already has its CPUs these are the sets that contain them. It
// implements topology.Provider.
func (m *Manager) Hints(pod *v1.Pod, c *v1.Container) topology.Hints {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hints(pod, m.exclusiveCPUs(pod, c), m.exclusive[pod.UID][c.Name])
}

// PodHints returns the hints for the exclusive CPUs of all containers of the pod together. It implements
// topology.Provider.
func (m *Manager) PodHints(pod *v1.Pod) topology.Hints {
	m.mu.Lock()
	defer m.mu.Unlock()
	own := cpuset.New()
	for _, set := range m.exclusive[pod.UID] {
		own = own.Union(set)
	}
	return m.hints(pod, int(topology.Request(pod, func(c *v1.Container) int64 { return int64(m.exclusiveCPUs(pod, c)) })), own)
}

// hints returns the topology hints for n CPUs of a pod: the sets of NUMA nodes that have enough CPUs. It returns
// nil if n is 0. own are the CPUs that the pod already has, such as after a restart of the kubelet; the pod keeps
// them. The caller must hold mu.
func (m *Manager) hints(pod *v1.Pod, n int, own cpuset.CPUSet) topology.Hints {
	if n == 0 {
		return nil
	}
	m.freeInactive(pod.UID)
	again := m.reusable(pod)
	free := m.Allocatable().Difference(m.allocated())
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
	return topology.Hints{string(v1.ResourceCPU): topology.NewHints(m.cfg.Machine.nodes(), int64(n), func(s numa.Set) (int64, int64, bool) {
		in := m.cfg.Machine.In(s)
		// CPUs to reuse must be among the chosen ones.
		return int64(in.Size()), int64(in.Intersection(free).Size() + again.Size()), used&^s == 0
	})}
}

// exclusiveCPUs returns how many exclusive CPUs a container must get: its request, if the pod is Guaranteed
// without pod-level resources and the request is a whole number, otherwise 0.
func (m *Manager) exclusiveCPUs(pod *v1.Pod, c *v1.Container) int {
	if !m.cfg.Guaranteed(pod) || resource.IsPodLevelResourcesSet(pod) {
		return 0
	}
	return wholeCPUs(c)
}

// freeInactive frees the CPUs of pods that have terminated or do not exist any more, except those of the pod
// `but`. The caller must hold mu.
func (m *Manager) freeInactive(but types.UID) {
	if len(m.exclusive) == 0 {
		return
	}
	gone := topology.Inactive(m.cfg.Active, m.cfg.Known, but)
	maps.DeleteFunc(m.exclusive, func(uid types.UID, _ map[string]cpuset.CPUSet) bool { return gone(uid) })
}

// reusable returns the CPUs of the pod's containers that terminate before other containers start,
// such as init containers, unless another container of the pod reuses them already. The caller must
// hold mu.
func (m *Manager) reusable(pod *v1.Pod) cpuset.CPUSet {
	out := cpuset.New()
	for c := range topology.Containers(pod) {
		if set, ok := m.exclusive[pod.UID][c.Name]; ok && topology.TerminatesBeforeNext(pod, c.Name) {
			out = out.Union(set)
		} else if ok {
			out = out.Difference(set)
		}
	}
	return out
}

// Allocate allocates exclusive CPUs, preferably on the NUMA nodes, to a container that must get them. It does
// nothing for other containers and for one that already has its CPUs. The allocation is reverted unless Settle
// is called with ok. It returns an error if too few CPUs are free, or an *AlignmentError. It implements
// topology.Provider.
func (m *Manager) Allocate(_ context.Context, pod *v1.Pod, c *v1.Container, nodes numa.Set) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.exclusiveCPUs(pod, c)
	if n == 0 {
		return nil
	}
	m.freeInactive(pod.UID)
	if _, there := m.exclusive[pod.UID][c.Name]; there {
		return nil
	}
	set, err := m.choose(m.Allocatable().Difference(m.allocated()), m.reusable(pod), n, nodes)
	m.cfg.Metrics.CPUsPinned(err)
	if m.cfg.FullPCPUsOnly {
		m.cfg.Metrics.Aligned(telemetry.ScopeContainer, telemetry.OnPhysicalCPU, err == nil)
	}
	if err != nil {
		return err
	}
	if m.exclusive[pod.UID] == nil {
		m.exclusive[pod.UID] = map[string]cpuset.CPUSet{}
	}
	m.exclusive[pod.UID][c.Name] = set
	return nil
}

// Usage returns the number of CPUs in the shared pool without the reserved ones, the number of exclusively
// allocated CPUs, and the latter by NUMA node, for metrics.
func (m *Manager) Usage() (shared, own int, byNode map[int]int) {
	m.mu.Lock()
	taken, rest := m.allocated(), m.shared()
	m.mu.Unlock()
	byNode = map[int]int{}
	for _, id := range m.cfg.Machine.nodes().IDs() {
		byNode[id] = m.cfg.Machine.In(numa.Of(id)).Intersection(taken).Size()
	}
	return rest.Difference(m.cfg.Reserved).Size(), taken.Size(), byNode
}

// Settle keeps the CPUs allocated to a pod and writes the state file if ok is true, and otherwise frees them,
// because the pod is rejected. It implements topology.Provider.
func (m *Manager) Settle(pod *v1.Pod, ok bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return topology.Settle(m.exclusive, pod.UID, ok, m.save)
}

// Shared returns the CPUs of the shared pool, which containers without exclusive CPUs use. The caller must not hold
// mu.
func (m *Manager) Shared() cpuset.CPUSet {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.shared()
}

// choose chooses n CPUs for a container: first those in again, which the container can reuse, then those in free on
// the NUMA nodes, then others in free. It returns an error if there are too few, or an *AlignmentError if only whole
// cores may be allocated and n is not a number of whole cores.
func (m *Manager) choose(free, again cpuset.CPUSet, n int, nodes numa.Set) (cpuset.CPUSet, error) {
	threads := m.cfg.Machine.Threads()
	if m.cfg.FullPCPUsOnly && n%threads != 0 {
		return cpuset.CPUSet{}, &AlignmentError{Requested: n, Threads: threads}
	}
	if all := free.Size() + again.Size(); all < n {
		return cpuset.CPUSet{}, fmt.Errorf("not enough cpus available to satisfy request: requested=%d, available=%d", n, all)
	}
	group := 1
	if m.cfg.FullPCPUsOnly {
		group = threads
	}
	choose := func(of cpuset.CPUSet, n int) cpuset.CPUSet {
		if m.cfg.DistributeAcrossNUMA {
			return m.cfg.Machine.Spread(of, n, group, m.cfg.AlignByUncoreCache)
		}
		return m.cfg.Machine.Choose(of, n, m.cfg.AlignByUncoreCache)
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

// AlignmentError is the error for a request of CPUs that is not a multiple of the threads of a core, with
// FullPCPUsOnly.
type AlignmentError struct{ Requested, Threads int }

func (e *AlignmentError) Error() string {
	return fmt.Sprintf("SMT Alignment Error: requested %d cpus not multiple cpus per core = %d", e.Requested, e.Threads)
}

// Release frees the CPUs of a terminated pod and writes the state file. changed is true if the pod had any,
// so that the shared pool has grown.
func (m *Manager) Release(pod types.UID) (changed bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.exclusive[pod]; !ok {
		return false, nil
	}
	delete(m.exclusive, pod)
	return true, m.save()
}

// wholeCPUs returns the number of CPUs that a container requests, or 0 if the request is not a whole number
// of CPUs.
func wholeCPUs(c *v1.Container) int {
	q := c.Resources.Requests[v1.ResourceCPU]
	if q.MilliValue()%1000 != 0 {
		return 0
	}
	return int(q.Value())
}
