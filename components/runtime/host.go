//go:build cgo

package runtime

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/sandbox"
	"hyperkube/components/runtime/selinux"
	"hyperkube/internal/host/cgroup"
)

// host contains the properties of this machine, such as its boot ID and cgroups, and the paths of the runtime's
// directories. The services embed it. It does not change after New, so it is safe for concurrent use.
type host struct {
	// root is the directory that persists across reboots, stateDir that of state that does not.
	root, stateDir string
	// cgroupRoot is the parent cgroup of pods that do not specify one.
	cgroupRoot string
	boot       string // the boot ID
	cgroups    *cgroup.Manager
	selinux    *selinux.Host // nil without SELinux
	log        *slog.Logger
}

// newHost detects the properties of the machine and creates the directories below Config.Root. If SELinux is enabled
// but cannot be used, it logs a warning and containers run without SELinux labels.
func newHost(cfg *Config) (*host, error) {
	h := &host{root: cfg.Root, stateDir: cfg.State, cgroupRoot: cfg.CgroupRoot, log: cfg.Log}
	var err error
	if h.boot, err = bootID(); err != nil {
		return nil, err
	}
	for _, dir := range []string{h.root, h.path("sandboxes"), h.path("containers")} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return nil, fmt.Errorf("creating the runtime's directories: %w", err)
		}
	}
	if h.cgroups, err = cgroup.Open(); err != nil {
		return nil, err
	}
	if h.selinux, err = selinux.Detect(); err != nil {
		h.log.Warn("SELinux is enabled but cannot be used; containers run without SELinux labels: resolve the error and restart the container runtime", "err", err)
	}
	return h, nil
}

// path returns the path of parts below Config.Root, the directory that persists across reboots.
func (h *host) path(parts ...string) string {
	return filepath.Join(append([]string{h.root}, parts...)...)
}

// state returns the path of parts below Config.State, the directory of state that does not outlive a reboot.
func (h *host) state(parts ...string) string {
	return filepath.Join(append([]string{h.stateDir}, parts...)...)
}

// pauseProgram is the path of the program that holds a pod's namespaces, see package pause.
func (h *host) pauseProgram() string { return h.path("pause") }

// cidrFile is the file that stores the pod CIDRs that the kubelet has set with UpdateRuntimeConfig, so that the next
// runtime process uses them from the start.
func (h *host) cidrFile() string { return h.path("pod-cidrs") }

// defaultCgroup returns the parent cgroup of pods that do not specify one.
func (h *host) defaultCgroup() string {
	return filepath.Join("/", h.cgroupRoot, "hyperkube-pods")
}

func (h *host) sandboxDir(id string) string { return h.path("sandboxes", id) }

// shm is the mount point of the /dev/shm that the containers of a sandbox share.
func (h *host) shm(id string) string { return h.state("sandboxes", id, "shm") }

func (h *host) containerDir(id string) string { return h.path("containers", id) }

// layersDir is the directory in which the image layers of a container with a user namespace are mounted temporarily,
// see container.MappedUsers.
func (h *host) layersDir(id string) string { return h.state("containers", id, "layers") }

func (h *host) containerRoot(id string) string { return h.state("containers", id, "rootfs") }

// fifo returns the path of a file of a container's standard streams: of the FIFO of a stream if name is "stdin",
// "stdout" or "stderr", and of the file that buffers its output if name is "stdout.spool" or "stderr.spool".
func (h *host) fifo(id, name string) string { return h.state("containers", id, name) }

// handlerState is the directory of the state of an additional runtime handler.
func (h *host) handlerState(name string) string { return h.state("handlers", name) }

// sandboxCgroup returns the cgroup of a sandbox's pause process.
func (h *host) sandboxCgroup(c *runtimeapi.PodSandboxConfig, id string) string {
	return filepath.Join(h.podCgroup(c), id)
}

// podCgroup returns the parent cgroup of a pod's containers: that in the request, which is the pod's cgroup that the
// kubelet has created, or defaultCgroup, which other pods use too.
func (h *host) podCgroup(c *runtimeapi.PodSandboxConfig) string {
	if parent := c.GetLinux().GetCgroupParent(); parent != "" {
		return filepath.Join("/", parent)
	}
	return h.defaultCgroup()
}

// createStateDirs creates the directories of state that does not outlive a reboot. handlers are the additional runtime
// handlers, which get a directory each. If Config.State is not on a tmpfs, createStateDirs mounts one there, because
// each container creates and deletes a dozen files. openJournal has recorded this mount in the journal of host changes
// before. If the mount fails, the directories are on disk.
func (h *host) createStateDirs(handlers map[string]Handler) error {
	if err := os.MkdirAll(h.stateDir, 0o711); err != nil {
		return fmt.Errorf("creating the runtime's directories: %w", err)
	}
	if err := mountInMemory(h.stateDir); err != nil {
		// A disk works too.
		h.log.Warn("mounting a tmpfs on the state directory of the container runtime failed; the disk is used instead and containers start slower, retrying at the next start of the container runtime", "directory", h.stateDir, "err", err)
	}
	dirs := []string{h.state("sandboxes"), h.state("containers"), h.state("empty")}
	for name := range handlers {
		dirs = append(dirs, h.handlerState(name))
	}
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return fmt.Errorf("creating the runtime's directories: %w", err)
		}
	}
	return nil
}

// mountInMemory mounts a tmpfs at dir. It does nothing if dir is on a tmpfs already or contains mounts, because these
// belong to containers that a previous runtime process has started.
func mountInMemory(dir string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("reading file system type of %s: %w", dir, err)
	}
	if fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC {
		return nil
	}
	resolved, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return fmt.Errorf("resolving %s: %w", dir, err)
	}
	used, err := mountinfo.GetMounts(mountinfo.PrefixFilter(resolved))
	if err != nil {
		return fmt.Errorf("reading the mount table: %w", err)
	}
	if len(used) > 0 {
		return nil
	}
	if err := unix.Mount("hyperkube", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0711,size=25%"); err != nil {
		return fmt.Errorf("mounting %s: %w", dir, err)
	}
	return nil
}

// bootID returns the random ID that the kernel generates at each boot. Records contain it, because processes and mounts
// of another boot do not exist any more.
func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("reading boot ID: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// labelFiles sets the SELinux label of the hosts, hostname and resolv.conf files of the sandbox with this ID, so that
// containers with these labels can read them. Without SELinux it does nothing.
func (h *host) labelFiles(id string, labels *selinux.Labels) error {
	files := sandbox.PathsIn(h.sandboxDir(id))
	for _, file := range []string{files.Hosts, files.Hostname, files.ResolvConf} {
		if err := h.selinux.Label(file, labels); err != nil {
			return err
		}
	}
	return nil
}
