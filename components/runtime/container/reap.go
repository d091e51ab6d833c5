package container

import (
	"strings"

	"golang.org/x/sys/unix"

	"hyperkube/internal/process"
)

// launcher begins the names of libcontainer's processes until they have executed
// the container's program.
const launcher = "runc:["

// reapLaunchers reaps the children that libcontainer has left of starts that
// failed. They are more than litter: the first process of a PID namespace cannot
// end before all others there have been reaped. No start may be under way, for its
// children are waited for by libcontainer.
func reapLaunchers() {
	for pid := range process.Children() {
		if name, ended := process.Zombie(pid); ended && strings.HasPrefix(name, launcher) {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}
