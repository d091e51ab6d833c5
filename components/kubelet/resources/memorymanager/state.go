package memorymanager

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"hyperkube/components/kubelet/resources/numa"
)

// Block is memory of one type that is allocated to a container on a set of NUMA nodes.
type Block struct {
	Nodes []int           `json:"numaAffinity"`
	Type  v1.ResourceName `json:"type"`
	Size  int64           `json:"size"` // bytes
}

// set returns the NUMA nodes of the block.
func (b *Block) set() numa.Set { return numa.Of(b.Nodes...) }

// table is the accounting of one memory type on a NUMA node, in bytes.
type table struct {
	Total          int64 `json:"total"`
	SystemReserved int64 `json:"systemReserved"`
	Allocatable    int64 `json:"allocatable"`
	Reserved       int64 `json:"reserved"`
	Free           int64 `json:"free"`
}

// nodeState is the accounting of one NUMA node. Assignments is the number of blocks on it.
type nodeState struct {
	Assignments int                        `json:"numberOfAssignments"`
	Memory      map[v1.ResourceName]*table `json:"memoryMap"`
	// Group are the NUMA nodes that are allocated together with this one, including itself.
	Group []int `json:"cells"`
}

// group returns the NUMA nodes among which the node's memory is allocated together: the node alone, or all nodes of
// the same allocations.
func (n *nodeState) group() numa.Set { return numa.Of(n.Group...) }

// state is the content of the state file, in upstream's format. The checksum covers the other fields.
type state struct {
	Policy   string                           `json:"policyName"`
	Machine  map[int]*nodeState               `json:"machineState"`
	Entries  map[types.UID]map[string][]Block `json:"entries,omitempty"`
	Checksum uint32                           `json:"checksum"`
}

// policy is the name of the memory manager policy that the state file contains.
const policy = "Static"

// decode decodes the content of a state file. An invalid block is an error. The checksum is not verified.
func decode(raw []byte) (*state, error) {
	s := &state{}
	if err := json.Unmarshal(raw, s); err != nil {
		return nil, fmt.Errorf("decoding memory manager state: %w", err)
	}
	for _, containers := range s.Entries {
		for _, blocks := range containers {
			for i := range blocks {
				if b := &blocks[i]; b.Size < 0 || b.set().Count() != len(b.Nodes) || len(b.Nodes) == 0 {
					return nil, errors.New("decoding memory manager state: a block has no NUMA nodes or an invalid size")
				}
			}
		}
	}
	return s, nil
}

// encode returns the content of a state file with the checksum of s.
func encode(s state) ([]byte, error) {
	s.Checksum = 0
	raw, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encoding memory manager state: %w", err)
	}
	sum := fnv.New32a()
	_, _ = sum.Write(raw)
	s.Checksum = sum.Sum32()
	return json.Marshal(s)
}

// machineState computes the accounting of all NUMA nodes of the machine from the reserved memory and the
// allocated blocks given, by pod and container. Blocks on several nodes fill the nodes in ascending order.
func machineState(machine numa.Machine, reserved map[int]map[v1.ResourceName]int64, given map[types.UID]map[string][]Block) map[int]*nodeState {
	out := map[int]*nodeState{}
	for i := range machine {
		n := &nodeState{Memory: map[v1.ResourceName]*table{}, Group: []int{machine[i].ID}}
		for name, total := range machine[i].Memory {
			kept := reserved[machine[i].ID][name]
			n.Memory[name] = &table{Total: total, SystemReserved: kept, Allocatable: max(total-kept, 0), Free: max(total-kept, 0)}
		}
		out[machine[i].ID] = n
	}
	for _, uid := range slices.Sorted(maps.Keys(given)) {
		for _, name := range slices.Sorted(maps.Keys(given[uid])) {
			for _, b := range given[uid][name] {
				left := b.Size
				for _, id := range b.set().IDs() {
					n := out[id]
					if n == nil {
						continue
					}
					n.Assignments++
					n.Group = b.set().IDs()
					if t := n.Memory[b.Type]; t != nil {
						part := min(left, t.Free)
						t.Free, t.Reserved, left = t.Free-part, t.Reserved+part, left-part
					}
				}
			}
		}
	}
	return out
}
