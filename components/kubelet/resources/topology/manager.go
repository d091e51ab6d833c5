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

	"hyperkube/components/kubelet/resources/numa"
	"hyperkube/components/kubelet/telemetry"
	"hyperkube/internal/pod/podutil"
)

// None and the other constants are the policies of the topology manager, and the scopes that they apply to, as in
// KubeletConfiguration.
const (
	None       = "none"
	BestEffort = "best-effort"
	Restricted = "restricted"
	SingleNode = "single-numa-node"

	ScopeContainer = "container"
	ScopePod       = "pod"
)

// optionClosest and optionMostNUMA are the names of the policy options of the topology manager, as in
// KubeletConfiguration.
const (
	optionClosest  = "prefer-closest-numa-nodes"
	optionMostNUMA = "max-allowable-numa-nodes"
)

// defaultMaxNodes is the maximum number of NUMA nodes of a machine unless an option allows more: the time to
// merge hints grows exponentially with the number of nodes.
const defaultMaxNodes = 8

// Provider manages a resource that is allocated to containers exclusively. Its methods are not called for two
// pods at the same time.
type Provider interface {
	// Hints returns the sets of nodes that can satisfy the request of a container; PodHints those
	// that can satisfy the requests of all containers of a pod.
	Hints(pod *v1.Pod, c *v1.Container) Hints
	PodHints(pod *v1.Pod) Hints
	// Allocate allocates the resource that a container requests, preferably on the given nodes; 0
	// means no preference. It is called for the containers in their start order.
	Allocate(ctx context.Context, pod *v1.Pod, c *v1.Container, nodes numa.Set) error
	// Settle keeps and saves the allocations of the pod or, if ok is false, reverts them. After an error they
	// are reverted.
	Settle(pod *v1.Pod, ok bool) error
}

// Config is the configuration of a Manager: the topology policy, the machine, and the managers whose resources are
// aligned.
type Config struct {
	// Policy and Scope are among the constants; empty means "none" and "container".
	Policy, Scope string
	Options       map[string]string
	Machine       numa.Machine
	Providers     []Provider
	// Metrics counts admissions; it may be nil.
	Metrics *telemetry.Allocation
}

// Manager aligns the resources of all providers by NUMA node when pods are admitted. Its methods are safe for
// concurrent use.
type Manager struct {
	cfg     Config
	closest bool

	mu sync.Mutex // held during the admission of a pod
}

// ErrAffinity is the error for a pod that the policy rejects, because its resources cannot be aligned.
var ErrAffinity = errors.New("Resources cannot be allocated with Topology locality") //nolint:staticcheck // users see it

// Check validates a policy, its scope and its options. most is the maximum number of NUMA nodes that the
// options allow, and closest is true if nodes that are close to each other are preferred. It does not check
// the number of nodes of the machine.
func Check(policy, scope string, options map[string]string) (most int, closest bool, err error) {
	if !slices.Contains([]string{"", None, BestEffort, Restricted, SingleNode}, policy) {
		return 0, false, fmt.Errorf("topologyManagerPolicy %q: want none, best-effort, restricted or single-numa-node", policy)
	}
	if !slices.Contains([]string{"", ScopeContainer, ScopePod}, scope) {
		return 0, false, fmt.Errorf("topologyManagerScope %q: want container or pod", scope)
	}
	most = defaultMaxNodes
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
			if n < defaultMaxNodes || n > numa.MaxNodes {
				return 0, false, fmt.Errorf("topologyManagerPolicyOptions %s: want %d to %d", name, defaultMaxNodes, numa.MaxNodes)
			}
			most = n
		default:
			return 0, false, fmt.Errorf("topologyManagerPolicyOptions: %q is not supported", name)
		}
	}
	return most, closest, nil
}

// New returns a Manager. It returns an error if the configuration is not valid, or if a policy other than
// none is configured on a machine with too many NUMA nodes.
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

// Admit allocates the exclusive resources of a pod's containers. After an error the allocations are reverted;
// if a provider fails to save its allocation, those of other providers remain until the pod is inactive. An
// error that wraps ErrAffinity means that the policy rejects the pod; any other error is that of a provider.
func (m *Manager) Admit(ctx context.Context, pod *v1.Pod) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	began := time.Now()
	err := m.admit(ctx, pod)
	m.cfg.Metrics.TopologyAdmission(time.Since(began), err)
	var errs []error
	for _, p := range m.cfg.Providers {
		errs = append(errs, p.Settle(pod, err == nil))
	}
	if err != nil {
		return err
	}
	return errors.Join(errs...)
}

// admit aligns and allocates the resources of a pod, as a whole or by container depending on the scope. After
// an error the caller must revert the allocations.
func (m *Manager) admit(ctx context.Context, pod *v1.Pod) error {
	var whole numa.Set
	byPod := m.cfg.Scope == ScopePod && m.enabled()
	if byPod {
		var err error
		if whole, err = m.place(func(p Provider) Hints { return p.PodHints(pod) }); err != nil {
			m.countAlignment(ScopePod, false)
			return err
		}
		m.countAlignment(ScopePod, true)
	}
	for c := range Containers(pod) {
		nodes := whole
		if !byPod && m.enabled() {
			var err error
			if nodes, err = m.place(func(p Provider) Hints { return p.Hints(pod, c) }); err != nil {
				m.countAlignment(ScopeContainer, false)
				return err
			}
		}
		for _, p := range m.cfg.Providers {
			if err := p.Allocate(ctx, pod, c, nodes); err != nil {
				return err
			}
		}
		if !byPod {
			m.countAlignment(ScopeContainer, true)
		}
	}
	return nil
}

// countAlignment counts in the metrics whether (ok) the resources of a container or pod could be aligned on one
// NUMA node. scope is "container" or "pod". With policies other than single-numa-node it does nothing.
func (m *Manager) countAlignment(scope string, ok bool) {
	if m.cfg.Policy == SingleNode {
		m.cfg.Metrics.Aligned(scope, telemetry.OnNUMANode, ok)
	}
}

// enabled reports whether a policy other than none is configured.
func (m *Manager) enabled() bool { return m.cfg.Policy != "" && m.cfg.Policy != None }

// place returns the NUMA nodes that suit the hints of all providers best. ask calls Hints or PodHints of a
// provider, for the container or pod that is admitted. It returns ErrAffinity if the policy does not accept the
// nodes.
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

// Containers iterates over a pod's containers in their start order, init containers first. Ephemeral
// containers are excluded.
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

// TerminatesBeforeNext reports whether the container of that name is an init container other than a sidecar.
// It terminates before the next container starts, so that its resources can be reused.
func TerminatesBeforeNext(pod *v1.Pod, name string) bool {
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.Name == name {
			return !podutil.Sidecar(c)
		}
	}
	return false
}

// Request returns how much of a resource all of a pod's containers need together. need returns the amount
// that one container needs. Later containers reuse the resources of init containers that terminate, but not
// those of sidecars.
func Request(pod *v1.Pod, need func(*v1.Container) int64) int64 {
	var sidecars, most, sum int64
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if TerminatesBeforeNext(pod, c.Name) {
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

// NewHints returns the hints for a request of the amount need: the subsets of the nodes all that have enough free.
// The hints with the smallest number of nodes that could satisfy the request if nothing was allocated are
// preferred. has returns the total amount on a set of nodes, the free amount, and whether the set can be used at
// all.
func NewHints(all numa.Set, need int64, has func(numa.Set) (could, free int64, ok bool)) []Hint {
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
