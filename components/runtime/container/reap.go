package container

import (
	"strings"

	"golang.org/x/sys/unix"

	"hyperkube/internal/host/process"
)

// launcherPrefix is the prefix of the process name of libcontainer's processes before they execute the
// container's program.
const launcherPrefix = "runc:["

// reapLaunchers reaps zombie child processes that libcontainer leaves behind when a start fails. This is necessary
// because the init process of a PID namespace cannot exit before all other processes of the namespace are reaped. The
// caller must hold Runner.startMu for writing, so that no start is in progress: libcontainer itself waits for the
// processes of a start.
func reapLaunchers() {
	for pid := range process.Children() {
		if name, zombie := process.Zombie(pid); zombie && strings.HasPrefix(name, launcherPrefix) {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}
