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

	"hyperkube/internal/layout"
)

const (
	// runFile is locked while a run uses the machine's usual places, and says
	// what a run changes, so that the next one can take back what one that was
	// killed has left.
	runFile = "/run/hyperkube-e2e"
	// guardEnv makes the tests' program the guard of a run, and names the program
	// under test.
	guardEnv = "HYPERKUBE_E2E_GUARD"
	// markEnv is in the environment of all processes that a run starts, and
	// says which run that was: its folder.
	markEnv    = "HYPERKUBE_E2E_RUN"
	cgroupRoot = "/sys/fs/cgroup"
	// hugePagesFile is how many huge pages the machine is to have.
	hugePagesFile = "/proc/sys/vm/nr_hugepages"
)

// current is this run.
var current *run

// run is one run of the tests.
type run struct {
	mu   sync.Mutex
	file *os.File // has this in JSON
	// stop ends the guard, who is waited for.
	stop func() error
	// Dir has all files of the run: it is the TMPDIR of everything.
	Dir string
	// HugePages is what was in hugePagesFile, "" unless that was changed.
	HugePages string
	// Before is the machine before the run.
	Before host
	// Roots are of clusters outside the usual places, and Cgroups those of
	// all that the run has started.
	Roots, Cgroups []string
}

// beginRun makes a folder for a run. If it is to use the usual places, it waits
// for other runs to end, and takes back what one that was killed has left.
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
			fmt.Println("e2e: waiting for another run to end")
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
			fmt.Println("e2e: an earlier run was killed: taking back what it left")
			killed.takeBack(binary)
		}
	}
	if err := r.guard(binary); err != nil {
		return nil, err
	}
	// Sockets have short paths.
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

// guard starts a process that takes back what the run has changed if the run is
// killed. It has the lock of the run's file, too.
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
	// Nobody listens any more when it has something to say.
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

// beGuard waits for the end of a run.
func beGuard(binary string) int {
	wait, file := os.NewFile(3, "pipe"), os.NewFile(4, "run")
	_, _ = io.Copy(io.Discard, wait)
	data, err := io.ReadAll(io.NewSectionReader(file, 0, 1<<24))
	var killed run
	if err != nil || json.Unmarshal(data, &killed) != nil || killed.Dir == "" {
		return 0
	}
	killed.takeBack(binary)
	_ = file.Truncate(0)
	return 0
}

// uses notes that a cluster is at root, or that a cgroup is the run's.
func (r *run) uses(root, cgroup string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if root != "" {
		r.Roots, cgroup = append(r.Roots, root), layout.Under(root).CgroupRoot
	}
	r.Cgroups = append(r.Cgroups, strings.Trim(cgroup, "/"))
	return r.write()
}

// write makes the guard and the next run know this one.
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

// end says of the run that it has left nothing.
func (r *run) end() error {
	return errors.Join(os.RemoveAll(r.Dir), r.file.Truncate(0), r.stop(), r.file.Close())
}

// hugePages makes the machine have so many huge pages more until restore.
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
		// Memory in one piece is made where there is none, as far as can be.
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
		time.Sleep(time.Second) // nothing tells when there is memory in one piece
	}
	restore()
	return nil, fmt.Errorf("the kernel has no %d huge pages to give", more)
}

// takeBack ends the processes of a run that was killed, and undoes its changes to the
// machine. What cannot be undone is told, and found by the tests.
func (r *run) takeBack(binary string) {
	tell := func(what string, err error) {
		if err != nil {
			fmt.Printf("e2e: %s: %v\n", what, err)
		}
	}
	// Reset ends what has a PID file; its namespaces are those of a process
	// that holds them, or of any that is left.
	inside := map[string]int{} // of each root
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
			continue // it was taken away
		}
		words := []string{"unshare", "--net", "--mount"}
		if pid := inside[root]; pid != 0 {
			words = []string{"nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", pid), fmt.Sprintf("--mount=/proc/%d/ns/mnt", pid)}
		}
		tell("reset of "+root, r.reset(append(words, binary, "reset", "--root", root)...))
	}
	if _, err := os.Stat(layout.Default().Data); err == nil {
		tell("reset", r.reset(binary, "reset"))
	}
	r.kill(nil)
	mounts, err := mountPoints()
	tell("looking at mounts", err)
	slices.Reverse(mounts)
	for _, point := range mounts {
		if strings.HasPrefix(point, r.Dir+"/") {
			tell("unmounting "+point, unix.Unmount(point, unix.MNT_DETACH))
		}
	}
	loops, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	tell("looking for loop devices", err)
	for _, file := range loops {
		if data, err := os.ReadFile(file); err == nil && strings.HasPrefix(string(data), r.Dir+"/") {
			device := "/dev/" + strings.Split(file, "/")[3]
			tell("freeing "+device, exec.Command("losetup", "-d", device).Run())
		}
	}
	if r.HugePages != "" {
		tell("huge pages", os.WriteFile(hugePagesFile, []byte(r.HugePages), 0))
	}
	tell("deleting its files", os.RemoveAll(r.Dir))
	if diff := r.settle(patience); diff != "" {
		fmt.Println("e2e: the machine is not as it was before the run that was killed:\n" + diff)
	}
}

// reset runs a reset that leaves the kubeconfigs of users alone.
func (r *run) reset(words ...string) error {
	cmd := exec.Command("timeout", append([]string{"180"}, words...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(r.Dir, "kubeconfig"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// started tells whether this run started a process.
func (r *run) started(pid int) bool {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	return slices.ContainsFunc(bytes.Split(data, []byte{0}), func(v []byte) bool { return string(v) == markEnv+"="+r.Dir })
}

// processes are those that this run has started.
func (r *run) processes() (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && r.started(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// kill kills the processes of the run but those to keep, and waits for their end.
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

// settle waits until the machine is as before the run, and tells what is not
// within bound. Some of it goes in the background: namespaces, and processes that
// were told to end.
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

// own is what the machine is after the run, without what others have changed:
// other programs run on it, too.
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
			// Nobody's rules may be missing, nor the way out. What is left of an
			// earlier cluster may go with this one.
			kept := (name == "iptables" || name == "ip6tables") && !r.owns(name, line) || name == "routes" && strings.HasPrefix(line, "default")
			if !slices.Contains(after[name], line) && !kept {
				out[name] = append(out[name], line)
			}
		}
	}
	return out
}

// owns tells whether a run may have made a line of what the machine is.
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
		// Those of other clusters have the same names below their own.
		under := strings.TrimPrefix(line, cgroupRoot+"/")
		if _, err := os.Stat(cgroupRoot + "/cgroup.controllers"); err != nil {
			_, under, _ = strings.Cut(under, "/") // first is the hierarchy
		}
		first, _, _ := strings.Cut(under, "/")
		return slices.Contains(r.Cgroups, first)
	case "processes":
		return strings.HasPrefix(line, r.Dir+": ")
	}
	return true
}

// pidsBelow reads the PID files below a folder.
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

// holderFile names the process that holds the namespaces of a test's folder.
func holderFile(dir string) string { return filepath.Join(dir, "holder") }

// mountPoints are all of this mount namespace, in the order of their mounting.
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
