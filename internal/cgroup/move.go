package cgroup

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Move takes processes that are in one cgroup, not in those below it, to another, which
// is there already. Of version 1 each hierarchy is taken by itself, so that a process
// stays where it is in those in which it is elsewhere. Only those that which picks are
// moved; processes of other PID namespaces are not asked about. It goes on after an error,
// and tells how many moves there were: none says that nobody is left.
func (m *Manager) Move(from, to string, which func(pid int) bool) (moved int, err error) {
	dirs := m.Dirs(to)
	var errs []error
	for i, dir := range m.Dirs(from) {
		pids, err := readPids(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			errs = append(errs, fmt.Errorf("listing the processes of cgroup %s: %w", from, err))
		}
		for _, pid := range pids {
			if !which(pid) {
				continue
			}
			switch err := write(filepath.Join(dirs[i], "cgroup.procs"), strconv.Itoa(pid)); {
			case err == nil:
				moved++
			case !errors.Is(err, unix.ESRCH): // it has not ended meanwhile
				errs = append(errs, fmt.Errorf("moving process %d into cgroup %s: %w", pid, to, err))
			}
		}
	}
	return moved, errors.Join(errs...)
}
