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

// host contains the facts about this machine and the runtime's directories on it. It does not change
// after New, so it is safe for concurrent use.
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

// newHost detects the facts and creates the directories of persistent state.
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
		h.log.Warn("SELinux not available, containers run without labels", "err", err)
	}
	return h, nil
}

func (h *host) path(parts ...string) string {
	return filepath.Join(append([]string{h.root}, parts...)...)
}

func (h *host) state(parts ...string) string {
	return filepath.Join(append([]string{h.stateDir}, parts...)...)
}

func (h *host) pauseProgram() string { return h.path("pause") }

// cidrFile is the file that stores the pod CIDRs of UpdateRuntimeConfig.
func (h *host) cidrFile() string { return h.path("pod-cidrs") }

// defaultCgroup returns the parent cgroup of pods that do not specify one.
func (h *host) defaultCgroup() string {
	return filepath.Join("/", h.cgroupRoot, "hyperkube-pods")
}

func (h *host) sandboxDir(id string) string { return h.path("sandboxes", id) }

func (h *host) shm(id string) string { return h.state("sandboxes", id, "shm") }

func (h *host) containerDir(id string) string { return h.path("containers", id) }

// layersDir is the directory of temporary layer mounts, see container.MappedUsers.
func (h *host) layersDir(id string) string { return h.state("containers", id, "layers") }

func (h *host) containerRoot(id string) string { return h.state("containers", id, "rootfs") }

func (h *host) fifo(id, name string) string { return h.state("containers", id, name) }

func (h *host) handlerState(name string) string { return h.state("handlers", name) }

// sandboxCgroup returns the cgroup of a sandbox's pause process.
func (h *host) sandboxCgroup(c *runtimeapi.PodSandboxConfig, id string) string {
	return filepath.Join(h.podCgroup(c), id)
}

// podCgroup returns the parent cgroup of a pod's containers.
func (h *host) podCgroup(c *runtimeapi.PodSandboxConfig) string {
	if parent := c.GetLinux().GetCgroupParent(); parent != "" {
		return filepath.Join("/", parent)
	}
	return h.defaultCgroup()
}

// createStateDirs creates the directories of state that does not outlive a reboot. If State is not on a
// tmpfs already, it mounts one, because each container creates and deletes a dozen files there. The
// mount was recorded in the journal before.
func (h *host) createStateDirs(handlers map[string]Handler) error {
	if err := os.MkdirAll(h.stateDir, 0o711); err != nil {
		return fmt.Errorf("creating the runtime's directories: %w", err)
	}
	if err := mountInMemory(h.stateDir); err != nil {
		// A disk works too.
		h.log.Warn("state directory is not on a tmpfs, containers start slower", "directory", h.stateDir, "err", err)
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

// mountInMemory mounts a tmpfs at dir, unless dir is on one already or contains mounts, which
// belong to running containers of a previous process.
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

// bootID returns the boot ID of the machine.
func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("reading boot ID: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// labelFiles sets the SELinux label of the sandbox's files so that containers with these labels can
// read them.
func (h *host) labelFiles(id string, labels *selinux.Labels) error {
	files := sandbox.PathsIn(h.sandboxDir(id))
	for _, file := range []string{files.Hosts, files.Hostname, files.ResolvConf} {
		if err := h.selinux.Label(file, labels); err != nil {
			return err
		}
	}
	return nil
}
