package process

import (
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Children iterates over the PIDs of the child processes of this process, regardless of which
// thread started them, including zombies. Children that start or exit during the iteration may be
// missing.
func Children() iter.Seq[int] {
	return func(yield func(int) bool) {
		// The only possible error is a malformed pattern.
		threads, _ := filepath.Glob("/proc/self/task/*/children")
		for _, file := range threads {
			data, err := os.ReadFile(file)
			if err != nil {
				continue // the thread exited and its children belong to another thread now
			}
			for word := range strings.FieldsSeq(string(data)) {
				if pid, err := strconv.Atoi(word); err == nil && !yield(pid) {
					return
				}
			}
		}
	}
}

// Zombie returns the name of the process pid if it has exited but was not reaped yet. ok is false
// for all other processes.
func Zombie(pid int) (name string, ok bool) {
	name, fields, err := stat(pid)
	return name, err == nil && fields[0] == "Z"
}
