//go:build cgo

package runtime

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"hyperkube/internal/host/cgroup"
)

// cgroupHierarchyName is the name of the empty cgroup hierarchy that favorDynamicCgroups creates. It is visible in
// /proc/PID/cgroup.
const cgroupHierarchyName = "hyperkube"

// favorsDynamicCgroups reports whether favorDynamicCgroups should be called: with cgroup v1, unless slow is set, which
// is Config.SlowCgroups. With cgroup v2 it is not worth it, because starting a container moves a process once and not
// once per controller. In addition, another hierarchy would add a line to /proc/PID/cgroup of all processes, before the
// line of the unified hierarchy, and programs and scripts expect that to be the only line.
func favorsDynamicCgroups(cgroups *cgroup.Manager, slow bool) bool {
	return !slow && !cgroups.Unified()
}

// favorDynamicCgroups makes the kernel move processes between cgroups faster. By default, each move waits for
// an RCU grace period (6 to 27 ms measured), and a pod start has several of them. With the mount option
// favordynmods a move takes 0.5 ms, while a fork takes some nanoseconds longer.
//
// The option belongs to a hierarchy but its effect is global. So an empty hierarchy that is not mounted
// anywhere enables it without affecting other mounts. The hierarchy disappears when the returned file is
// closed; kernels from 6.18 on keep the setting until the next boot. It returns an error on kernels before 6.0,
// which do not have the option.
//
// https://docs.kernel.org/admin-guide/cgroup-v2.html#mounting
func favorDynamicCgroups() (*os.File, error) {
	fs, err := unix.Fsopen("cgroup", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("opening cgroup file system: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigSetFlag(fs, "none"); err != nil {
		return nil, fmt.Errorf("configuring cgroup hierarchy: %w", err)
	}
	if err := unix.FsconfigSetString(fs, "name", cgroupHierarchyName); err != nil {
		return nil, fmt.Errorf("configuring cgroup hierarchy: %w", err)
	}
	// Requires Linux 6.0.
	if err := unix.FsconfigSetFlag(fs, "favordynmods"); err != nil {
		return nil, fmt.Errorf("configuring cgroup hierarchy: %w", err)
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, fmt.Errorf("creating cgroup hierarchy: %w", err)
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, fmt.Errorf("creating cgroup hierarchy: %w", err)
	}
	return os.NewFile(uintptr(mount), "cgroup hierarchy"), nil
}
