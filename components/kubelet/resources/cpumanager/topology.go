package cpumanager

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"

	"hyperkube/components/kubelet/resources/numa"
)

// CPU is a logical CPU and its location: its core, socket and NUMA node. Cache is the lowest ID of the CPUs
// that share its last-level cache.
type CPU struct{ ID, Core, Socket, NUMA, Cache int }

// Topology lists the CPUs of a machine. It is immutable.
type Topology []CPU

// Read returns the online CPUs of the machine, without NUMA nodes. root is the sysfs directory, usually
// /sys/devices/system/cpu. A CPU without topology information counts as a separate core of socket 0. It returns
// an error only if the list of online CPUs cannot be read.
func Read(root string) (Topology, error) {
	raw, err := os.ReadFile(filepath.Join(root, "online"))
	if err != nil {
		return nil, fmt.Errorf("reading CPU topology: %w", err)
	}
	online, err := cpuset.Parse(strings.TrimSpace(string(raw)))
	if err != nil {
		return nil, fmt.Errorf("reading CPU topology: %w", err)
	}
	var out Topology
	for _, id := range online.List() {
		number := func(name string, otherwise int) int {
			raw, err := os.ReadFile(filepath.Join(root, "cpu"+strconv.Itoa(id), "topology", name))
			if err != nil {
				return otherwise
			}
			n, err := strconv.Atoi(strings.TrimSpace(string(raw)))
			if err != nil || n < 0 {
				return otherwise
			}
			return n
		}
		out = append(out, CPU{ID: id, Core: number("core_id", id), Socket: number("physical_package_id", 0), Cache: lastLevelCache(filepath.Join(root, "cpu"+strconv.Itoa(id), "cache"), id)})
	}
	return out, nil
}

// lastLevelCache returns the lowest ID of the CPUs that share the last-level cache, of level 3 or higher, of
// the CPU id. dir is the CPU's directory of caches in sysfs. Without such a cache it returns id.
func lastLevelCache(dir string, id int) int {
	level, lowest := 0, id
	for i := 0; ; i++ {
		index := filepath.Join(dir, "index"+strconv.Itoa(i))
		raw, err := os.ReadFile(filepath.Join(index, "level"))
		if err != nil {
			return lowest
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(raw)))
		if err != nil || n < 3 || n < level {
			continue
		}
		if raw, err = os.ReadFile(filepath.Join(index, "shared_cpu_list")); err != nil {
			continue
		}
		if set, err := cpuset.Parse(strings.TrimSpace(string(raw))); err == nil && set.Contains(id) {
			level, lowest = n, set.List()[0]
		}
	}
}

// WithNUMANodes returns a copy of the topology with the NUMA node of each CPU set to that of the machine m.
func (t Topology) WithNUMANodes(m numa.Machine) Topology {
	out := slices.Clone(t)
	for i := range out {
		out[i].NUMA = m.OfCPU(out[i].ID)
	}
	return out
}

// In returns the CPUs on the NUMA nodes.
func (t Topology) In(nodes numa.Set) cpuset.CPUSet {
	var ids []int
	for _, c := range t {
		if nodes.Has(c.NUMA) {
			ids = append(ids, c.ID)
		}
	}
	return cpuset.New(ids...)
}

// nodes returns the NUMA nodes that have CPUs.
func (t Topology) nodes() numa.Set {
	var s numa.Set
	for _, c := range t {
		s |= numa.Of(c.NUMA)
	}
	return s
}

// All returns all CPUs.
func (t Topology) All() cpuset.CPUSet {
	var ids []int
	for _, c := range t {
		ids = append(ids, c.ID)
	}
	return cpuset.New(ids...)
}

// Threads returns the maximum number of logical CPUs of a core.
func (t Topology) Threads() int {
	most := 1
	for _, set := range t.groupBy(t.All(), core) {
		most = max(most, set.Size())
	}
	return most
}

// Count returns the number of physical cores and of sockets of the machine.
func (t Topology) Count() (cores, sockets int64) {
	return int64(len(t.groupBy(t.All(), core))), int64(len(t.groupBy(t.All(), func(c CPU) int { return c.Socket })))
}

// groupBy divides the CPUs in of into groups with equal results of by, such as the socket of a CPU. The map's keys
// are these results.
func (t Topology) groupBy(of cpuset.CPUSet, by func(CPU) int) map[int]cpuset.CPUSet {
	out := map[int]cpuset.CPUSet{}
	for _, c := range t {
		if of.Contains(c.ID) {
			out[by(c)] = out[by(c)].Union(cpuset.New(c.ID))
		}
	}
	return out
}

// core returns a key that identifies the physical core of a CPU on the machine.
func core(c CPU) int { return c.Socket<<16 | c.Core }

// Choose returns n CPUs of free, which must contain at least n. It takes whole sockets and NUMA nodes while
// they fit, the larger of the two first. With byCache it then takes all CPUs that share a cache, then whole
// cores, and at the end single threads, first those of partially used cores. Among equal candidates it prefers
// those in the socket and node with the fewest free CPUs.
func (t Topology) Choose(free cpuset.CPUSet, n int, byCache bool) cpuset.CPUSet {
	socket, node := func(c CPU) int { return c.Socket }, func(c CPU) int { return c.NUMA }
	levels := []func(CPU) int{socket, node}
	if len(t.groupBy(t.All(), node)) < len(t.groupBy(t.All(), socket)) {
		levels = []func(CPU) int{node, socket}
	}
	whole := levels
	if byCache {
		whole = append(whole, func(c CPU) int { return c.Cache })
	}
	whole = append(whole, core)
	out := cpuset.New()
	for _, by := range whole {
		all, left := t.groupBy(t.All(), by), t.groupBy(free, by)
		for _, k := range t.packedOrder(left, free, levels) {
			if left[k].Size() == all[k].Size() && left[k].Size() <= n-out.Size() {
				out, free = out.Union(left[k]), free.Difference(left[k])
			}
		}
	}
	for pass := range 2 {
		all, left := t.groupBy(t.All(), core), t.groupBy(free, core)
		for _, k := range t.packedOrder(left, free, levels) {
			// Partially used cores are preferred to whole ones.
			if pass == 0 && left[k].Size() == all[k].Size() && all[k].Size() > 1 {
				continue
			}
			for _, id := range left[k].List() {
				if out.Size() < n {
					out, free = out.Union(cpuset.New(id)), free.Difference(cpuset.New(id))
				}
			}
		}
	}
	return out
}

// packedOrder returns the keys of groups sorted by the number of free CPUs in their socket and NUMA node, fewest
// first, so that sockets and nodes are filled up, then by their lowest CPU. levels are the functions that return
// the socket and the node of a CPU.
func (t Topology) packedOrder(groups map[int]cpuset.CPUSet, free cpuset.CPUSet, levels []func(CPU) int) []int {
	where := map[int]CPU{}
	for _, c := range t {
		where[c.ID] = c
	}
	around := make([]map[int]cpuset.CPUSet, len(levels))
	for i, by := range levels {
		around[i] = t.groupBy(free, by)
	}
	keys := slices.Collect(maps.Keys(groups))
	slices.SortFunc(keys, func(a, b int) int {
		x, y := where[groups[a].List()[0]], where[groups[b].List()[0]]
		for i, by := range levels {
			if n := cmp.Or(cmp.Compare(around[i][by(x)].Size(), around[i][by(y)].Size()), cmp.Compare(by(x), by(y))); n != 0 {
				return n
			}
		}
		return cmp.Or(cmp.Compare(groups[a].Size(), groups[b].Size()), cmp.Compare(x.ID, y.ID))
	})
	return keys
}

// Spread returns n CPUs of free from the smallest possible number of NUMA nodes. The parts of the nodes are
// multiples of group and differ by at most one group. It falls back to Choose if one node suffices or no such
// distribution exists. byCache is that of Choose.
func (t Topology) Spread(free cpuset.CPUSet, n, group int, byCache bool) cpuset.CPUSet {
	left := t.groupBy(free, func(c CPU) int { return c.NUMA })
	for s := range t.nodes().Subsets() {
		k := s.Count()
		each := n / k / group * group
		if all := free.Intersection(t.In(s)); all.Size() < n || n%group != 0 {
			continue
		}
		if k == 1 {
			break // one node suffices
		}
		rest, ok := n-each*k, each > 0
		var parts []int
		for _, id := range s.IDs() {
			more := 0
			if rest > 0 && left[id].Size() >= each+group {
				more = group
			}
			ok = ok && left[id].Size() >= each+more
			rest -= more
			parts = append(parts, each+more)
		}
		if !ok || rest != 0 {
			continue
		}
		out := cpuset.New()
		for i, id := range s.IDs() {
			out = out.Union(t.Choose(left[id], parts[i], byCache))
		}
		return out
	}
	return t.Choose(free, n, byCache)
}
