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

// Node is one NUMA node.
type Node struct {
	ID   int
	CPUs cpuset.CPUSet
	// Memory are bytes by resource: memory, and huge pages of each size.
	Memory map[v1.ResourceName]int64
	// Distances to all nodes, in the order in which the machine has them; 10 is
	// the node itself.
	Distances []int
}

// Machine is all NUMA nodes, by number. It is not changed.
type Machine []Node

// Read reads the nodes of sysfs at root, usually /sys/devices/system/node. A
// kernel that knows of none makes the error wrap os.ErrNotExist.
func Read(root string) (Machine, error) {
	raw, err := os.ReadFile(filepath.Join(root, "online"))
	if err != nil {
		return nil, fmt.Errorf("asking for the NUMA nodes: %w", err)
	}
	online, err := cpuset.Parse(strings.TrimSpace(string(raw)))
	if err != nil {
		return nil, fmt.Errorf("asking for the NUMA nodes: %w", err)
	}
	var out Machine
	for _, id := range online.List() {
		if id >= Most {
			return nil, fmt.Errorf("NUMA node %d: only the first %d are known", id, Most)
		}
		n, err := readNode(filepath.Join(root, "node"+strconv.Itoa(id)), id)
		if err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return out, nil
}

func readNode(dir string, id int) (Node, error) {
	n := Node{ID: id, Memory: map[v1.ResourceName]int64{}}
	raw, err := os.ReadFile(filepath.Join(dir, "cpulist"))
	if err != nil {
		return n, fmt.Errorf("asking for the CPUs of a NUMA node: %w", err)
	}
	if n.CPUs, err = cpuset.Parse(strings.TrimSpace(string(raw))); err != nil {
		return n, fmt.Errorf("asking for the CPUs of NUMA node %d: %w", id, err)
	}
	if raw, err = os.ReadFile(filepath.Join(dir, "meminfo")); err != nil {
		return n, fmt.Errorf("measuring the memory of a NUMA node: %w", err)
	}
	if n.Memory[v1.ResourceMemory], err = total(string(raw)); err != nil {
		return n, fmt.Errorf("measuring the memory of NUMA node %d: %w", id, err)
	}
	if raw, err = os.ReadFile(filepath.Join(dir, "distance")); err == nil {
		for f := range strings.FieldsSeq(string(raw)) {
			d, err := strconv.Atoi(f)
			if err != nil {
				return n, fmt.Errorf("asking for the distances of NUMA node %d: %w", id, err)
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

// total finds the memory of a node in its meminfo, whose lines are as in
// "Node 0 MemTotal:       8145180 kB".
func total(meminfo string) (int64, error) {
	for line := range strings.Lines(meminfo) {
		f := strings.Fields(line)
		if len(f) == 5 && f[2] == "MemTotal:" && f[4] == "kB" {
			kb, err := strconv.ParseInt(f[3], 10, 64)
			return kb << 10, err
		}
	}
	return 0, errors.New("no total")
}

// Flat is a machine of one node that has everything, for where the kernel knows
// of no nodes.
func Flat(cpus cpuset.CPUSet, memory map[v1.ResourceName]int64) Machine {
	return Machine{{CPUs: cpus, Memory: memory, Distances: []int{10}}}
}

// All is the set of all nodes.
func (m Machine) All() Set {
	var s Set
	for i := range m {
		s |= Of(m[i].ID)
	}
	return s
}

// OfCPU is the node of a CPU; the first one of a CPU that is of none.
func (m Machine) OfCPU(cpu int) int {
	for i := range m {
		if m[i].CPUs.Contains(cpu) {
			return m[i].ID
		}
	}
	return 0
}

// Distance is how far apart the nodes of a set are on average.
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
