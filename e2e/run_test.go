package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hyperkube/internal/host/layout"
)

const (
	// runFile is locked while a run uses the machine's default paths. It contains what the run
	// changes, so that the next run can revert the changes of a killed run.
	runFile = "/run/hyperkube-e2e"
	// guardEnv makes the test binary run the guard of a run. Its value is the path of the program
	// under test.
	guardEnv = "HYPERKUBE_E2E_GUARD"
	// markEnv is in the environment of all processes that a run starts. Its value is the run's
	// directory.
	markEnv    = "HYPERKUBE_E2E_RUN"
	cgroupRoot = "/sys/fs/cgroup"
	// hugePagesFile contains the machine's number of huge pages.
	hugePagesFile = "/proc/sys/vm/nr_hugepages"
)

// current is the current run.
var current *run

// run is one run of the tests.
type run struct {
	mu   sync.Mutex
	file *os.File // contains this struct in JSON format
	// stop stops the guard and waits for it.
	stop func() error
	// Dir is the directory for all files of the run, and the TMPDIR of all processes.
	Dir string
	// HugePages is the original content of hugePagesFile, "" if it was not changed.
	HugePages string
	// Before is the state of the machine before the run.
	Before host
	// Roots are the roots of clusters with other than default paths. Cgroups are the top level
	// cgroups that the run has created.
	Roots, Cgroups []string
}

// beginRun creates the directory of a run. If the run uses the default paths, beginRun waits for
// other runs to finish, and reverts the changes of a killed run.
func beginRun(binary string, usual bool) (r *run, err error) {
	r = &run{Cgroups: []string{"kubepods", "hyperkube-pods", "hyperkube"}}
	if !usual {
		if r.file, err = os.CreateTemp("", "hyperkube-e2e-"); err != nil {
			return nil, err
		}
		defer func() { _ = errors.Join(os.Remove(r.file.Name()), os.Remove(r.file.Name()+".log")) }()
	} else {
		if r.file, err = os.OpenFile(runFile, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
			return nil, err
		}
		if err := unix.Flock(int(r.file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			fmt.Println("e2e: waiting for another run to finish")
			if err := unix.Flock(int(r.file.Fd()), unix.LOCK_EX); err != nil {
				return nil, fmt.Errorf("locking %s: %w", runFile, err)
			}
		}
		data, err := io.ReadAll(r.file)
		if err != nil {
			return nil, err
		}
		var killed run
		if json.Unmarshal(data, &killed) == nil && killed.Dir != "" {
			fmt.Println("e2e: an earlier run was killed: reverting its changes")
			killed.revert(binary)
		}
	}
	if err := r.guard(binary); err != nil {
		return nil, err
	}
	// Socket paths must be short.
	parent := os.TempDir()
	if len(parent) > 20 {
		parent = "/tmp"
	}
	if r.Dir, err = os.MkdirTemp(parent, "hke-"); err != nil {
		return nil, err
	}
	if err := errors.Join(os.Setenv("TMPDIR", r.Dir), os.Setenv(markEnv, r.Dir)); err != nil {
		return nil, err
	}
	if r.Before, err = snapshotHost(); err != nil {
		return nil, err
	}
	return r, r.write()
}

// guard starts a process that reverts the changes of the run if the run is killed. The process also
// holds the lock of the run's file.
func (r *run) guard(binary string) error {
	wait, end, err := os.Pipe()
	if err != nil {
		return err
	}
	defer wait.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), guardEnv+"="+binary)
	cmd.ExtraFiles = []*os.File{wait, r.file}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// The run's output may be closed when the guard writes.
	log, err := os.Create(r.file.Name() + ".log")
	if err != nil {
		return errors.Join(err, end.Close())
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return errors.Join(err, end.Close())
	}
	r.stop = func() error { return errors.Join(end.Close(), cmd.Wait()) }
	return nil
}

// beGuard runs the guard. It waits for the end of a run.
func beGuard(binary string) int {
	wait, file := os.NewFile(3, "pipe"), os.NewFile(4, "run")
	_, _ = io.Copy(io.Discard, wait)
	data, err := io.ReadAll(io.NewSectionReader(file, 0, 1<<24))
	var killed run
	if err != nil || json.Unmarshal(data, &killed) != nil || killed.Dir == "" {
		return 0
	}
	killed.revert(binary)
	_ = file.Truncate(0)
	return 0
}

// uses records the root of a cluster, or a cgroup of the run.
func (r *run) uses(root, cgroup string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if root != "" {
		r.Roots, cgroup = append(r.Roots, root), layout.Under(root).CgroupRoot
	}
	r.Cgroups = append(r.Cgroups, strings.Trim(cgroup, "/"))
	return r.write()
}

// write stores the run for the guard and the next run.
func (r *run) write() error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := r.file.Truncate(0); err != nil {
		return err
	}
	_, err = r.file.WriteAt(data, 0)
	return err
}

// end marks the run as cleaned up.
func (r *run) end() error {
	return errors.Join(os.RemoveAll(r.Dir), r.file.Truncate(0), r.stop(), r.file.Close())
}

// hugePages increases the machine's number of huge pages until restore is called.
func (r *run) hugePages(more int) (restore func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, err := os.ReadFile(hugePagesFile)
	if err != nil {
		return nil, err
	}
	r.HugePages = strings.TrimSpace(string(before))
	had, err := strconv.Atoi(r.HugePages)
	if err != nil {
		return nil, err
	}
	if err := r.write(); err != nil {
		return nil, err
	}
	restore = func() { _ = os.WriteFile(hugePagesFile, before, 0) }
	want := strconv.Itoa(had + more)
	for range 20 {
		// Compact memory, so that huge pages can be allocated.
		_ = os.WriteFile("/proc/sys/vm/compact_memory", []byte("1"), 0)
		if err := os.WriteFile(hugePagesFile, []byte(want), 0); err != nil {
			return nil, err
		}
		got, err := os.ReadFile(hugePagesFile)
		if err != nil {
			return nil, err
		}
		if strings.TrimSpace(string(got)) == want {
			return restore, nil
		}
		time.Sleep(time.Second) // there is no event for available contiguous memory
	}
	restore()
	return nil, fmt.Errorf("the kernel cannot allocate %d huge pages", more)
}

// revert kills the processes of a killed run, and reverts its changes of the machine. It prints
// what cannot be reverted; the tests detect it.
func (r *run) revert(binary string) {
	report := func(what string, err error) {
		if err != nil {
			fmt.Printf("e2e: %s: %v\n", what, err)
		}
	}
	// reset kills the processes with a PID file. Run it in the namespaces of the holder process, or
	// of any remaining process.
	inside := map[string]int{} // a process in the namespaces of each root
	keep := map[int]bool{}
	for _, pid := range pidsBelow(layout.Default().Run) {
		keep[pid] = true
	}
	for _, root := range r.Roots {
		pids := pidsBelow(layout.Under(root).Run)
		if data, err := os.ReadFile(holderFile(filepath.Dir(root))); err == nil {
			if pid, err := strconv.Atoi(string(data)); err == nil {
				pids = append([]int{pid}, pids...)
			}
		}
		for _, pid := range pids {
			if !r.started(pid) {
				continue
			}
			keep[pid] = true
			if inside[root] == 0 {
				inside[root] = pid
			}
		}
	}
	r.kill(keep)
	for _, root := range r.Roots {
		if _, err := os.Stat(root); err != nil {
			continue // it was removed
		}
		words := []string{"unshare", "--net", "--mount"}
		if pid := inside[root]; pid != 0 {
			words = []string{"nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", pid), fmt.Sprintf("--mount=/proc/%d/ns/mnt", pid)}
		}
		report("reset of "+root, r.reset(append(words, binary, "reset", "--root", root)...))
	}
	if _, err := os.Stat(layout.Default().Data); err == nil {
		report("reset", r.reset(binary, "reset"))
	}
	r.kill(nil)
	mounts, err := mountPoints()
	report("looking at mounts", err)
	slices.Reverse(mounts)
	for _, point := range mounts {
		if strings.HasPrefix(point, r.Dir+"/") {
			report("unmounting "+point, unix.Unmount(point, unix.MNT_DETACH))
		}
	}
	loops, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	report("looking for loop devices", err)
	for _, file := range loops {
		if data, err := os.ReadFile(file); err == nil && strings.HasPrefix(string(data), r.Dir+"/") {
			device := "/dev/" + strings.Split(file, "/")[3]
			report("freeing "+device, exec.Command("losetup", "-d", device).Run())
		}
	}
	if r.HugePages != "" {
		report("huge pages", os.WriteFile(hugePagesFile, []byte(r.HugePages), 0))
	}
	report("deleting its files", os.RemoveAll(r.Dir))
	if diff := r.settle(minTimeout); diff != "" {
		fmt.Println("e2e: the machine differs from its state before the killed run:\n" + diff)
	}
}

// reset runs a reset that does not change the users' kubeconfigs.
func (r *run) reset(words ...string) error {
	cmd := exec.Command("timeout", append([]string{"180"}, words...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(r.Dir, "kubeconfig"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// started reports whether this run started a process.
func (r *run) started(pid int) bool {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	return slices.ContainsFunc(bytes.Split(data, []byte{0}), func(v []byte) bool { return string(v) == markEnv+"="+r.Dir })
}

// processes returns the processes that this run started.
func (r *run) processes() (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && r.started(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// kill kills the processes of the run except those in keep, and waits until they have exited.
func (r *run) kill(keep map[int]bool) {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		left := slices.DeleteFunc(r.processes(), func(pid int) bool { return keep[pid] })
		if len(left) == 0 {
			return
		}
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// settle waits until the machine is in the same state as before the run, and returns the
// differences after bound. Some resources are released in the background: namespaces, and processes
// after a signal.
func (r *run) settle(bound time.Duration) (diff string) {
	for deadline := time.Now().Add(bound); ; time.Sleep(100 * time.Millisecond) {
		after, err := snapshotHost()
		if err != nil {
			return err.Error()
		}
		if diff = r.Before.diff(r.own(after)); diff == "" || time.Now().After(deadline) {
			return diff
		}
	}
}

// own returns the state of the machine without changes of other programs that run on it.
func (r *run) own(after host) host {
	out := host{}
	for name := range after {
		for _, line := range after[name] {
			if slices.Contains(r.Before[name], line) || r.owns(name, line) {
				out[name] = append(out[name], line)
			}
		}
	}
	for name := range r.Before {
		for _, line := range r.Before[name] {
			// Rules of other programs and the default route must not be missing. Remains of an
			// earlier cluster may be removed with this one.
			kept := (name == "iptables" || name == "ip6tables") && !r.owns(name, line) || name == "routes" && strings.HasPrefix(line, "default")
			if !slices.Contains(after[name], line) && !kept {
				out[name] = append(out[name], line)
			}
		}
	}
	return out
}

// owns reports whether a run may have created a line of the machine's state.
func (r *run) owns(name, line string) bool {
	has := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(line, part) })
	}
	below := func(dirs ...string) bool {
		return slices.ContainsFunc(dirs, func(dir string) bool { return line == dir || strings.HasPrefix(line, dir+"/") })
	}
	l := layout.Default()
	switch name {
	case "links", "addresses":
		return has(": "+l.LinkPrefix, ": "+apartPrefix, ": lo")
	case "routes":
		return has("dev "+l.LinkPrefix, "dev "+apartPrefix, "proto 104", "10.244.", "10.96.")
	case "namespaces":
		return has("hyperkube", "hk")
	case "iptables", "ip6tables":
		return has("KUBE-", "HK-", "hyperkube", "10.244.", "10.96.") || strings.HasPrefix(line, ":") && !has(" - ")
	case "mounts":
		return below(r.Dir, l.Data, l.Run, l.Kubelet, l.PodLogs, l.ContainerLogs, l.Etc)
	case "cgroups":
		// Other clusters have cgroups of the same names below their own.
		under := strings.TrimPrefix(line, cgroupRoot+"/")
		if _, err := os.Stat(cgroupRoot + "/cgroup.controllers"); err != nil {
			_, under, _ = strings.Cut(under, "/") // the first element is the hierarchy
		}
		first, _, _ := strings.Cut(under, "/")
		return slices.Contains(r.Cgroups, first)
	case "processes":
		return strings.HasPrefix(line, r.Dir+": ")
	}
	return true
}

// pidsBelow returns the PIDs in the PID files below a directory.
func pidsBelow(dir string) (pids []int) {
	files, _ := filepath.Glob(filepath.Join(dir, "*.pid"))
	further, _ := filepath.Glob(filepath.Join(dir, "nodes", "*", "*.pid"))
	for _, file := range append(files, further...) {
		data, _ := os.ReadFile(file)
		if pid, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// holderFile returns the file with the PID of the process that holds the namespaces of a test's
// directory.
func holderFile(dir string) string { return filepath.Join(dir, "holder") }

// mountPoints returns all mount points of this mount namespace, in the order of mounting.
func mountPoints() (points []string, err error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(data)) {
		points = append(points, strings.Fields(line)[4])
	}
	return points, nil
}
