package topology

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/numa"
	"hyperkube/components/kubelet/telemetry"
	"hyperkube/internal/podfacts"
)

// Policies of admission, and what they are applied to.
const (
	None       = "none"
	BestEffort = "best-effort"
	Restricted = "restricted"
	SingleNode = "single-numa-node"

	ScopeContainer = "container"
	ScopePod       = "pod"
)

// Options of the policies.
const (
	optionClosest  = "prefer-closest-numa-nodes"
	optionMostNUMA = "max-allowable-numa-nodes"
)

// usual is how many NUMA nodes a machine may have unless an option allows more:
// the time to compare hints grows with the power of it.
const usual = 8

// Provider manages a resource that containers have for themselves. Its methods
// are called for one pod at a time.
type Provider interface {
	// Hints tells where a container could have what it asks for, and PodHints
	// where all of a pod's could.
	Hints(pod *v1.Pod, c *v1.Container) Hints
	PodHints(pod *v1.Pod) Hints
	// Allocate gives a container what it asks for, near to the nodes that are
	// given; 0 says nothing. Containers come in the order in which they start.
	Allocate(ctx context.Context, pod *v1.Pod, c *v1.Container, nodes numa.Set) error
	// Settle keeps what was allocated to the pod or, without ok, takes it back.
	Settle(pod *v1.Pod, ok bool) error
}

// Config of a Manager.
type Config struct {
	// Policy and Scope are among the constants; empty is none and container.
	Policy, Scope string
	Options       map[string]string
	Machine       numa.Machine
	Providers     []Provider
	// Metrics counts what is admitted; may be nil.
	Metrics *telemetry.Metrics
}

// Manager admits pods. Its methods are safe for several goroutines.
type Manager struct {
	cfg     Config
	closest bool

	mu sync.Mutex // held while a pod is admitted
}

// ErrAffinity says that the policy does not let a pod run on this node.
var ErrAffinity = errors.New("Resources cannot be allocated with Topology locality") //nolint:staticcheck // users see it

// Check tells what is wrong with a policy, its scope and its options; of
// machine 0 it tells nothing of how many nodes there may be.
func Check(policy, scope string, options map[string]string) (most int, closest bool, err error) {
	if !slices.Contains([]string{"", None, BestEffort, Restricted, SingleNode}, policy) {
		return 0, false, fmt.Errorf("topologyManagerPolicy %q: want none, best-effort, restricted or single-numa-node", policy)
	}
	if !slices.Contains([]string{"", ScopeContainer, ScopePod}, scope) {
		return 0, false, fmt.Errorf("topologyManagerScope %q: want container or pod", scope)
	}
	most = usual
	for _, name := range slices.Sorted(maps.Keys(options)) {
		value := options[name]
		switch name {
		case optionClosest:
			if closest, err = strconv.ParseBool(value); err != nil {
				return 0, false, fmt.Errorf("topologyManagerPolicyOptions %s: %w", name, err)
			}
		case optionMostNUMA:
			n, err := strconv.Atoi(value)
			if err != nil {
				return 0, false, fmt.Errorf("topologyManagerPolicyOptions %s: %w", name, err)
			}
			if n < usual || n > numa.Most {
				return 0, false, fmt.Errorf("topologyManagerPolicyOptions %s: want %d to %d", name, usual, numa.Most)
			}
			most = n
		default:
			return 0, false, fmt.Errorf("topologyManagerPolicyOptions: %q is not supported", name)
		}
	}
	return most, closest, nil
}

// New makes a Manager.
func New(cfg Config) (*Manager, error) {
	most, closest, err := Check(cfg.Policy, cfg.Scope, cfg.Options)
	if err != nil {
		return nil, err
	}
	if n := len(cfg.Machine); n > most && cfg.Policy != None && cfg.Policy != "" {
		return nil, fmt.Errorf("topology manager: unsupported on machines with more than %d NUMA nodes, this one has %d", most, n)
	}
	return &Manager{cfg: cfg, closest: closest}, nil
}

// Admit gives a pod what its containers have for themselves. It changes nothing
// when it fails. An error that is ErrAffinity is the policy's, any other a
// provider's.
func (m *Manager) Admit(ctx context.Context, pod *v1.Pod) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	began := time.Now()
	err := m.admit(ctx, pod)
	m.cfg.Metrics.Placed(time.Since(began), err)
	var errs []error
	for _, p := range m.cfg.Providers {
		errs = append(errs, p.Settle(pod, err == nil))
	}
	if err != nil {
		return err
	}
	return errors.Join(errs...)
}

func (m *Manager) admit(ctx context.Context, pod *v1.Pod) error {
	var whole numa.Set
	byPod := m.cfg.Scope == ScopePod && m.aligns()
	if byPod {
		var err error
		if whole, err = m.place(func(p Provider) Hints { return p.PodHints(pod) }); err != nil {
			m.aligned(ScopePod, false)
			return err
		}
		m.aligned(ScopePod, true)
	}
	for c := range Containers(pod) {
		nodes := whole
		if !byPod && m.aligns() {
			var err error
			if nodes, err = m.place(func(p Provider) Hints { return p.Hints(pod, c) }); err != nil {
				m.aligned(ScopeContainer, false)
				return err
			}
		}
		for _, p := range m.cfg.Providers {
			if err := p.Allocate(ctx, pod, c, nodes); err != nil {
				return err
			}
		}
		if !byPod {
			m.aligned(ScopeContainer, true)
		}
	}
	return nil
}

// aligned counts what came of the policy that lets nobody run on several NUMA nodes.
func (m *Manager) aligned(scope string, ok bool) {
	if m.cfg.Policy == SingleNode {
		m.cfg.Metrics.Aligned(scope, telemetry.OnNUMANode, ok)
	}
}

// aligns tells whether there is a policy at all.
func (m *Manager) aligns() bool { return m.cfg.Policy != "" && m.cfg.Policy != None }

// place finds the nodes for a container or a pod, or says why it may not run.
func (m *Manager) place(ask func(Provider) Hints) (numa.Set, error) {
	var lists [][]Hint
	for _, p := range m.cfg.Providers {
		hints := ask(p)
		if len(hints) == 0 {
			lists = append(lists, []Hint{{Preferred: true}})
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(hints)) {
			switch list := hints[name]; {
			case list == nil:
				lists = append(lists, []Hint{{Preferred: true}})
			case len(list) == 0:
				lists = append(lists, []Hint{{}})
			default:
				lists = append(lists, list)
			}
		}
	}
	merge := merger{all: m.cfg.Machine.All(), machine: m.cfg.Machine, closest: m.closest}
	if m.cfg.Policy == SingleNode {
		for i := range lists {
			lists[i] = slices.DeleteFunc(slices.Clone(lists[i]), func(h Hint) bool { return !h.Preferred || h.Nodes.Count() > 1 })
		}
	}
	best := merge.merge(lists)
	if m.cfg.Policy == SingleNode && best.Nodes == merge.all {
		best.Nodes = 0
	}
	ok := m.cfg.Policy == BestEffort || best.Preferred
	if !ok {
		return 0, ErrAffinity
	}
	return best.Nodes, nil
}

// Containers gives a pod's containers in the order in which they start, those
// that initialise it first.
func Containers(pod *v1.Pod) func(yield func(*v1.Container) bool) {
	return func(yield func(*v1.Container) bool) {
		for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range list {
				if !yield(&list[i]) {
					return
				}
			}
		}
	}
}

// Passing tells whether a container ends before the next one starts, so that
// what it has can be used again.
func Passing(pod *v1.Pod, name string) bool {
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.Name == name {
			return !podfacts.Sidecar(c)
		}
	}
	return false
}

// Request is how much of a resource all of a pod's containers need together, by
// a function that tells how much one does: what passing containers need is used
// again by those after them, what sidecars need is not.
func Request(pod *v1.Pod, need func(*v1.Container) int64) int64 {
	var sidecars, most, sum int64
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if Passing(pod, c.Name) {
			most = max(most, sidecars+need(c))
		} else {
			sidecars += need(c)
			most = max(most, sidecars)
		}
	}
	for i := range pod.Spec.Containers {
		sum += need(&pod.Spec.Containers[i])
	}
	return max(most, sidecars+sum)
}

// Fitting makes hints: all sets of nodes that have enough, those preferred that
// are no larger than they need be. has tells how much a set could have at the
// best and how much of that is free, and whether the set can be used at all.
func Fitting(all numa.Set, need int64, has func(numa.Set) (could, free int64, ok bool)) []Hint {
	least := all.Count()
	out := []Hint{}
	for s := range all.Subsets() {
		could, free, ok := has(s)
		if could >= need {
			least = min(least, s.Count())
		}
		if ok && free >= need {
			out = append(out, Hint{Nodes: s})
		}
	}
	for i := range out {
		out[i].Preferred = out[i].Nodes.Count() == least
	}
	return out
}
