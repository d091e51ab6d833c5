// Package cpus gives containers CPUs of their own: the static policy of the CPU
// manager. All other containers share what is left.
//
// https://kubernetes.io/docs/concepts/policy/node-resource-managers/
package cpus

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

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
	// WholeCores gives out nothing less than all threads of a core.
	WholeCores bool
	// File is where it is remembered who has what.
	File string
	// Guaranteed tells whether a pod's class lets it have CPUs of its own.
	Guaranteed func(*v1.Pod) bool
	// Active returns the pods that have not ended: CPUs of others are free.
	Active func() []*v1.Pod
	Log    *slog.Logger
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
	if taken := m.taken(); !taken.IsSubsetOf(cfg.Machine.All()) {
		return nil, fmt.Errorf("%s: CPUs %s are not all of the machine's %s", cfg.File, taken, cfg.Machine.All())
	}
	return m, nil
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

// Allocate gives the containers of a pod that ask for whole CPUs, in a pod whose
// class allows it, CPUs of their own. It tells whether those of others have
// changed by that. Those of init containers are used again. It changes nothing
// when it fails.
func (m *Manager) Allocate(pod *v1.Pod) (changed bool, err error) {
	if !m.cfg.Guaranteed(pod) {
		return false, nil
	}
	active := map[types.UID]bool{pod.UID: true}
	for _, p := range m.cfg.Active() {
		active[p.UID] = true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.shared()
	for uid := range m.own {
		if !active[uid] {
			delete(m.own, uid)
		}
	}
	if _, there := m.own[pod.UID]; there {
		return !before.Equals(m.shared()), nil
	}
	given := map[string]cpuset.CPUSet{}
	reusable := cpuset.New()
	free := m.Allocatable().Difference(m.taken())
	one := func(c *v1.Container, passing bool) error {
		n := Whole(c)
		if n == 0 {
			return nil
		}
		set, err := m.take(free, reusable, n)
		if err != nil {
			return err
		}
		given[c.Name] = set
		free = free.Difference(set)
		if passing {
			reusable = reusable.Union(set)
		} else {
			reusable = reusable.Difference(set)
		}
		return nil
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if err := one(c, c.RestartPolicy == nil || *c.RestartPolicy != v1.ContainerRestartPolicyAlways); err != nil {
			return false, err
		}
	}
	for i := range pod.Spec.Containers {
		if err := one(&pod.Spec.Containers[i], false); err != nil {
			return false, err
		}
	}
	if len(given) > 0 {
		m.own[pod.UID] = given
	}
	if err := m.save(); err != nil {
		delete(m.own, pod.UID)
		return false, err
	}
	return !before.Equals(m.shared()), nil
}

// take chooses n CPUs, those that can be used again first.
func (m *Manager) take(free, reusable cpuset.CPUSet, n int) (cpuset.CPUSet, error) {
	if threads := m.cfg.Machine.Threads(); m.cfg.WholeCores && n%threads != 0 {
		return cpuset.CPUSet{}, &AlignmentError{Requested: n, Threads: threads}
	}
	if all := free.Size() + reusable.Size(); all < n {
		return cpuset.CPUSet{}, fmt.Errorf("not enough cpus available to satisfy request: requested=%d, available=%d", n, all)
	}
	out := cpuset.New(reusable.List()[:min(n, reusable.Size())]...)
	return out.Union(m.cfg.Machine.Choose(free, n-out.Size())), nil
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

// Whole is how many CPUs a container asks for, 0 if not whole ones.
func Whole(c *v1.Container) int {
	q := c.Resources.Requests[v1.ResourceCPU]
	if q.MilliValue()%1000 != 0 {
		return 0
	}
	return int(q.Value())
}

// sorted returns the keys in their order.
func sorted(groups map[int]cpuset.CPUSet) []int {
	var keys []int
	for k := range groups {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
