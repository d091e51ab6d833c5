// Package cgroup makes, limits, measures and removes control groups through
// the cgroup file systems, version 1 (one hierarchy a controller) and version
// 2 (one for all) behind the same calls. A cgroup is named by its path below
// the root of the hierarchies, such as "/kubepods/burstable/pod1", the same in
// every one of them.
//
// https://docs.kernel.org/admin-guide/cgroup-v2.html
// https://docs.kernel.org/admin-guide/cgroup-v1/
package cgroup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hyperkube/internal/lifecycle"
)

// ErrNotExist tells that there is no such cgroup.
var ErrNotExist = os.ErrNotExist

// Manager works on the cgroups of the machine. Its methods are safe for
// several goroutines; calls about one path must not overlap where their order
// matters.
type Manager struct {
	// v2 is where the unified hierarchy is mounted when it has the
	// controllers, else empty.
	v2 string
	// v1 is the mount point of each controller ("cpu", "memory", …) and of
	// each named hierarchy ("name=systemd") of version 1.
	v1 map[string]string
	// mounts are the distinct mount points, sorted.
	mounts []string
	// controllers are those of the unified hierarchy's root.
	controllers []string
	// hybrid is a unified hierarchy without controllers beside version 1.
	hybrid string
}

// Open finds the hierarchies of this process's mount namespace.
func Open() (*Manager, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("finding the cgroup hierarchies: %w", err)
	}
	defer f.Close()
	return OpenTable(f)
}

// OpenTable finds the hierarchies in a mount table of the form of
// /proc/self/mountinfo. Version 1 wins where it has any controller: a unified
// hierarchy beside it has none.
func OpenTable(table io.Reader) (*Manager, error) {
	m := &Manager{v1: map[string]string{}}
	var unified string
	scan := bufio.NewScanner(table)
	for scan.Scan() {
		before, after, found := strings.Cut(scan.Text(), " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if !found || len(fields) < 5 || len(kind) < 3 {
			continue
		}
		point := unescape(fields[4])
		switch kind[0] {
		case "cgroup2":
			if unified == "" {
				unified = point
			}
		case "cgroup":
			for option := range strings.SplitSeq(kind[2], ",") {
				if option == "rw" || option == "ro" || option == "xattr" || option == "none" ||
					strings.HasPrefix(option, "release_agent") || option == "clone_children" || option == "noprefix" {
					continue
				}
				if _, ok := m.v1[option]; !ok {
					m.v1[option] = point
				}
			}
		}
	}
	if err := scan.Err(); err != nil {
		return nil, fmt.Errorf("reading the mount table: %w", err)
	}
	for name, point := range m.v1 {
		if !strings.HasPrefix(name, "name=") && unified != "" {
			m.hybrid, unified = unified, ""
		}
		if !slices.Contains(m.mounts, point) {
			m.mounts = append(m.mounts, point)
		}
	}
	slices.Sort(m.mounts)
	if unified != "" {
		m.v2, m.v1, m.mounts = unified, nil, []string{unified}
		names, err := os.ReadFile(filepath.Join(unified, "cgroup.controllers"))
		if err != nil {
			return nil, fmt.Errorf("reading the controllers of the unified hierarchy: %w", err)
		}
		m.controllers = strings.Fields(string(names))
	}
	if len(m.mounts) == 0 {
		return nil, errors.New("no cgroup hierarchy is mounted: mount one at /sys/fs/cgroup")
	}
	return m, nil
}

// unescape undoes the octal escapes of a mount table.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// Unified tells whether this is version 2.
func (m *Manager) Unified() bool { return m.v2 != "" }

// Controllers returns the names of the controllers there are, sorted.
func (m *Manager) Controllers() []string {
	var names []string
	if m.Unified() {
		names = slices.Clone(m.controllers)
	}
	for name := range m.v1 {
		if !strings.HasPrefix(name, "name=") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Dirs returns the folders of the cgroup, one a hierarchy, whether they exist
// or not.
func (m *Manager) Dirs(cgroup string) []string {
	dirs := make([]string, len(m.mounts))
	for i, point := range m.mounts {
		dirs[i] = join(point, cgroup)
	}
	return dirs
}

// Dir returns the folder of the cgroup in a controller's hierarchy; empty if
// there is no such controller.
func (m *Manager) Dir(controller, cgroup string) string {
	if m.Unified() {
		return join(m.v2, cgroup)
	}
	point := m.v1[controller]
	if point == "" {
		return ""
	}
	return join(point, cgroup)
}

// join never leaves the mount point, whatever the path says.
func join(point, cgroup string) string {
	return filepath.Join(point, path.Clean("/"+cgroup))
}

// Exists tells whether the cgroup is there, in every hierarchy.
func (m *Manager) Exists(cgroup string) bool {
	for _, dir := range m.Dirs(cgroup) {
		if _, err := os.Stat(dir); err != nil {
			return false
		}
	}
	return true
}

// Create makes the cgroup and its missing parents in every hierarchy and sets
// what resources asks for. A cgroup that is there already is only set.
func (m *Manager) Create(cgroup string, resources Resources) error {
	cgroup = path.Clean("/" + cgroup)
	for _, point := range m.mounts {
		dir := join(point, cgroup)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("making cgroup %s: %w", cgroup, err)
			}
		}
	}
	if m.Unified() {
		if err := m.delegate(cgroup); err != nil {
			return err
		}
	} else if point := m.v1["cpuset"]; point != "" {
		if err := inheritCPUSet(point, cgroup); err != nil {
			return err
		}
	}
	return m.Set(cgroup, resources)
}

// delegate gives every parent's children the controllers that the root has.
func (m *Manager) delegate(cgroup string) error {
	var enable []string
	for _, name := range m.controllers {
		enable = append(enable, "+"+name)
	}
	want := strings.Join(enable, " ")
	dir := m.v2
	for part := range strings.SplitSeq(strings.Trim(cgroup, "/"), "/") {
		file := filepath.Join(dir, "cgroup.subtree_control")
		have, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("delegating controllers to cgroup %s: %w", cgroup, err)
		}
		if len(strings.Fields(string(have))) < len(enable) {
			if err := write(file, want); err != nil {
				// One that cannot be enabled must not hide the others.
				for _, one := range enable {
					if oneErr := write(file, one); oneErr != nil && required(one[1:]) {
						return fmt.Errorf("delegating controllers to cgroup %s: %w", cgroup, oneErr)
					}
				}
			}
		}
		dir = filepath.Join(dir, part)
	}
	return nil
}

func required(controller string) bool {
	return controller == "cpu" || controller == "memory" || controller == "pids"
}

// inheritCPUSet fills what version 1 leaves empty in new cpusets, in which no
// process could run.
func inheritCPUSet(point, cgroup string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		dir := point
		value, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return fmt.Errorf("reading the parent's %s: %w", name, err)
		}
		for part := range strings.SplitSeq(strings.Trim(cgroup, "/"), "/") {
			dir = filepath.Join(dir, part)
			file := filepath.Join(dir, name)
			own, err := os.ReadFile(file)
			if err != nil {
				return fmt.Errorf("reading %s: %w", name, err)
			}
			if strings.TrimSpace(string(own)) == "" {
				if err := write(file, string(value)); err != nil {
					return err
				}
				own = value
			}
			value = own
		}
	}
	return nil
}

// write writes a kernel file, which takes a value in one write.
func write(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// Enter moves a process, with all its threads, into the cgroup in every
// hierarchy. The root is entered in a unified hierarchy beside version 1 too:
// whoever goes there leaves every cgroup.
func (m *Manager) Enter(cgroup string, pid int) error {
	dirs := m.Dirs(cgroup)
	if path.Clean("/"+cgroup) == "/" && m.hybrid != "" {
		dirs = append(dirs, m.hybrid)
	}
	for _, dir := range dirs {
		if err := write(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("moving process %d into cgroup %s: %w", pid, cgroup, err)
		}
	}
	return nil
}

// Pids returns the processes of the cgroup and of all below it, each once and
// sorted; none if there is no such cgroup. Those outside of our PID namespace are
// not among them.
func (m *Manager) Pids(cgroup string) ([]int, error) {
	var pids []int
	for _, dir := range m.Dirs(cgroup) {
		err := filepath.WalkDir(dir, func(file string, entry os.DirEntry, err error) error {
			if err != nil {
				if gone(err) {
					return nil
				}
				return err
			}
			if !entry.IsDir() {
				return nil
			}
			own, err := readPids(filepath.Join(file, "cgroup.procs"))
			pids = append(pids, own...)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("listing the processes of cgroup %s: %w", cgroup, err)
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

func readPids(file string) ([]int, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		if gone(err) {
			return nil, nil
		}
		return nil, err
	}
	var pids []int
	for word := range strings.FieldsSeq(string(data)) {
		// Zero is a process outside of our PID namespace.
		if pid, err := strconv.Atoi(word); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// gone tells whether err says that a cgroup is not, or no longer, there.
func gone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

// Children returns the names of the cgroups directly below, sorted.
func (m *Manager) Children(cgroup string) ([]string, error) {
	var names []string
	for _, dir := range m.Dirs(cgroup) {
		entries, err := os.ReadDir(dir)
		if err != nil && !gone(err) {
			return nil, fmt.Errorf("listing cgroup %s: %w", cgroup, err)
		}
		for _, entry := range entries {
			if entry.IsDir() {
				names = append(names, entry.Name())
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Kill sends SIGKILL to every process of the cgroup and of all below it. It
// returns once the signals are sent, which may be before the processes are
// gone; Remove waits for that. No such cgroup is no error.
func (m *Manager) Kill(cgroup string) error {
	if m.Unified() {
		err := write(filepath.Join(m.Dir("", cgroup), "cgroup.kill"), "1")
		if err == nil {
			return nil
		}
		// The file came with Linux 5.14; without it, signal each.
		if _, err := os.Stat(m.Dir("", cgroup)); gone(err) {
			return nil
		}
	}
	// Frozen, nobody forks away while the signals are sent; they arrive when
	// it thaws. Kernels that cannot freeze are served by the repetition.
	freezer := m.Dir("freezer", cgroup)
	freeze := func(v1, v2 string) {
		if m.Unified() {
			_ = write(filepath.Join(freezer, "cgroup.freeze"), v2)
		} else if freezer != "" {
			_ = write(filepath.Join(freezer, "freezer.state"), v1)
		}
	}
	freeze("FROZEN", "1")
	defer freeze("THAWED", "0")
	seen := map[int]bool{}
	for {
		pids, err := m.Pids(cgroup)
		if err != nil {
			return err
		}
		fresh := false
		for _, pid := range pids {
			if seen[pid] {
				continue
			}
			seen[pid], fresh = true, true
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("killing process %d of cgroup %s: %w", pid, cgroup, err)
			}
		}
		if !fresh {
			return nil
		}
	}
}

// Remove removes the cgroup and all below it. While processes are still on
// their way out it tries again, until ctx ends. No such cgroup is no error.
func (m *Manager) Remove(ctx context.Context, cgroup string) error {
	if path.Clean("/"+cgroup) == "/" {
		return errors.New("the root cgroup cannot be removed")
	}
	dirs := m.Dirs(cgroup)
	if m.hybrid != "" {
		// libcontainer makes cgroups there, too.
		dirs = append(slices.Clone(dirs), join(m.hybrid, path.Clean("/"+cgroup)))
	}
	wait := time.Millisecond
	for {
		var busy error
		for _, dir := range dirs {
			if err := removeTree(dir); err != nil {
				busy = err
			}
		}
		if busy == nil {
			return nil
		}
		if !errors.Is(busy, unix.EBUSY) {
			return fmt.Errorf("removing cgroup %s: %w", cgroup, busy)
		}
		// The kernel has no event for the last use of a version 1 cgroup.
		if !lifecycle.Pause(ctx, wait) {
			return fmt.Errorf("removing cgroup %s: %w", cgroup, busy)
		}
		wait = min(2*wait, 100*time.Millisecond)
	}
}

// removeTree removes folders only: the files in them are the kernel's.
func removeTree(dir string) error {
	err := unix.Rmdir(dir)
	if err == nil || gone(err) {
		return nil
	}
	entries, readErr := os.ReadDir(dir)
	if readErr != nil {
		if gone(readErr) {
			return nil
		}
		return readErr
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeTree(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(dir); err != nil && !gone(err) {
		return &os.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}
