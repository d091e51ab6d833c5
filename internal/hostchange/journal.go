// Package hostchange records every change to the host before it is made, so
// that `hyperkube down` can take it back after any crash. A journal belongs to
// one node and is a file of JSON lines, synced to disk before Record returns.
// Processes of the node that change different things may share one: of a
// parameter that several changed, one after the other, the value before the first
// is what comes back. Recording is idempotent; undoing is too, and survives being
// interrupted: what is gone already is no error.
package hostchange

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// Kind of a change.
type Kind string

// The kinds of changes there are.
const (
	// Link is a network link of the host, Name its name.
	Link Kind = "link"
	// Sysctl is a kernel parameter: Name its path below /proc/sys, Before
	// its old value.
	Sysctl Kind = "sysctl"
	// Module is a parameter of a kernel module: Name its path below
	// /sys/module, Before its old value.
	Module Kind = "module"
	// Chain is an iptables chain: Name is "family table chain", family 4 or 6.
	Chain Kind = "chain"
	// Rule is an iptables rule in a chain that is not ours: Name is
	// "family table chain", Args the rule.
	Rule Kind = "rule"
	// Mount is a mount point or, with everything mounted below it, a tree
	// of them: Name its path.
	Mount Kind = "mount"
	// Cgroup is a tree of cgroups: Name its path in every hierarchy.
	Cgroup Kind = "cgroup"
	// HostCgroup is a cgroup that processes of the host's own were moved into,
	// which go to the root when it is removed: Name its path.
	HostCgroup Kind = "hostcgroup"
	// Dir is a directory that was not there: Name its path. It is removed
	// with all that is in it.
	Dir Kind = "dir"
	// Route is a route: Name its destination, Before the link's name.
	Route Kind = "route"
)

// Change is one change to the host.
type Change struct {
	Kind   Kind     `json:"kind"`
	Name   string   `json:"name"`
	Before string   `json:"before,omitempty"`
	Args   []string `json:"args,omitempty"`
}

// Path is the file of a Sysctl or a Module.
func (c Change) Path() string {
	dir := "/proc/sys"
	if c.Kind == Module {
		dir = "/sys/module"
	}
	return filepath.Join(dir, filepath.Clean("/"+c.Name))
}

func (c Change) key() string { return fmt.Sprintf("%s\x00%s\x00%q", c.Kind, c.Name, c.Args) }

// Journal records changes. Its methods are safe for several goroutines. A nil
// *Journal records nothing, for tests that have a namespace of their own.
type Journal struct {
	path string

	mu   sync.Mutex // guards file and seen
	file *os.File   // nil as long as the disk was read-only
	seen map[string]bool
}

// Open opens or makes the journal at path, mode 0600. On a disk that is read-only
// just now it knows what was recorded before, and records nothing new.
func Open(path string) (*Journal, error) {
	changes, err := Read(path)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("making the directory of the host change journal: %w", err)
	}
	f, err := openFile(path)
	if err != nil && !errors.Is(err, unix.EROFS) {
		return nil, err
	}
	j := &Journal{path: path, file: f, seen: map[string]bool{}}
	for _, c := range changes {
		j.seen[c.key()] = true
	}
	return j, nil
}

// openFile opens or makes the file of a journal to write to it.
func openFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the host change journal: %w", err)
	}
	// A line that a crash cut short must not swallow the next one.
	if info, err := f.Stat(); err == nil && info.Size() > 0 {
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, info.Size()-1); err == nil && last[0] != '\n' {
			if _, err := f.WriteString("\n"); err != nil {
				f.Close()
				return nil, fmt.Errorf("mending the host change journal: %w", err)
			}
		}
	}
	return f, nil
}

// Read returns the changes in the journal at path, in order; none if there is
// no journal. Lines cut short by a crash are passed over: their changes were
// not made.
func Read(path string) ([]Change, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the host change journal: %w", err)
	}
	defer f.Close()
	var changes []Change
	scan := bufio.NewScanner(f)
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		var c Change
		if json.Unmarshal(scan.Bytes(), &c) == nil && c.Kind != "" {
			changes = append(changes, c)
		}
	}
	if err := scan.Err(); err != nil {
		return nil, fmt.Errorf("reading the host change journal: %w", err)
	}
	return changes, nil
}

// Record writes down changes that are about to be made, in one sync to disk.
// Those already recorded are not written again; for a sysctl or a
// module's parameter the first value counts.
func (j *Journal) Record(changes ...Change) error {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	var buf []byte
	for _, c := range changes {
		if j.seen[c.key()] {
			continue
		}
		line, err := json.Marshal(c)
		if err != nil {
			return fmt.Errorf("recording a host change: %w", err)
		}
		buf = append(append(buf, line...), '\n')
	}
	if len(buf) == 0 {
		return nil
	}
	if j.file == nil {
		f, err := openFile(j.path)
		if err != nil {
			return err
		}
		j.file = f
	}
	if _, err := j.file.Write(buf); err != nil {
		return fmt.Errorf("recording a host change: %w", err)
	}
	if err := j.file.Sync(); err != nil {
		return fmt.Errorf("recording a host change: %w", err)
	}
	for _, c := range changes {
		j.seen[c.key()] = true
	}
	return nil
}

// Close closes the file. What was recorded stays.
func (j *Journal) Close() error {
	if j == nil || j.file == nil {
		return nil
	}
	return j.file.Close()
}
