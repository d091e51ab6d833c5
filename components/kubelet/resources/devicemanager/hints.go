package devicemanager

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"hyperkube/components/kubelet/resources/numa"
	"hyperkube/components/kubelet/resources/topology"
)

// Hints returns, for each resource that the container requests, the sets of NUMA nodes from which its devices
// can be allocated. It implements topology.Provider.
func (m *Manager) Hints(pod *v1.Pod, c *v1.Container) topology.Hints {
	m.freeInactive(pod.UID)
	m.mu.Lock()
	defer m.mu.Unlock()
	out := topology.Hints{}
	for name, q := range c.Resources.Limits {
		if n := int(q.Value()); n > 0 && m.resources[string(name)] != nil && !providedByClaim(pod, c, name) {
			out[string(name)] = m.hints(pod, string(name), n, m.grants[pod.UID][c.Name][string(name)].ids())
		}
	}
	return out
}

// PodHints returns, for each device resource in the limits of the pod, the topology hints for all its containers
// together: the sets of NUMA nodes whose devices suffice. It first frees the devices of terminated pods. If the pod
// already has devices, the hints are for these. It implements topology.Provider.
func (m *Manager) PodHints(pod *v1.Pod) topology.Hints {
	m.freeInactive(pod.UID)
	m.mu.Lock()
	defer m.mu.Unlock()
	out := topology.Hints{}
	had := map[string][]string{}
	for _, byName := range m.grants[pod.UID] {
		for name, g := range byName {
			had[name] = append(had[name], g.IDs...)
		}
	}
	for c := range topology.Containers(pod) {
		for name := range c.Resources.Limits {
			if m.resources[string(name)] == nil || providedByClaim(pod, c, name) {
				continue
			}
			n := topology.Request(pod, func(c *v1.Container) int64 {
				q := c.Resources.Limits[name]
				return q.Value()
			})
			if n > 0 {
				own := slices.Sorted(slices.Values(had[string(name)]))
				out[string(name)] = m.hints(pod, string(name), int(n), slices.Compact(own))
			}
		}
	}
	return out
}

// hints returns the topology hints for n devices of a resource: the sets of NUMA nodes that have enough devices. It
// returns nil if the devices of the resource are not on NUMA nodes, and an empty list if there are too few devices.
// own are the devices that the pod already has, such as after a restart of the kubelet; the pod keeps them. The
// caller must hold mu.
func (m *Manager) hints(pod *v1.Pod, name string, n int, own []string) []topology.Hint {
	p := m.resources[name]
	aligned := false
	for _, d := range p.devices {
		aligned = aligned || len(d.GetTopology().GetNodes()) > 0
	}
	if !aligned {
		return nil
	}
	again := m.reusable(pod, name)
	free := m.free(name)
	if len(own) > 0 {
		if len(own) != n {
			return []topology.Hint{}
		}
		again, free = nil, own
	}
	if len(free)+len(again) < n {
		return []topology.Hint{}
	}
	return topology.NewHints(m.cfg.Nodes, int64(n), func(s numa.Set) (could, have int64, ok bool) {
		for _, d := range p.devices {
			if nodesOf(d)&s != 0 {
				could++
			}
		}
		for _, id := range free {
			if nodesOf(p.devices[id])&s != 0 {
				have++
			}
		}
		for _, id := range again {
			if nodesOf(p.devices[id])&s == 0 {
				return could, 0, false
			}
			have++
		}
		return could, have, true
	})
}

// nodesOf returns the NUMA nodes of a device, or the empty set if it has none or is nil.
func nodesOf(d *api.Device) numa.Set {
	var s numa.Set
	for _, n := range d.GetTopology().GetNodes() {
		s |= numa.Of(int(n.ID))
	}
	return s
}
