// Package preflight looks whether a machine can have a cluster before anything is
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

	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/identity"
	"hyperkube/internal/layout"
	"hyperkube/manifests"
)

// minFreeDisk is what must be free where the data goes, in bytes: etcd and a
// few images fit, and there is room for a clear error before all stops.
const minFreeDisk = 512 << 20

// minFreeDiskAgain is what must be free for a cluster that is there: it may be just what
// removes images and evicts pods, so that there is more again.
const minFreeDiskAgain = 64 << 20

// minMemory is what a machine must have of memory, in bytes: twice what a cluster of one
// node takes before it has any pods of users.
const minMemory = 256 << 20

// Check checks what this machine must have before anything is changed on
// it, and returns all that is wrong at once.
func Check(l layout.Node, ports []int) error {
	if err := command.NeedRoot(); err != nil {
		return err
	}
	var errs []error
	for _, p := range check(l, ports) {
		errs = append(errs, p)
	}
	if len(errs) == 0 {
		return nil
	}
	return command.PreflightError(errors.Join(errs...))
}

// CheckBut is Check as kubeadm's users know it: what is wrong is told with the names of
// checks, all of it at once, and that of the checks of the names ignored, or of all where
// "all" is among them, only to warn, as is what is worth a word on any machine. Names are
// as kubeadm's, in any case; those of no check are passed over.
//
// https://kubernetes.io/docs/reference/setup-tools/kubeadm/kubeadm-init/
func CheckBut(l layout.Node, ports []int, ignored []string, warn func(problem error)) error {
	if err := command.NeedRoot(); err != nil {
		return err
	}
	for _, p := range notes("/proc/swaps") {
		warn(p)
	}
	return Fatal(check(l, ports), ignored, warn)
}

// Fatal is an error of the problems, but for those that are ignored, which warn is told.
func Fatal(problems []Problem, ignored []string, warn func(problem error)) error {
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

// Problem is what a check has found.
type Problem struct {
	// Check is its name.
	Check string
	error
}

func (p Problem) Unwrap() error { return p.error }

// Found is what the check of that name has found.
func Found(check string, err error) Problem { return Problem{check, err} }

// Name is that of the check which has found a problem that warn of CheckBut was told.
func Name(err error) string {
	var p Problem
	_ = errors.As(err, &p)
	return p.Check
}

func check(l layout.Node, ports []int) []Problem {
	problems := checkPorts(ports)
	add := func(check string, err error) { problems = append(problems, Problem{check, err}) }
	for _, path := range otherCluster(l) {
		add("FileAvailable-"+strings.ReplaceAll(path, "/", "-"), fmt.Errorf("another cluster is on this machine: %s is there; take that cluster away first, with `kubeadm reset` for instance", path))
	}
	for _, program := range []string{"iptables", "iptables-restore"} {
		if _, err := exec.LookPath(program); err != nil {
			add("FileExisting-"+program, fmt.Errorf("%s is not installed: install the package iptables", program))
		}
	}
	if data, err := os.ReadFile("/proc/filesystems"); err == nil && !strings.Contains(string(data), "\toverlay\n") {
		// The module may be there without being loaded; modprobe tells.
		if exec.Command("modprobe", "overlay").Run() != nil {
			add("SystemVerification", errors.New("this kernel has no overlayfs: load the module overlay"))
		}
	}
	if err := CheckDisk(l); err != nil {
		add("DiskSpace", err)
	} else if dir := existing(l.Data); !holdsContainers(dir) {
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

// checkMemory looks at the memory of a machine, in bytes.
func checkMemory(total uint64) error {
	if total < minMemory {
		return fmt.Errorf("this machine has only %d MiB of memory: %d MiB are needed", total>>20, minMemory>>20)
	}
	return nil
}

// notes are what is worth a word, and wrong on no machine. swaps is the kernel's list.
func notes(swaps string) []Problem {
	// The list has a heading.
	if data, err := os.ReadFile(swaps); err != nil || strings.Count(strings.TrimSpace(string(data)), "\n") == 0 {
		return nil
	}
	return []Problem{{"Swap", errors.New("swap is on: pods have none of it, but with memorySwap.swapBehavior LimitedSwap of the KubeletConfiguration")}}
}

// otherCluster names the files that some other Kubernetes keeps where this one
// would keep its own things. Only a first start looks: later ones find what is theirs.
func otherCluster(l layout.Node) []string {
	if isKnown(l) {
		return nil
	}
	paths := []string{filepath.Join(l.Kubelet, "config.yaml")} // kubeadm and most others
	if !identity.SignsElsewhere(l) {                           // else it is brought before init
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

// isKnown tells whether this machine has a cluster already, or is of one.
func isKnown(l layout.Node) bool {
	_, ours, err := identity.Load(l)
	return ours || err != nil || identity.HasJoined(l)
}

// checkPorts tells which ports are taken, and by whom.
func checkPorts(ports []int) []Problem {
	var problems []Problem
	for _, port := range ports {
		listener, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err == nil {
			listener.Close()
			continue
		}
		if who := listenerOf(port); who != "" {
			err = fmt.Errorf("port %d is taken by %s: stop it first", port, who)
		} else {
			err = fmt.Errorf("port %d cannot be used: %w", port, err)
		}
		problems = append(problems, Problem{fmt.Sprintf("Port-%d", port), err})
	}
	return problems
}

// listenerOf names the process that listens on a TCP port, "" if it cannot be
// told. It asks as this thread: /proc/net is of the process's first one, which may
// have been in another network namespace and be left there.
func listenerOf(port int) string {
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
		pid := strings.Split(fd, "/")[2]
		name, _ := os.ReadFile(filepath.Join("/proc", pid, "comm"))
		return fmt.Sprintf("%s (process %s)", strings.TrimSpace(string(name)), pid)
	}
	return ""
}

// existing is path or, if it is not there yet, the nearest folder above it.
func existing(path string) string {
	for path != "/" {
		if _, err := os.Stat(path); err == nil {
			break
		}
		path = filepath.Dir(path)
	}
	return path
}

// holdsContainers tells whether dir is on a file system that is known to hold
// what containers write. Making an overlay to find out takes a tenth of a
// second on a busy machine, which a start on a common one does not pay.
func holdsContainers(dir string) bool {
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

// checkOverlay tries whether the file system of dir can hold what containers
// write: an overlay, another one's above all, cannot. The overlay that is made
// to find out is mounted nowhere.
func checkOverlay(dir string) (err error) {
	probe, err := os.MkdirTemp(dir, ".hyperkube-probe-")
	if err != nil {
		return fmt.Errorf("writing below %s: %w", dir, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(probe)) }()
	fd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil // an old kernel, or one whose lack of overlays was told
	}
	defer unix.Close(fd)
	for _, option := range []string{"lowerdir", "upperdir", "workdir"} {
		sub := filepath.Join(probe, option)
		if err := os.Mkdir(sub, 0o700); err != nil {
			return fmt.Errorf("writing below %s: %w", dir, err)
		}
		if err := unix.FsconfigSetString(fd, option, sub); err != nil {
			return fmt.Errorf("the file system of %s cannot hold containers (overlayfs: %s: %w): choose another with --root, or mount a volume there if this is a container", dir, option, err)
		}
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		return fmt.Errorf("the file system of %s cannot hold containers (overlayfs: %w): choose another with --root, or mount a volume there if this is a container", dir, err)
	}
	return nil
}

// CheckDisk looks at the file system that the data is or will be on.
func CheckDisk(l layout.Node) error {
	least := uint64(minFreeDisk)
	if isKnown(l) {
		least = minFreeDiskAgain
	}
	path := existing(l.Data)
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return fmt.Errorf("asking for the free space of %s: %w", path, err)
	}
	if free := st.Bavail * uint64(st.Bsize); free < least {
		return fmt.Errorf("%s has only %d MiB free: %d MiB are needed", path, free>>20, least>>20)
	}
	if st.Flags&unix.ST_RDONLY != 0 {
		return fmt.Errorf("%s is mounted read-only", path)
	}
	return nil
}
