// Package cgroup creates, limits, measures and removes control groups. It hides the difference
// between version 1 (one hierarchy per controller) and version 2 (one unified hierarchy) of the
// cgroup filesystem. A cgroup is identified by its path below the root of the hierarchies, such as
// "/kubepods/burstable/pod1", which is the same in each hierarchy.
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

	"hyperkube/internal/base/backoff"
)

// ErrNotExist is returned by methods that need an existing cgroup, such as Stats, if it does not exist.
var ErrNotExist = os.ErrNotExist

// subtreeControl is the file of the unified hierarchy with the controllers that a cgroup enables for its children.
const subtreeControl = "cgroup.subtree_control"

// Manager manages the cgroups of the machine. Its methods are safe for concurrent use, but the
// caller must serialize calls for the same path if their order matters.
type Manager struct {
	// v2 is the mount point of the unified hierarchy if it has the controllers, otherwise empty.
	v2 string
	// v1 maps each controller ("cpu", "memory", …) and each named hierarchy ("name=systemd") of
	// version 1 to its mount point.
	v1 map[string]string
	// mounts are the distinct mount points, sorted.
	mounts []string
	// controllers are the controllers that the root of the unified hierarchy provides. It is empty with
	// version 1.
	controllers []string
	// hybrid is the mount point of a unified hierarchy without controllers that is mounted beside
	// version 1.
	hybrid string
}

// Open finds the cgroup hierarchies that are mounted in the mount namespace of this process. It
// returns an error if there is none.
func Open() (*Manager, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("finding cgroup hierarchies: %w", err)
	}
	defer f.Close()
	return OpenTable(f)
}

// OpenTable finds the cgroup hierarchies in a mount table in the format of /proc/self/mountinfo. If
// any controller belongs to version 1, version 1 is used: the unified hierarchy beside it then has
// no controllers.
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
		return nil, fmt.Errorf("reading mount table: %w", err)
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
			return nil, fmt.Errorf("reading controllers of the unified hierarchy: %w", err)
		}
		m.controllers = strings.Fields(string(names))
	}
	if len(m.mounts) == 0 {
		return nil, errors.New("no cgroup hierarchy is mounted: mount one at /sys/fs/cgroup")
	}
	return m, nil
}

// unescape decodes the octal escapes of a path in a mount table, such as \040 for a space.
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

// Unified reports whether the machine uses cgroup version 2.
func (m *Manager) Unified() bool { return m.v2 != "" }

// Controllers returns the names of the available controllers, such as "cpu" and "memory", sorted.
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

// Dirs returns the directory of the cgroup in each hierarchy, whether it exists or not. With
// version 2 there is one.
func (m *Manager) Dirs(cgroup string) []string {
	dirs := make([]string, len(m.mounts))
	for i, point := range m.mounts {
		dirs[i] = join(point, cgroup)
	}
	return dirs
}

// Dir returns the directory of the cgroup in the hierarchy of the controller, whether it exists or
// not. It returns an empty string if version 1 does not have the controller. With version 2 the
// controller is ignored.
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

// join returns the directory of cgroup below the mount point. The result is always below point,
// even if cgroup contains "..".
func join(point, cgroup string) string {
	return filepath.Join(point, path.Clean("/"+cgroup))
}

// Exists reports whether the cgroup exists in every hierarchy.
func (m *Manager) Exists(cgroup string) bool {
	for _, dir := range m.Dirs(cgroup) {
		if _, err := os.Stat(dir); err != nil {
			return false
		}
	}
	return true
}

// Populated reports whether the cgroup or a cgroup below it contains processes. It only supports version 2; with version 1
// it returns false.
func (m *Manager) Populated(cgroup string) bool {
	if !m.Unified() {
		return false
	}
	table, _ := readTable(m.Dir("", cgroup), "cgroup.events") // there is none in a missing cgroup
	return table["populated"] != 0
}

// EnabledControllers returns the names of the controllers that the root of the unified hierarchy enables for its children,
// separated by spaces. With version 1, it returns "".
func (m *Manager) EnabledControllers() (string, error) {
	if !m.Unified() {
		return "", nil
	}
	names, err := os.ReadFile(filepath.Join(m.v2, subtreeControl))
	if err != nil {
		return "", fmt.Errorf("reading enabled controllers of the root cgroup: %w", err)
	}
	return strings.TrimSpace(string(names)), nil
}

// DisableControllers disables all controllers for the children of the root, except those in keep, which are separated by
// spaces. Controllers that a cgroup below passes on stay enabled, because the kernel refuses to disable them.
func (m *Manager) DisableControllers(keep string) error {
	enabled, err := m.EnabledControllers()
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(enabled) {
		if slices.Contains(strings.Fields(keep), name) {
			continue
		}
		if err := write(filepath.Join(m.v2, subtreeControl), "-"+name); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("disabling controller %s of the root cgroup: %w", name, err)
		}
	}
	return nil
}

// Create creates the cgroup and its missing parents in every hierarchy and applies resources. If
// the cgroup exists already, Create only applies resources.
func (m *Manager) Create(cgroup string, resources Resources) error {
	cgroup = path.Clean("/" + cgroup)
	for _, point := range m.mounts {
		dir := join(point, cgroup)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("creating cgroup %s: %w", cgroup, err)
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

// delegate enables all controllers of the unified hierarchy in each parent of the cgroup, so that they work in the
// cgroup. It ignores controllers that cannot be enabled, unless they are required: cpu, memory and pids.
func (m *Manager) delegate(cgroup string) error {
	var enable []string
	for _, name := range m.controllers {
		enable = append(enable, "+"+name)
	}
	want := strings.Join(enable, " ")
	dir := m.v2
	for part := range strings.SplitSeq(strings.Trim(cgroup, "/"), "/") {
		file := filepath.Join(dir, subtreeControl)
		have, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("delegating controllers to cgroup %s: %w", cgroup, err)
		}
		if len(strings.Fields(string(have))) < len(enable) {
			if err := write(file, want); err != nil {
				// Enable them one by one, so that one controller that cannot be enabled does not
				// affect the rest.
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

// required reports whether the kubelet and the container runtime cannot work without the controller.
func required(controller string) bool {
	return controller == "cpu" || controller == "memory" || controller == "pids"
}

// inheritCPUSet copies cpuset.cpus and cpuset.mems from the parent to the cgroup and its parents,
// where they are empty. Version 1 leaves them empty in new cgroups, and a process cannot run in a
// cgroup with an empty cpuset. point is the mount point of the cpuset hierarchy.
func inheritCPUSet(point, cgroup string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		dir := point
		value, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return fmt.Errorf("reading %s of the parent: %w", name, err)
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

// write writes value to a kernel file in one write call.
func write(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// AddProcess moves a process with all its threads to the cgroup in every hierarchy. If cgroup is the
// root, the process is also moved to the root of the unified hierarchy beside version 1, so that it
// leaves every cgroup.
func (m *Manager) AddProcess(cgroup string, pid int) error {
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

// Pids returns the processes of the cgroup and all cgroups below it, without duplicates and sorted.
// It returns none if the cgroup does not exist. Processes outside of the PID namespace of this
// process are not included.
func (m *Manager) Pids(cgroup string) ([]int, error) {
	var pids []int
	for _, dir := range m.Dirs(cgroup) {
		err := filepath.WalkDir(dir, func(file string, entry os.DirEntry, err error) error {
			if err != nil {
				if notExist(err) {
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
			return nil, fmt.Errorf("listing processes of cgroup %s: %w", cgroup, err)
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// readPids returns the PIDs in a file cgroup.procs, without those of other PID namespaces. It returns none if the
// cgroup does not exist.
func readPids(file string) ([]int, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		if notExist(err) {
			return nil, nil
		}
		return nil, err
	}
	var pids []int
	for word := range strings.FieldsSeq(string(data)) {
		// Zero stands for a process outside of this PID namespace.
		if pid, err := strconv.Atoi(word); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// notExist reports whether err means that a cgroup does not exist (anymore).
func notExist(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

// Children returns the names of the cgroups directly below cgroup, in any hierarchy, sorted. It
// returns none if the cgroup does not exist.
func (m *Manager) Children(cgroup string) ([]string, error) {
	var names []string
	for _, dir := range m.Dirs(cgroup) {
		entries, err := os.ReadDir(dir)
		if err != nil && !notExist(err) {
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

// Kill sends SIGKILL to every process of the cgroup and all cgroups below it. It does not wait for
// the processes to exit; Remove does. It is not an error if the cgroup does not exist.
func (m *Manager) Kill(cgroup string) error {
	if m.Unified() {
		err := write(filepath.Join(m.Dir("", cgroup), "cgroup.kill"), "1")
		if err == nil {
			return nil
		}
		// cgroup.kill exists since Linux 5.14. On older kernels, signal each process.
		if _, err := os.Stat(m.Dir("", cgroup)); notExist(err) {
			return nil
		}
	}
	// While the cgroup is frozen, no process can fork to escape the signals, which are delivered
	// when it is thawed. On kernels that cannot freeze, the loop below repeats until there are no
	// new processes.
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

// Remove removes the cgroup and all cgroups below it. While processes are still exiting it retries until ctx is done;
// it then returns EBUSY. It is not an error if the cgroup does not exist, but the root cgroup cannot be removed.
func (m *Manager) Remove(ctx context.Context, cgroup string) error {
	if path.Clean("/"+cgroup) == "/" {
		return errors.New("removing the root cgroup is not allowed")
	}
	dirs := m.Dirs(cgroup)
	if m.hybrid != "" {
		// libcontainer also creates cgroups in the unified hierarchy beside version 1.
		dirs = append(slices.Clone(dirs), join(m.hybrid, path.Clean("/"+cgroup)))
	}
	retry := backoff.Backoff{First: time.Millisecond, Max: 100 * time.Millisecond}
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
		// The kernel has no event for the last process that leaves a version 1 cgroup, so poll.
		if !retry.Pause(ctx) {
			return fmt.Errorf("removing cgroup %s: %w", cgroup, busy)
		}
	}
}

// removeTree removes dir, a cgroup in one hierarchy, and all cgroups below it. It removes only
// directories: the files in them belong to the kernel and vanish with them. It returns EBUSY while
// a cgroup contains processes.
func removeTree(dir string) error {
	err := unix.Rmdir(dir)
	if err == nil || notExist(err) {
		return nil
	}
	entries, readErr := os.ReadDir(dir)
	if readErr != nil {
		if notExist(readErr) {
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
	if err := unix.Rmdir(dir); err != nil && !notExist(err) {
		return &os.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}
