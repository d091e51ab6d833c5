package cgroup

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Move moves those processes of cgroup from for which the function which returns true to cgroup to,
// which must exist. Processes of cgroups below from and of other PID namespaces are not moved. In
// version 1 each hierarchy is handled separately: a process is moved only in the hierarchies in
// which it is in from. Move continues after errors and returns the number of moves. If moved is
// zero and err is nil, no matching process is left.
func (m *Manager) Move(from, to string, which func(pid int) bool) (moved int, err error) {
	dirs := m.Dirs(to)
	var errs []error
	for i, dir := range m.Dirs(from) {
		pids, err := readPids(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			errs = append(errs, fmt.Errorf("listing processes of cgroup %s: %w", from, err))
		}
		for _, pid := range pids {
			if !which(pid) {
				continue
			}
			switch err := write(filepath.Join(dirs[i], "cgroup.procs"), strconv.Itoa(pid)); {
			case err == nil:
				moved++
			case !errors.Is(err, unix.ESRCH): // ESRCH: the process has exited
				errs = append(errs, fmt.Errorf("moving process %d into cgroup %s: %w", pid, to, err))
			}
		}
	}
	return moved, errors.Join(errs...)
}
