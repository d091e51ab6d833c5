package cpus

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"
)

// CPU is where a logical CPU is.
type CPU struct{ ID, Core, Socket int }

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
		out = append(out, CPU{ID: id, Core: number("core_id", id), Socket: number("physical_package_id", 0)})
	}
	return out, nil
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
	for _, set := range t.groups(t.All(), func(c CPU) int { return c.Socket<<16 | c.Core }) {
		most = max(most, set.Size())
	}
	return most
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

// Choose takes n CPUs of free, which has as many: whole sockets while they fit,
// then whole cores, then the threads of cores that are in use already.
func (t Topology) Choose(free cpuset.CPUSet, n int) cpuset.CPUSet {
	out := cpuset.New()
	core := func(c CPU) int { return c.Socket<<16 | c.Core }
	for _, by := range []func(CPU) int{func(c CPU) int { return c.Socket }, core} {
		whole, left := t.groups(t.All(), by), t.groups(free, by)
		for _, k := range sorted(left) {
			if left[k].Size() == whole[k].Size() && left[k].Size() <= n-out.Size() {
				out, free = out.Union(left[k]), free.Difference(left[k])
			}
		}
	}
	for pass := range 2 {
		whole, left := t.groups(t.All(), core), t.groups(free, core)
		for _, k := range sorted(left) {
			// Cores that are in use already come before those that are whole.
			if pass == 0 && left[k].Size() == whole[k].Size() && whole[k].Size() > 1 {
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
