//go:build cgo

package runtime

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// createStateDirs creates the directories of state that does not outlive a reboot. If State is not on a
// tmpfs already, it mounts one, because each container creates and deletes a dozen files there. The
// mount was recorded in the journal before.
func (r *Runtime) createStateDirs() error {
	if err := os.MkdirAll(r.cfg.State, 0o711); err != nil {
		return fmt.Errorf("creating the runtime's directories: %w", err)
	}
	if err := mountInMemory(r.cfg.State); err != nil {
		// A disk works too.
		r.log.Warn("state directory is not on a tmpfs, containers start slower", "directory", r.cfg.State, "err", err)
	}
	dirs := []string{r.state("sandboxes"), r.state("containers"), r.state("empty")}
	for name := range r.cfg.Handlers {
		dirs = append(dirs, r.handlerState(name))
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
