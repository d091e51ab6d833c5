// Package usernamespaces assigns an exclusive range of the host's user IDs to each pod with a user
// namespace (hostUsers: false).
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

	"hyperkube/internal/host/atomicfile"
)

const (
	// Length is the number of user IDs and of group IDs that a pod with a user namespace gets.
	Length = 65536
	// ranges is the number of ranges. The first one is the host's own, and the last one is excluded
	// because it contains the invalid ID 4294967295 (-1).
	ranges = 1<<32/Length - 1
	// file is the file in a pod's directory that contains its range. Its name and format are those
	// of the upstream kubelet.
	file = "userns"
)

// Allocator assigns a range of host IDs to each pod with a user namespace. It has no state: the range is
// saved in the pod's directory and is in use as long as that directory exists. The zero value is ready for
// use. Its methods are safe for concurrent use.
type Allocator struct {
	// Ranges are the ranges to assign. It is set before For is called.
	Ranges Ranges
	// Start is the index of the range at which the search begins, modulo the number of ranges. Nodes that
	// share a machine cannot see each other's pods; with different values of Start they assign different
	// ranges.
	Start uint32
	mu    sync.Mutex
}

// record is the content of the file that contains the ID mappings of a pod.
type record struct {
	UIDs []mapping `json:"uidMappings"`
	GIDs []mapping `json:"gidMappings"`
}

// mapping maps Length IDs that begin at ContainerID in the pod to those that begin at HostID on the host.
type mapping struct {
	HostID      uint32 `json:"hostId"`
	ContainerID uint32 `json:"containerId"`
	Length      uint32 `json:"length"`
}

// For returns the ID mappings of the pod's user namespace. dir contains a directory for each pod. The
// mappings are saved in the directory of the pod, which For creates, and remain the same as long as it
// exists. It returns an error if no range is free, or if the file of any pod is unreadable, because that pod
// may use any range.
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
		return nil, fmt.Errorf("finding a free range of user IDs: %w", err)
	}
	taken := map[uint32]bool{}
	for _, e := range entries {
		first, err := load(filepath.Join(dir, e.Name(), file))
		switch {
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			return nil, err // that pod may use any range
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
			return nil, fmt.Errorf("saving the pod's user IDs: %w", err)
		}
		if err := os.MkdirAll(filepath.Dir(mine), 0o755); err != nil {
			return nil, fmt.Errorf("saving the pod's user IDs: %w", err)
		}
		if err := atomicfile.Write(atomicfile.File{Path: mine, Data: data, Mode: 0o600}); err != nil {
			return nil, fmt.Errorf("saving the pod's user IDs: %w", err)
		}
		return namespace(first), nil
	}
	return nil, errors.New("no range of user IDs is free for the pod")
}

// load returns the first host ID of the range in the file at path. It returns an error that wraps
// os.ErrNotExist if there is no file, and another error if its content is not valid.
func load(path string) (uint32, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("reading the pod's user IDs: %w", err)
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return 0, fmt.Errorf("reading the pod's user IDs in %s: %w", path, err)
	}
	if len(r.UIDs) != 1 || len(r.GIDs) != 1 || r.UIDs[0] != r.GIDs[0] || r.UIDs[0].ContainerID != 0 ||
		r.UIDs[0].Length != Length || r.UIDs[0].HostID == 0 || r.UIDs[0].HostID%Length != 0 {
		return 0, fmt.Errorf("reading the pod's user IDs in %s: unexpected mappings", path)
	}
	return r.UIDs[0].HostID, nil
}

// namespace returns the mappings of a pod whose range begins at the host ID first.
func namespace(first uint32) *runtimeapi.UserNamespace {
	m := func() []*runtimeapi.IDMapping { return []*runtimeapi.IDMapping{{HostId: first, Length: Length}} }
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: m(), Gids: m()}
}
