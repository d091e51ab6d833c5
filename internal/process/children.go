package process

import (
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Children yields the numbers of this process's children, whichever of its
// threads they came from, those that ended and are not reaped yet too. A child
// that comes or goes meanwhile may be left out.
func Children() iter.Seq[int] {
	return func(yield func(int) bool) {
		// The pattern is well formed: there is no other error.
		threads, _ := filepath.Glob("/proc/self/task/*/children")
		for _, file := range threads {
			data, err := os.ReadFile(file)
			if err != nil {
				continue // the thread ended, its children are another's now
			}
			for word := range strings.FieldsSeq(string(data)) {
				if pid, err := strconv.Atoi(word); err == nil && !yield(pid) {
					return
				}
			}
		}
	}
}

// Zombie returns the name of a process that has ended and is not reaped yet, and
// false for any other.
func Zombie(pid int) (name string, ok bool) {
	name, fields, err := stat(pid)
	return name, err == nil && fields[0] == "Z"
}
