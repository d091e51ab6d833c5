package cpus

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

	"hyperkube/components/kubelet/numa"
)

// CPU is where a logical CPU is: Cache is the lowest CPU that it shares the last
// level of caches with.
type CPU struct{ ID, Core, Socket, NUMA, Cache int }

// Topology is which CPUs a machine has. It is not changed.
type Topology []CPU

// Read reads the CPUs that are online, of sysfs at root, usually
// /sys/devices/system/cpu.
func Read(root string) (Topology, error) {
	raw, err := os.ReadFile(filepath.Join(root, "online"))
	if err != nil {
		return nil, fmt.Errorf("asking for the CPUs: %w", err)
	}
	online, err := cpuset.Parse(strings.TrimSpace(string(raw)))
	if err != nil {
		return nil, fmt.Errorf("asking for the CPUs: %w", err)
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
		out = append(out, CPU{ID: id, Core: number("core_id", id), Socket: number("physical_package_id", 0), Cache: lastCache(filepath.Join(root, "cpu"+strconv.Itoa(id), "cache"), id)})
	}
	return out, nil
}

// lastCache is the lowest of the CPUs that share the last level of caches, which
// dir describes.
func lastCache(dir string, id int) int {
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

// On returns the topology with the CPUs on the NUMA nodes of m.
func (t Topology) On(m numa.Machine) Topology {
	out := slices.Clone(t)
	for i := range out {
		out[i].NUMA = m.OfCPU(out[i].ID)
	}
	return out
}

// In returns the CPUs of some NUMA nodes.
func (t Topology) In(nodes numa.Set) cpuset.CPUSet {
	var ids []int
	for _, c := range t {
		if nodes.Has(c.NUMA) {
			ids = append(ids, c.ID)
		}
	}
	return cpuset.New(ids...)
}

// nodes are all NUMA nodes that have CPUs.
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

// Threads is how many CPUs a core has at most.
func (t Topology) Threads() int {
	most := 1
	for _, set := range t.groups(t.All(), core) {
		most = max(most, set.Size())
	}
	return most
}

// Count is how many cores and sockets there are.
func (t Topology) Count() (cores, sockets int64) {
	return int64(len(t.groups(t.All(), core))), int64(len(t.groups(t.All(), func(c CPU) int { return c.Socket })))
}

// groups splits a set.
func (t Topology) groups(of cpuset.CPUSet, by func(CPU) int) map[int]cpuset.CPUSet {
	out := map[int]cpuset.CPUSet{}
	for _, c := range t {
		if of.Contains(c.ID) {
			out[by(c)] = out[by(c)].Union(cpuset.New(c.ID))
		}
	}
	return out
}

// core tells the cores of the machine apart.
func core(c CPU) int { return c.Socket<<16 | c.Core }

// Choose takes n CPUs of free, which has as many: whole sockets and NUMA nodes
// while they fit, the larger of the two first, then with byCache all CPUs of a
// cache, then whole cores, then the threads of cores that are in use already.
// What is left of small remains goes before what is left of large ones.
func (t Topology) Choose(free cpuset.CPUSet, n int, byCache bool) cpuset.CPUSet {
	socket, node := func(c CPU) int { return c.Socket }, func(c CPU) int { return c.NUMA }
	levels := []func(CPU) int{socket, node}
	if len(t.groups(t.All(), node)) < len(t.groups(t.All(), socket)) {
		levels = []func(CPU) int{node, socket}
	}
	whole := levels
	if byCache {
		whole = append(whole, func(c CPU) int { return c.Cache })
	}
	whole = append(whole, core)
	out := cpuset.New()
	for _, by := range whole {
		all, left := t.groups(t.All(), by), t.groups(free, by)
		for _, k := range t.packed(left, free, levels) {
			if left[k].Size() == all[k].Size() && left[k].Size() <= n-out.Size() {
				out, free = out.Union(left[k]), free.Difference(left[k])
			}
		}
	}
	for pass := range 2 {
		all, left := t.groups(t.All(), core), t.groups(free, core)
		for _, k := range t.packed(left, free, levels) {
			// Cores that are in use already come before those that are whole.
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

// packed orders groups so that those come first whose socket and node have the
// least that is free, then by their lowest CPU.
func (t Topology) packed(groups map[int]cpuset.CPUSet, free cpuset.CPUSet, levels []func(CPU) int) []int {
	where := map[int]CPU{}
	for _, c := range t {
		where[c.ID] = c
	}
	around := make([]map[int]cpuset.CPUSet, len(levels))
	for i, by := range levels {
		around[i] = t.groups(free, by)
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

// Spread takes n CPUs of free in equal parts from as few NUMA nodes as can give
// them, whole groups of CPUs at a time; it falls back to Choose where one node
// is enough or none of the ways is even.
func (t Topology) Spread(free cpuset.CPUSet, n, group int, byCache bool) cpuset.CPUSet {
	left := t.groups(free, func(c CPU) int { return c.NUMA })
	for s := range t.nodes().Subsets() {
		k := s.Count()
		each := n / k / group * group
		if all := free.Intersection(t.In(s)); all.Size() < n || n%group != 0 {
			continue
		}
		if k == 1 {
			break // it fits where it is
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
