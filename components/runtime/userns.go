//go:build cgo

package runtime

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/sandbox"
)

// userNS returns the user namespace that a pod asks for, nil for the host's. A
// pod has one, shared by its containers, with one range of users and one of
// groups, and its root is the first of both.
//
// https://kubernetes.io/docs/concepts/workloads/pods/user-namespaces/
func userNS(config *runtimeapi.PodSandboxConfig) (*sandbox.UserNS, error) {
	options := namespaceOptions(config)
	wanted := options.GetUsernsOptions()
	if wanted == nil || wanted.GetMode() == runtimeapi.NamespaceMode_NODE {
		if len(wanted.GetUids())+len(wanted.GetGids()) > 0 {
			return nil, errors.New("user namespace mode NODE takes no mappings")
		}
		return nil, nil
	}
	if wanted.GetMode() != runtimeapi.NamespaceMode_POD {
		return nil, fmt.Errorf("unsupported user namespace mode: %s", wanted.GetMode())
	}
	if hostNetwork(config) || hostIPC(config) || options.GetPid() == runtimeapi.NamespaceMode_NODE {
		return nil, errors.New("a pod with a user namespace of its own cannot share the network, IPC or PID namespace of the host")
	}
	uid, length, err := oneMapping("user", wanted.GetUids())
	if err != nil {
		return nil, err
	}
	gid, groups, err := oneMapping("group", wanted.GetGids())
	if err != nil {
		return nil, err
	}
	if length != groups {
		return nil, fmt.Errorf("the user namespace has %d users but %d groups", length, groups)
	}
	return &sandbox.UserNS{HostUID: uid, HostGID: gid, Length: length}, nil
}

func oneMapping(what string, list []*runtimeapi.IDMapping) (host, length int, err error) {
	if len(list) != 1 {
		return 0, 0, fmt.Errorf("only one mapping of %s IDs is supported, not %d", what, len(list))
	}
	m := list[0]
	if m.GetContainerId() != 0 {
		return 0, 0, fmt.Errorf("the mapping of %s IDs must begin with ID 0 of the pod, not %d", what, m.GetContainerId())
	}
	if m.GetLength() == 0 || uint64(m.GetHostId())+uint64(m.GetLength()) > math.MaxUint32 {
		return 0, 0, fmt.Errorf("bad mapping of %s IDs: %d from %d on", what, m.GetLength(), m.GetHostId())
	}
	return int(m.GetHostId()), int(m.GetLength()), nil
}

// userNamespaces tells whether the kernel has all that pods with user namespaces
// need: mounts with mapped owners below overlays, which came with Linux 5.19, and
// of file systems in memory, on which tokens and Secrets are, with 6.3.
func userNamespaces() bool {
	if limit, err := os.ReadFile("/proc/sys/user/max_user_namespaces"); err != nil || strings.TrimSpace(string(limit)) == "0" {
		return false
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return false
	}
	return mapsOwners(unix.ByteSliceToString(name.Release[:]))
}

// mapsOwners tells whether a release of Linux, such as "6.1.0-13-amd64", maps owners
// wherever a pod needs it.
func mapsOwners(release string) bool {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return false
	}
	return major > 6 || major == 6 && minor >= 3
}
