package container

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// launcher begins the names of libcontainer's processes until they have executed
// the container's program.
const launcher = "runc:["

// reapLaunchers reaps the children that libcontainer has left of starts that
// failed. They are more than litter: the first process of a PID namespace cannot
// end before all others there have been reaped. No start may be under way, for its
// children are waited for by libcontainer.
func reapLaunchers() {
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return
	}
	for _, file := range tasks {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for word := range strings.FieldsSeq(string(data)) {
			stat, err := os.ReadFile(filepath.Join("/proc", word, "stat"))
			if err != nil {
				continue
			}
			_, rest, _ := strings.Cut(string(stat), "(")
			end := strings.LastIndex(rest, ") ")
			if end < 0 || !strings.HasPrefix(rest, launcher) || !strings.HasPrefix(rest[end+2:], "Z") {
				continue
			}
			if pid, err := strconv.Atoi(word); err == nil {
				_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
			}
		}
	}
}
