// Package hostjournal records every change to the host before it is made, so that `hyperkube down`
// can revert it after a crash. A journal belongs to one node. It is a file of JSON lines that is
// synced to disk before Record returns. Processes of the node that change different things can
// share a journal. If several of them change the same parameter, the value before the first change
// is restored. Recording and reverting are idempotent, and reverting can be interrupted: a change
// that does not exist anymore is not an error.
package hostjournal

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

// Kind is the kind of a change to the host. It determines how the change is reverted.
type Kind string

// Link and the other constants are the kinds of changes that the journal can contain.
const (
	// Link is a network link of the host. Name is its name.
	Link Kind = "link"
	// Sysctl is a kernel parameter. Name is its path below /proc/sys, Before its previous value.
	Sysctl Kind = "sysctl"
	// Module is a parameter of a kernel module. Name is its path below /sys/module, Before its
	// previous value.
	Module Kind = "module"
	// Chain is a chain of packet filter rules. Name is "family table chain", where family is 4 or 6.
	// A chain with a trailing "*" stands for all chains with that prefix. Package packetfilter
	// records and reverts it.
	Chain Kind = "chain"
	// Rule is a rule in a chain of the host. Name is "family table chain", Args are the arguments of
	// iptables. Package packetfilter records and reverts it.
	Rule Kind = "rule"
	// NFTables is a chain of nftables. Name is "family table chain" as for Chain. If Args contains the name of another
	// chain, it is a rule in a chain that is attached to a hook of the kernel, and jumps to that chain. Package
	// packetfilter records and reverts it.
	NFTables Kind = "nftables"
	// Table is a table of nf_tables that the program iptables creates. Name is "family table". It is removed if it is
	// empty. Package packetfilter records and reverts it.
	Table Kind = "table"
	// Mount is a mount point and all mount points below it. Name is its path.
	Mount Kind = "mount"
	// Cgroup is a tree of cgroups. Name is its path in every hierarchy.
	Cgroup Kind = "cgroup"
	// HostCgroup is a cgroup into which processes of the host were moved. They are moved to the
	// root cgroup when it is removed. Name is its path.
	HostCgroup Kind = "hostcgroup"
	// Controllers are the controllers that the root of the unified cgroup hierarchy enables for its children. Before is
	// their previous list, separated by spaces. Name is "/".
	Controllers Kind = "controllers"
	// Dir is a directory or file that was created. Name is its path. It is removed with its content.
	Dir Kind = "dir"
	// Route is a route. Name is its destination, Before the name of its link, or empty if the route makes the destination
	// unreachable.
	Route Kind = "route"
	// Firewalld is an address range or link that was added to a zone of firewalld. Name is "Source RANGE" or
	// "Interface LINK". Package firewalld records and reverts it.
	Firewalld Kind = "firewalld"
	// AppArmor is an AppArmor profile that was loaded into the kernel. Name is its name.
	AppArmor Kind = "apparmor"
)

// Change is one change to the host. The comments of the kinds describe the other fields; unused
// ones are empty.
type Change struct {
	Kind   Kind     `json:"kind"`
	Name   string   `json:"name"`
	Before string   `json:"before,omitempty"`
	Args   []string `json:"args,omitempty"`
}

// Path returns the file of the parameter that a change of the kind Sysctl or Module has changed.
func (c Change) Path() string {
	dir := "/proc/sys"
	if c.Kind == Module {
		dir = "/sys/module"
	}
	return filepath.Join(dir, filepath.Clean("/"+c.Name))
}

// key identifies what a change affects. Changes with the same key differ only in Before.
func (c Change) key() string { return fmt.Sprintf("%s\x00%s\x00%q", c.Kind, c.Name, c.Args) }

// Journal is the journal file of a node, opened for recording changes. Its methods are safe for
// concurrent use. A nil *Journal records nothing; tests in separate namespaces use it.
type Journal struct {
	path string

	mu   sync.Mutex // guards file and seen
	file *os.File   // nil while the disk is read-only
	seen map[string]bool
}

// Open opens the journal at path, and creates it with mode 0600 if needed. If the disk is
// read-only, the journal contains the recorded changes, but Record fails until the disk is
// writable.
func Open(path string) (*Journal, error) {
	changes, err := Read(path)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("creating directory of the host change journal: %w", err)
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

// openFile opens or creates the journal file for appending. If a crash has truncated the last line,
// it ends that line first.
func openFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening host change journal: %w", err)
	}
	// If a crash has truncated the last line, the next one must not be appended to it.
	if info, err := f.Stat(); err == nil && info.Size() > 0 {
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, info.Size()-1); err == nil && last[0] != '\n' {
			if _, err := f.WriteString("\n"); err != nil {
				f.Close()
				return nil, fmt.Errorf("repairing host change journal: %w", err)
			}
		}
	}
	return f, nil
}

// Read returns the changes in the journal at path, in order. It returns none if the journal does
// not exist. Lines truncated by a crash are ignored, because their changes were not made.
func Read(path string) ([]Change, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading host change journal: %w", err)
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
		return nil, fmt.Errorf("reading host change journal: %w", err)
	}
	return changes, nil
}

// Record writes changes that the caller is about to make, with one sync to disk. If it returns an
// error, the caller must not make the changes, because they could not be reverted. Changes that are
// recorded already are not written again, so that the first recorded value of a parameter is the
// one that is restored.
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
			return fmt.Errorf("recording host change: %w", err)
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
	if err := j.append(buf); err != nil {
		return fmt.Errorf("recording host change: %w", err)
	}
	for _, c := range changes {
		j.seen[c.key()] = true
	}
	return nil
}

// append appends lines to the file and syncs it. If this fails, for example because the disk is
// full, it removes what has been written of them, because the next line would be appended to an
// incomplete one. The caller must hold mu, which guards the file.
func (j *Journal) append(lines []byte) error {
	info, err := j.file.Stat()
	if err != nil {
		return err
	}
	if _, err = j.file.Write(lines); err == nil {
		err = j.file.Sync()
	}
	if err == nil {
		return nil
	}
	if undoErr := j.file.Truncate(info.Size()); undoErr != nil {
		// openFile repairs an incomplete line.
		_ = j.file.Close()
		j.file = nil
		return errors.Join(err, undoErr)
	}
	return err
}

// Close closes the file. The recorded changes remain in it. No other method may be called
// afterwards.
func (j *Journal) Close() error {
	if j == nil || j.file == nil {
		return nil
	}
	return j.file.Close()
}
