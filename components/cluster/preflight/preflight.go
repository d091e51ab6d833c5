// Package preflight checks whether a machine meets the requirements of a cluster before anything is
// changed on it.
package preflight

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/command"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/host/packetfilter"
	"hyperkube/manifests"
)

// minFreeDisk is the free disk space that the first start requires, in bytes. It is enough for etcd
// and some images.
const minFreeDisk = 512 << 20

// minFreeDiskRestart is the free disk space that later starts require, in bytes. It is lower, because
// the running cluster can free disk space by removing images and evicting pods.
const minFreeDiskRestart = 64 << 20

// minMemory is the memory that a machine must have, in bytes: twice the memory of a single-node
// cluster without user workloads.
const minMemory = 256 << 20

// Check checks the requirements of this machine and returns all problems as one error with the exit code of a preflight
// error. ports are the TCP ports that must be free, and mode is how packet filter rules are written.
func Check(l layout.Node, ports []int, mode packetfilter.Mode) error {
	if err := command.RequireRoot(); err != nil {
		return err
	}
	var errs []error
	for _, p := range check(l, ports, mode) {
		errs = append(errs, p)
	}
	if len(errs) == 0 {
		return nil
	}
	return command.PreflightError(errors.Join(errs...))
}

// CheckIgnoring is like Check, but reports problems in the format of kubeadm, with the names of the
// checks. Problems of checks in ignored are passed to warn instead; "all" ignores every check. The
// names are those of kubeadm and not case-sensitive; unknown names have no effect. warn also gets
// warnings that are never errors.
//
// https://kubernetes.io/docs/reference/setup-tools/kubeadm/kubeadm-init/
func CheckIgnoring(l layout.Node, ports []int, mode packetfilter.Mode, ignored []string, warn func(problem error)) error {
	if err := command.RequireRoot(); err != nil {
		return err
	}
	for _, p := range warnings("/proc/swaps") {
		warn(p)
	}
	return FatalError(check(l, ports, mode), ignored, warn)
}

// FatalError returns an error with all problems except the ignored ones, which it passes to warn. It
// returns nil if there are no others.
func FatalError(problems []Problem, ignored []string, warn func(problem error)) error {
	var fatal []string
	for _, p := range problems {
		if slices.ContainsFunc(ignored, func(i string) bool { return strings.EqualFold(i, p.Check) || strings.EqualFold(i, "all") }) {
			warn(p)
		} else {
			fatal = append(fatal, fmt.Sprintf("\t[ERROR %s]: %v\n", p.Check, p))
		}
	}
	if len(fatal) == 0 {
		return nil
	}
	return command.PreflightError(fmt.Errorf("[preflight] Some fatal errors occurred:\n%s"+
		"[preflight] If you know what you are doing, you can make a check non-fatal with `--ignore-preflight-errors=...`", strings.Join(fatal, "")))
}

// Problem is the result of a failed preflight check: the name of the check and the error.
type Problem struct {
	// Check is the name of the check.
	Check string
	error
}

// Unwrap returns the error of the check.
func (p Problem) Unwrap() error { return p.error }

// Split returns the cause and the remedy of the problem. The remedy is "" if there is none.
func (p Problem) Split() (cause, remedy string) {
	if e, ok := errors.AsType[*remediableError](p.error); ok {
		return e.cause.Error(), e.remedy
	}
	return p.Error(), ""
}

// remediableError is an error with a remedy. Its text consists of both.
type remediableError struct {
	cause  error
	remedy string
}

func (e *remediableError) Error() string { return e.cause.Error() + "; " + e.remedy }

func (e *remediableError) Unwrap() error { return e.cause }

// withRemedy returns an error that describes what the operator must do about cause.
func withRemedy(cause error, remedy string) error { return &remediableError{cause, remedy} }

// NewProblem returns a Problem that the preflight check with this name has found.
func NewProblem(check string, err error) Problem { return Problem{check, err} }

// CheckName returns the name of the check that found err; "" if err is not a Problem.
func CheckName(err error) string {
	var p Problem
	_ = errors.As(err, &p)
	return p.Check
}

// check runs the checks of a machine and returns all problems: used ports, files of another cluster, missing programs
// and kernel features, disk space and memory.
func check(l layout.Node, ports []int, mode packetfilter.Mode) []Problem {
	return Problems(l, ports, mode, func() error { return exec.Command("modprobe", "overlay").Run() })
}

// Problems checks the requirements of this machine like Check and returns the problems. If the kernel does not
// support overlayfs yet, it calls loadOverlay, which reports whether the kernel module can be loaded.
func Problems(l layout.Node, ports []int, mode packetfilter.Mode, loadOverlay func() error) []Problem {
	problems := checkPorts(ports)
	add := func(check string, err error) { problems = append(problems, Problem{check, err}) }
	for _, path := range otherCluster(l) {
		add("FileAvailable-"+strings.ReplaceAll(path, "/", "-"), withRemedy(
			fmt.Errorf("%s already exists: this machine belongs to another cluster", path), "remove it first, for example with `kubeadm reset`"))
	}
	osRelease := readOSRelease(osReleaseFiles)
	problems = append(problems, checkPacketFilter(mode, exec.LookPath, packetfilter.CheckNFTables, osRelease)...)
	if data, err := os.ReadFile("/proc/filesystems"); err == nil {
		if err := checkOverlayModule(string(data), loadOverlay, osRelease); err != nil {
			add("SystemVerification", err)
		}
	}
	if err := CheckDisk(l); err != nil {
		add("DiskSpace", err)
	} else if dir := NearestExisting(l.Data); !supportsOverlay(dir) {
		if err := checkOverlay(dir); err != nil {
			add("SystemVerification", err)
		}
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		if err := checkMemory(info.Totalram * uint64(info.Unit)); err != nil {
			add("Mem", err)
		}
	}
	return problems
}

// checkMemory returns an error if the machine has less than minMemory. total is its memory in bytes.
func checkMemory(total uint64) error {
	if total < minMemory {
		return fmt.Errorf("the system RAM (%d MiB) is less than the minimum %d MiB", total>>20, minMemory>>20)
	}
	return nil
}

// warnings returns warnings that are never errors. swaps is the path of the kernel's list of swap
// devices.
func warnings(swaps string) []Problem {
	data, err := os.ReadFile(swaps)
	if err != nil {
		return nil
	}
	return Warnings(string(data))
}

// Warnings returns the problems that do not prevent a start. swaps is the content of /proc/swaps.
func Warnings(swaps string) []Problem {
	// The first line is a heading.
	if strings.Count(strings.TrimSpace(swaps), "\n") == 0 {
		return nil
	}
	return []Problem{{"Swap", withRemedy(errors.New("swap is enabled, but pods cannot use it"),
		"to allow this, set memorySwap.swapBehavior to LimitedSwap in the KubeletConfiguration")}}
}

// otherCluster returns the files of another Kubernetes installation in the directories of this one.
// It only checks before the first start, because later the files belong to this installation.
func otherCluster(l layout.Node) []string {
	if hasCluster(l) {
		return nil
	}
	paths := []string{filepath.Join(l.Kubelet, "config.yaml")} // kubeadm and most others
	if !clusterconfig.HasExternalCA(l) {                       // with an external CA, the user provides it before init
		paths = append(paths, filepath.Join(l.Etc, "kubelet.conf"))
	}
	for _, name := range manifests.Components() {
		paths = append(paths, filepath.Join(l.StaticPods(), name+".yaml"))
	}
	return slices.DeleteFunc(paths, func(path string) bool {
		_, err := os.Stat(path)
		return err != nil
	})
}

// hasCluster reports whether this machine already belongs to a cluster of this program. It also returns true if the
// configuration of the cluster cannot be read.
func hasCluster(l layout.Node) bool {
	_, ours, err := clusterconfig.Load(l)
	return ours || err != nil || clusterconfig.HasJoined(l)
}

// checkPorts returns a problem for each port on which a process listens already. It names the process if it is known.
func checkPorts(ports []int) []Problem {
	var problems []Problem
	for _, port := range ports {
		listener, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err == nil {
			listener.Close()
			continue
		}
		if name, pid := listenerOf(port); pid != "" {
			err = withRemedy(fmt.Errorf("port %d is in use by %s (process %s)", port, name, pid), "stop it first, for example with `kill "+pid+"`")
		} else {
			err = fmt.Errorf("port %d cannot be used: %w", port, err)
		}
		problems = append(problems, Problem{fmt.Sprintf("Port-%d", port), err})
	}
	return problems
}

// listenerOf returns the name and PID of the process that listens on a TCP port; both are "" if unknown. It
// reads the tables of the current thread, because /proc/net shows those of the main thread, which
// may be in another network namespace.
func listenerOf(port int) (name, pid string) {
	inodes := map[string]bool{}
	for _, table := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
		data, err := os.ReadFile(table)
		if err != nil {
			continue
		}
		for line := range strings.SplitSeq(string(data), "\n") {
			f := strings.Fields(line)
			const listen = "0A"
			if len(f) > 9 && f[3] == listen && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
				inodes["socket:["+f[9]+"]"] = true
			}
		}
	}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		target, err := os.Readlink(fd)
		if err != nil || !inodes[target] {
			continue
		}
		pid = strings.Split(fd, "/")[2]
		comm, _ := os.ReadFile(filepath.Join("/proc", pid, "comm"))
		return strings.TrimSpace(string(comm)), pid
	}
	return "", ""
}

// NearestExisting returns path, or its nearest parent directory that exists.
func NearestExisting(path string) string {
	for path != "/" {
		if _, err := os.Stat(path); err == nil {
			break
		}
		path = filepath.Dir(path)
	}
	return path
}

// supportsOverlay reports whether the file system of dir is known to support an overlay. That
// avoids creating one to find out, which takes 0.1 s on a busy machine.
func supportsOverlay(dir string) bool {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return false
	}
	switch st.Type {
	case unix.EXT4_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.F2FS_SUPER_MAGIC:
		return true
	}
	return false
}

// otherFileSystem is the remedy for a file system without overlayfs.
const otherFileSystem = "choose another directory with --root, or mount a volume there if this is a container"

// checkOverlay checks whether the file system of dir supports the writable layer of an overlay, which for example
// another overlay does not. It creates an overlay but does not mount it. If the kernel does not support overlayfs at
// all, it returns nil, because another check reports that.
func checkOverlay(dir string) (err error) {
	probe, err := os.MkdirTemp(dir, ".hyperkube-probe-")
	if err != nil {
		return fmt.Errorf("creating a directory in %s: %w", dir, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(probe)) }()
	fd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil // an old kernel, or overlayfs is missing, which is another check
	}
	defer unix.Close(fd)
	for _, option := range []string{"lowerdir", "upperdir", "workdir"} {
		sub := filepath.Join(probe, option)
		if err := os.Mkdir(sub, 0o700); err != nil {
			return fmt.Errorf("creating a directory in %s: %w", dir, err)
		}
		if err := unix.FsconfigSetString(fd, option, sub); err != nil {
			return withRemedy(fmt.Errorf("the file system of %s does not support overlayfs (%s: %w)", dir, option, err), otherFileSystem)
		}
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		return withRemedy(fmt.Errorf("the file system of %s does not support overlayfs (%w)", dir, err), otherFileSystem)
	}
	return nil
}

// diskSpaceError is the error for a file system with too little free space, in bytes. errors.Is reports
// that it is unix.ENOSPC.
type diskSpaceError struct {
	path           string
	free, required uint64
}

// Error returns a message with the path, and the free and the required space.
func (e *diskSpaceError) Error() string {
	return fmt.Sprintf("%s has only %d MiB of free disk space, at least %d MiB are required", e.path, e.free>>20, e.required>>20)
}

// Is implements the interface of errors.Is.
func (e *diskSpaceError) Is(target error) bool { return target == unix.ENOSPC }

// CheckDisk returns an error if the file system of the data directory has too little free space or is read-only. For
// too little space, errors.Is reports that the error is unix.ENOSPC. The first start of a cluster requires more space
// than later ones.
func CheckDisk(l layout.Node) error {
	required := uint64(minFreeDisk)
	if hasCluster(l) {
		required = minFreeDiskRestart
	}
	path := NearestExisting(l.Data)
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return fmt.Errorf("getting the free disk space of %s: %w", path, err)
	}
	if free := st.Bavail * uint64(st.Bsize); free < required {
		return withRemedy(&diskSpaceError{path: path, free: free, required: required}, "delete files on this file system; `du -xh --max-depth=2 "+path+" | sort -h` lists the large directories")
	}
	if st.Flags&unix.ST_RDONLY != 0 {
		return withRemedy(fmt.Errorf("%s is mounted read-only", path), "make it writable, for example with `mount -o remount,rw` and the mount point")
	}
	return nil
}
