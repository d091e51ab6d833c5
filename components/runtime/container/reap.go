package container

import (
	"strings"

	"golang.org/x/sys/unix"

	"hyperkube/internal/host/process"
)

// launcherPrefix is the prefix of the process name of libcontainer's processes before they execute the
// container's program.
const launcherPrefix = "runc:["

// reapLaunchers reaps zombie children that libcontainer leaves behind when a start fails. This is
// necessary because the init process of a PID namespace cannot exit before all other processes of
// the namespace are reaped. No start may be in progress, because libcontainer waits for the
// children of that start.
func reapLaunchers() {
	for pid := range process.Children() {
		if name, zombie := process.Zombie(pid); zombie && strings.HasPrefix(name, launcherPrefix) {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}
