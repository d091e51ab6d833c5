//go:build cgo

package runtime

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// hierarchy names the empty cgroup hierarchy that favorDynamicCgroups makes.
const hierarchy = "hyperkube"

// favorsDynamicCgroups tells whether favorDynamicCgroups shall be called: not
// where all controllers are in the unified hierarchy. There a process is moved
// once for a container, not once a controller; and a further hierarchy is a
// line before the only one in everybody's /proc/PID/cgroup, which programs and
// scripts on such machines take for the one of the unified hierarchy.
func (r *Runtime) favorsDynamicCgroups() bool {
	return !r.cfg.SlowCgroups && !r.cgroups.Unified()
}

// favorDynamicCgroups asks the kernel to move processes between cgroups
// quickly. By default each move waits until every CPU has passed a quiet
// state, 6 to 27 ms measured, and a pod's start has several of them; with the
// mount option favordynmods, 0.5 ms, for forks that take some nanoseconds more.
//
// The option is one of a hierarchy but its effect is the kernel's, so that an
// empty hierarchy of our own, mounted nowhere, brings it without touching
// anybody's mounts. It goes with the returned file; only kernels from 6.18 on
// keep the quick way until the next boot.
//
// https://docs.kernel.org/admin-guide/cgroup-v2.html#mounting
func favorDynamicCgroups() (*os.File, error) {
	fs, err := unix.Fsopen("cgroup", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("opening a cgroup file system: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigSetFlag(fs, "none"); err != nil {
		return nil, fmt.Errorf("configuring a cgroup hierarchy: %w", err)
	}
	if err := unix.FsconfigSetString(fs, "name", hierarchy); err != nil {
		return nil, fmt.Errorf("configuring a cgroup hierarchy: %w", err)
	}
	// Linux 6.0 and newer.
	if err := unix.FsconfigSetFlag(fs, "favordynmods"); err != nil {
		return nil, fmt.Errorf("configuring a cgroup hierarchy: %w", err)
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, fmt.Errorf("making a cgroup hierarchy: %w", err)
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making a cgroup hierarchy: %w", err)
	}
	return os.NewFile(uintptr(mount), "cgroup hierarchy"), nil
}
