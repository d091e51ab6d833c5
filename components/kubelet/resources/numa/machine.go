package numa

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"
)

// Node is one NUMA node of the machine with its CPUs, its memory and its distances to the other nodes.
type Node struct {
	ID   int
	CPUs cpuset.CPUSet
	// Memory is the number of bytes by resource: memory, and huge pages of each size.
	Memory map[v1.ResourceName]int64
	// Distances are the distances to all nodes, in the order of Machine. The distance to itself is
	// 10.
	Distances []int
}

// Machine lists all NUMA nodes of a machine by ID. It is immutable.
type Machine []Node

// Read returns the online NUMA nodes of the machine. root is the sysfs directory, usually
// /sys/devices/system/node. Without NUMA support in the kernel the error wraps os.ErrNotExist. More than
// MaxNodes are an error.
func Read(root string) (Machine, error) {
	raw, err := os.ReadFile(filepath.Join(root, "online"))
	if err != nil {
		return nil, fmt.Errorf("reading NUMA nodes: %w", err)
	}
	online, err := cpuset.Parse(strings.TrimSpace(string(raw)))
	if err != nil {
		return nil, fmt.Errorf("reading NUMA nodes: %w", err)
	}
	var out Machine
	for _, id := range online.List() {
		if id >= MaxNodes {
			return nil, fmt.Errorf("NUMA node %d: only the first %d are supported", id, MaxNodes)
		}
		n, err := readNode(filepath.Join(root, "node"+strconv.Itoa(id)), id)
		if err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return out, nil
}

// readNode returns the CPUs, memory and distances of the node id in the sysfs directory dir. Distances may be
// missing; anything else is an error.
func readNode(dir string, id int) (Node, error) {
	n := Node{ID: id, Memory: map[v1.ResourceName]int64{}}
	raw, err := os.ReadFile(filepath.Join(dir, "cpulist"))
	if err != nil {
		return n, fmt.Errorf("reading the CPUs of a NUMA node: %w", err)
	}
	if n.CPUs, err = cpuset.Parse(strings.TrimSpace(string(raw))); err != nil {
		return n, fmt.Errorf("reading the CPUs of NUMA node %d: %w", id, err)
	}
	if raw, err = os.ReadFile(filepath.Join(dir, "meminfo")); err != nil {
		return n, fmt.Errorf("reading the memory of a NUMA node: %w", err)
	}
	if n.Memory[v1.ResourceMemory], err = total(string(raw)); err != nil {
		return n, fmt.Errorf("reading the memory of NUMA node %d: %w", id, err)
	}
	if raw, err = os.ReadFile(filepath.Join(dir, "distance")); err == nil {
		for f := range strings.FieldsSeq(string(raw)) {
			d, err := strconv.Atoi(f)
			if err != nil {
				return n, fmt.Errorf("reading the distances of NUMA node %d: %w", id, err)
			}
			n.Distances = append(n.Distances, d)
		}
	}
	sizes, err := filepath.Glob(filepath.Join(dir, "hugepages", "hugepages-*kB"))
	if err != nil {
		return n, fmt.Errorf("counting huge pages: %w", err)
	}
	for _, d := range sizes {
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(d), "hugepages-"), "kB"), 10, 64)
		if err != nil {
			continue
		}
		raw, err := os.ReadFile(filepath.Join(d, "nr_hugepages"))
		if err != nil {
			return n, fmt.Errorf("counting huge pages: %w", err)
		}
		count, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
		if err != nil {
			return n, fmt.Errorf("counting huge pages: %w", err)
		}
		n.Memory[v1.ResourceName(v1.ResourceHugePagesPrefix+resource.NewQuantity(kb<<10, resource.BinarySI).String())] = count * kb << 10
	}
	return n, nil
}

// total returns the memory size in bytes in the content of a node's meminfo file, which has lines such as
// "Node 0 MemTotal: 8145180 kB".
func total(meminfo string) (int64, error) {
	for line := range strings.Lines(meminfo) {
		f := strings.Fields(line)
		if len(f) == 5 && f[2] == "MemTotal:" && f[4] == "kB" {
			kb, err := strconv.ParseInt(f[3], 10, 64)
			return kb << 10, err
		}
	}
	return 0, errors.New("MemTotal is missing")
}

// Flat returns a machine with a single node 0 that has all CPUs and memory, for kernels without NUMA support.
func Flat(cpus cpuset.CPUSet, memory map[v1.ResourceName]int64) Machine {
	return Machine{{CPUs: cpus, Memory: memory, Distances: []int{10}}}
}

// All returns the set of all nodes.
func (m Machine) All() Set {
	var s Set
	for i := range m {
		s |= Of(m[i].ID)
	}
	return s
}

// OfCPU returns the node of a CPU, or 0 if no node has it.
func (m Machine) OfCPU(cpu int) int {
	for i := range m {
		if m[i].CPUs.Contains(cpu) {
			return m[i].ID
		}
	}
	return 0
}

// Distance returns the average distance between the nodes of a set, or 0 if it is unknown.
func (m Machine) Distance(s Set) float64 {
	sum, count := 0, 0
	for i := range m {
		for j := range m {
			if s.Has(m[i].ID) && s.Has(m[j].ID) && j < len(m[i].Distances) {
				sum, count = sum+m[i].Distances[j], count+1
			}
		}
	}
	if count == 0 {
		return 0
	}
	return float64(sum) / float64(count)
}
