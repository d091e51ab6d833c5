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
)

// minFreeDisk is what must be free where the data goes, in bytes: etcd and a
// few images fit, and there is room for a clear error before all stops.
const minFreeDisk = 512 << 20

// minFreeDiskAgain is what must be free for a cluster that is there: it may be just what
// removes images and evicts pods, so that there is more again.
const minFreeDiskAgain = 64 << 20

// Check checks what this machine must have before anything is changed on
// it, and returns all that is wrong at once.
func Check(l layout.Node, ports []int) error { return CheckBut(l, ports, nil, nil) }

// CheckBut is Check but for what is ignored: the checks of those names, whose problems warn is
// told, or "all". Names are as kubeadm's, in any case; those of no check are passed over.
func CheckBut(l layout.Node, ports []int, ignored []string, warn func(problem error)) error {
	if os.Geteuid() != 0 {
		return command.PreflightError(errors.New("this must run as root: use sudo"))
	}
	isIgnored := func(name string) bool {
		return slices.ContainsFunc(ignored, func(i string) bool { return strings.EqualFold(i, name) || strings.EqualFold(i, "all") })
	}
	var problems []error
	for _, p := range check(l, ports) {
		if isIgnored(p.check) {
			warn(p)
		} else {
			problems = append(problems, p)
		}
	}
	if len(problems) == 0 {
		return nil
	}
	return command.PreflightError(errors.Join(problems...))
}

// problem is what a check has found.
type problem struct {
	check string // its name
	error
}

func (p problem) Unwrap() error { return p.error }

// Name is that of the check which has found a problem that warn of CheckBut was told.
func Name(err error) string {
	var p problem
	_ = errors.As(err, &p)
	return p.check
}

func check(l layout.Node, ports []int) []problem {
	problems := checkPorts(ports)
	add := func(check string, err error) { problems = append(problems, problem{check, err}) }
	if who := otherCluster(l); who != "" {
		add("FileAvailable-"+strings.ReplaceAll(who, "/", "-"), fmt.Errorf("another cluster is on this machine: %s is there; take that cluster away first", who))
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
	return problems
}

// otherCluster names a file that some other Kubernetes keeps where this one
// would keep its own things, "" when there is none. Only a first start looks:
// later ones find what is theirs.
func otherCluster(l layout.Node) string {
	if isKnown(l) {
		return ""
	}
	for _, path := range []string{
		filepath.Join(l.Kubelet, "config.yaml"), // kubeadm and most others
		filepath.Join(l.Etc, "kubelet.conf"),
		filepath.Join(l.StaticPods(), "kube-apiserver.yaml"),
	} {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

// isKnown tells whether this machine has a cluster already, or is of one.
func isKnown(l layout.Node) bool {
	_, ours, err := identity.Load(l)
	return ours || err != nil || identity.HasJoined(l)
}

// checkPorts tells which ports are taken, and by whom.
func checkPorts(ports []int) []problem {
	var problems []problem
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
		problems = append(problems, problem{fmt.Sprintf("Port-%d", port), err})
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
