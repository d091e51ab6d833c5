//go:build cgo

package container

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hyperkube/components/runtime/container/seccompfilter"
	"hyperkube/internal/host/atomicfile"
)

// The default seccomp profile does not pass through libcontainer, which would compile it for every process. The
// runtime compiles it once, stores the result in a file beside libcontainer's state of the container, and each process
// of the container loads it from there (see package initial).

// filterFile is the name of the file with the seccomp filter of a container, in libcontainer's directory of its state.
// Containers with the same filter share one file by hard links, because the directory is usually on a tmpfs.
const filterFile = "seccomp.bpf"

// maxFilters is the maximum number of filters in a filterCache. Few are needed, because only the default profile is
// cached, which depends only on the capabilities of the container.
const maxFilters = 16

// filterCache contains compiled seccomp profiles, so that each profile is compiled once and not for every process. The
// zero value is empty. Its methods are safe for concurrent use.
type filterCache struct {
	mu      sync.Mutex // guards entries
	entries []*compiledFilter
}

// compiledFilter is a compiled seccomp profile and a file that contains it. Its methods are safe for concurrent use.
type compiledFilter struct {
	// profile is the hash of the profile.
	profile [sha256.Size]byte
	program []byte

	mu sync.Mutex // guards file
	// file is the filterFile of a container, or nil.
	file *os.File
}

// get returns the compiled seccomp profile of spec. It compiles only the default profile, and keeps the result
// for other containers. It returns nil if spec has no profile, another one, or one that cannot be compiled
// here, which libcontainer must then compile.
func (c *filterCache) get(spec *specs.Spec) (*compiledFilter, error) {
	profile := spec.Linux.Seccomp
	if profile == nil {
		return nil, nil
	}
	// Only the default profile is known to allow what happens between the load of the filter and the execution of the
	// container's program.
	standard, err := seccomp.GetDefaultProfile(spec)
	if err != nil || !reflect.DeepEqual(profile, standard) {
		return nil, nil //nolint:nilerr // it is not the default profile
	}
	text, err := json.Marshal(profile)
	if err != nil {
		return nil, fmt.Errorf("encoding seccomp profile: %w", err)
	}
	key := sha256.Sum256(text)
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.IndexFunc(c.entries, func(f *compiledFilter) bool { return f.profile == key }); i >= 0 {
		return c.entries[i], nil
	}
	program, err := seccompfilter.Compile(profile)
	if errors.Is(err, seccompfilter.ErrUnsupported) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if len(c.entries) == maxFilters {
		c.entries[0].close()
		c.entries = slices.Delete(c.entries, 0, 1)
	}
	f := &compiledFilter{profile: key, program: program}
	c.entries = append(c.entries, f)
	return f, nil
}

// close removes all filters and closes their files.
func (c *filterCache) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.entries {
		f.close()
	}
	c.entries = nil
}

// store creates the file path with the filter, as a hard link to the file of another container if there is one.
func (f *compiledFilter) store(path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file != nil {
		err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", f.file.Fd()), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
		if err == nil {
			return nil
		}
		// The last container with this file was deleted, or the file has too many links.
		f.file.Close()
		f.file = nil
	}
	err := atomicfile.Write(atomicfile.File{Path: path, Data: f.program, Mode: 0o600, SkipSync: true})
	if err == nil {
		f.file, err = os.Open(path)
	}
	if err != nil {
		return fmt.Errorf("storing seccomp filter: %w", err)
	}
	return nil
}

func (f *compiledFilter) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file != nil {
		f.file.Close()
		f.file = nil
	}
}

// Files with the process settings of a container, which exec uses. A container with a seccomp filter in filterFile has
// the second one, so a runtime that does not know filterFile cannot start a process without the filter.
const (
	processFile         = "process.json"
	filteredProcessFile = "filtered-process.json"
)

// storeProcess stores the process settings p of a new container and its filter, which may be nil, so that Exec can
// start processes with the same settings. It must be called before the process runs, because the next runtime process
// may have to use them. It returns the open file with the filter, or nil if filter is nil. The caller closes the file.
func (r *Runner) storeProcess(id string, p *specs.Process, filter *compiledFilter) (file *os.File, err error) {
	dir, name := filepath.Join(r.State, id), processFile
	if filter != nil {
		name = filteredProcessFile
		if err := filter.store(filepath.Join(dir, filterFile)); err != nil {
			return nil, err
		}
	}
	data, err := json.Marshal(p)
	if err == nil {
		err = atomicfile.Write(atomicfile.File{Path: filepath.Join(dir, name), Data: data, Mode: 0o600, SkipSync: true})
	}
	if err == nil && filter != nil {
		file, err = os.Open(filepath.Join(dir, filterFile))
	}
	if err != nil {
		return nil, fmt.Errorf("recording the container's process: %w", err)
	}
	return file, nil
}

// loadProcess returns the process settings and the file with the filter that storeProcess has stored for a container.
// filter is nil if the container has none. The caller closes it.
func (r *Runner) loadProcess(id string) (p *specs.Process, filter *os.File, err error) {
	dir := filepath.Join(r.State, id)
	data, err := os.ReadFile(filepath.Join(dir, processFile))
	if errors.Is(err, os.ErrNotExist) {
		data, err = os.ReadFile(filepath.Join(dir, filteredProcessFile))
		if err == nil {
			filter, err = os.Open(filepath.Join(dir, filterFile))
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading the container's process: %w", err)
	}
	p = &specs.Process{}
	if err := json.Unmarshal(data, p); err != nil {
		filter.Close() // nil is allowed
		return nil, nil, fmt.Errorf("parsing the container's process: %w", err)
	}
	return p, filter, nil
}

// checkFilter returns an error unless the process pid has loaded a seccomp filter. Start calls it before the
// container's program is executed, so that it never runs without its filter.
func checkFilter(pid int) error {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return fmt.Errorf("checking seccomp filter: %w", err)
	}
	if !bytes.Contains(status, []byte("\nSeccomp:\t2\n")) {
		return errors.New("checking seccomp filter: the container's process has not loaded it")
	}
	return nil
}
