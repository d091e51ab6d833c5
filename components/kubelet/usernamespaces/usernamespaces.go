// Package usernamespaces gives pods with user namespaces of their own
// (hostUsers: false) ranges of the host's users that no other pod has.
//
// https://kubernetes.io/docs/concepts/workloads/pods/user-namespaces/
package usernamespaces

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/internal/atomicfile"
)

const (
	// Length is how many users a pod has.
	Length = 65536
	// ranges is how many pods there could be; the first range is the host's
	// own, and the last has the number that stands for nobody.
	ranges = 1<<32/Length - 1
	// file in a pod's directory keeps its range, under the name and in the
	// form that other kubelets have.
	file = "userns"
)

// Allocator hands out ranges. It remembers nothing itself: a range is taken
// for as long as the directory of its pod is there. The zero value works, for
// several goroutines.
type Allocator struct {
	// Ranges are those that are handed out; it is set before For is called.
	Ranges Ranges
	// Start is which of them is looked at first, counted from the first of them
	// and modulo their number. Nodes of one machine, which know nothing of each
	// other, do not give the same users to their pods if they start apart.
	Start uint32
	mu    sync.Mutex
}

type record struct {
	UIDs []mapping `json:"uidMappings"`
	GIDs []mapping `json:"gidMappings"`
}

type mapping struct {
	HostID      uint32 `json:"hostId"`
	ContainerID uint32 `json:"containerId"`
	Length      uint32 `json:"length"`
}

// For returns a pod's users, the same for as long as dir/UID is there; dir has
// the pods' directories.
func (a *Allocator) For(dir string, uid types.UID) (*runtimeapi.UserNamespace, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	mine := filepath.Join(dir, string(uid), file)
	if first, err := load(mine); err == nil {
		return namespace(first), nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("finding a free range of users: %w", err)
	}
	taken := map[uint32]bool{}
	for _, e := range entries {
		first, err := load(filepath.Join(dir, e.Name(), file))
		switch {
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			return nil, err // that pod may run with any range
		default:
			taken[first] = true
		}
	}
	from, to := uint32(1), uint32(ranges)
	if a.Ranges.Count > 0 {
		from, to = a.Ranges.First, min(ranges, a.Ranges.First+a.Ranges.Count)
	}
	for i := range to - from {
		first := (from + (a.Start%(to-from)+i)%(to-from)) * Length
		if taken[first] {
			continue
		}
		m := []mapping{{HostID: first, Length: Length}}
		data, err := json.Marshal(record{UIDs: m, GIDs: m})
		if err != nil {
			return nil, fmt.Errorf("keeping the pod's users: %w", err)
		}
		if err := os.MkdirAll(filepath.Dir(mine), 0o755); err != nil {
			return nil, fmt.Errorf("keeping the pod's users: %w", err)
		}
		if err := atomicfile.Write(atomicfile.File{Path: mine, Data: data, Mode: 0o600}); err != nil {
			return nil, fmt.Errorf("keeping the pod's users: %w", err)
		}
		return namespace(first), nil
	}
	return nil, errors.New("no range of users is free for the pod")
}

// load reads the first user of a pod's range.
func load(path string) (uint32, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("reading the pod's users: %w", err)
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return 0, fmt.Errorf("reading the pod's users in %s: %w", path, err)
	}
	if len(r.UIDs) != 1 || len(r.GIDs) != 1 || r.UIDs[0] != r.GIDs[0] || r.UIDs[0].ContainerID != 0 ||
		r.UIDs[0].Length != Length || r.UIDs[0].HostID == 0 || r.UIDs[0].HostID%Length != 0 {
		return 0, fmt.Errorf("reading the pod's users in %s: unexpected mappings", path)
	}
	return r.UIDs[0].HostID, nil
}

func namespace(first uint32) *runtimeapi.UserNamespace {
	m := func() []*runtimeapi.IDMapping { return []*runtimeapi.IDMapping{{HostId: first, Length: Length}} }
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: m(), Gids: m()}
}
