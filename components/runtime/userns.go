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

// userNS returns the ID mapping of a pod's user namespace, which all its containers share. It returns nil if the pod
// uses the host's user namespace. It returns an error if the mapping is not a single range of user IDs and of group
// IDs, both from 0 and of the same length, or if the pod shares other namespaces with the host.
//
// https://kubernetes.io/docs/concepts/workloads/pods/user-namespaces/
func userNS(config *runtimeapi.PodSandboxConfig) (*sandbox.UserNS, error) {
	options := namespaceOptions(config)
	requested := options.GetUsernsOptions()
	if requested == nil || requested.GetMode() == runtimeapi.NamespaceMode_NODE {
		if len(requested.GetUids())+len(requested.GetGids()) > 0 {
			return nil, errors.New("user namespace mode NODE does not support ID mappings")
		}
		return nil, nil
	}
	if requested.GetMode() != runtimeapi.NamespaceMode_POD {
		return nil, fmt.Errorf("unsupported user namespace mode: %s", requested.GetMode())
	}
	if hostNetwork(config) || hostIPC(config) || options.GetPid() == runtimeapi.NamespaceMode_NODE {
		return nil, errors.New("a pod with its own user namespace cannot share the network, IPC or PID namespace of the host")
	}
	uid, length, err := singleMapping("user", requested.GetUids())
	if err != nil {
		return nil, err
	}
	gid, groups, err := singleMapping("group", requested.GetGids())
	if err != nil {
		return nil, err
	}
	if length != groups {
		return nil, fmt.Errorf("the user namespace maps %d user IDs but %d group IDs", length, groups)
	}
	return &sandbox.UserNS{HostUID: uid, HostGID: gid, Length: length}, nil
}

// singleMapping returns the first host ID and the length of the only mapping in list, which must begin with ID
// 0 of the pod; anything else is an error. what is "user" or "group", for error messages.
func singleMapping(what string, list []*runtimeapi.IDMapping) (host, length int, err error) {
	if len(list) != 1 {
		return 0, 0, fmt.Errorf("only one mapping of %s IDs is supported, not %d", what, len(list))
	}
	m := list[0]
	if m.GetContainerId() != 0 {
		return 0, 0, fmt.Errorf("the mapping of %s IDs must begin with ID 0 of the pod, not %d", what, m.GetContainerId())
	}
	if m.GetLength() == 0 || uint64(m.GetHostId())+uint64(m.GetLength()) > math.MaxUint32 {
		return 0, 0, fmt.Errorf("invalid mapping of %s IDs: %d from %d on", what, m.GetLength(), m.GetHostId())
	}
	return int(m.GetHostId()), int(m.GetLength()), nil
}

// errNoUserNamespaces is the error for pods with a user namespace on a machine that does not support them. Its text
// is upstream's message; checkUserNamespaces appends the reason.
var errNoUserNamespaces = errors.New("can't set `spec.hostUsers: false`, runtime does not support user namespaces")

// checkUserNamespaces returns an error that wraps errNoUserNamespaces and states the reason if the kernel does
// not support pods with user namespaces. They need ID-mapped mounts as overlay layers (Linux 5.19), and of tmpfs,
// which contains tokens and Secrets (Linux 6.3).
func checkUserNamespaces() error {
	const limits = "/proc/sys/user/max_user_namespaces"
	limit, err := os.ReadFile(limits)
	if err != nil {
		return fmt.Errorf("%w: the kernel has none: %w", errNoUserNamespaces, err)
	}
	if strings.TrimSpace(string(limit)) == "0" {
		return fmt.Errorf("%w: %s is 0", errNoUserNamespaces, limits)
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return fmt.Errorf("%w: %w", errNoUserNamespaces, err)
	}
	if release := unix.ByteSliceToString(name.Release[:]); !supportsIDMapping(release) {
		return fmt.Errorf("%w: the kernel is Linux %s, and pods with user namespaces need Linux 6.3 or newer", errNoUserNamespaces, release)
	}
	return nil
}

// supportsIDMapping reports whether a Linux release, such as "6.1.0-13-amd64", supports the ID-mapped mounts that pods
// with user namespaces need, which is the case from 6.3 on.
func supportsIDMapping(release string) bool {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return false
	}
	return major > 6 || major == 6 && minor >= 3
}
