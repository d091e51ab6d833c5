//go:build cgo

package runtime

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// makeState makes the folders of what a reboot ends. That folder is mounted in
// memory if it is not there anyway, as it is wherever /run is a disk's: a
// dozen files come and go there a container, and none is to outlive the boot.
// The journal knows the mount already.
func (r *Runtime) makeState() error {
	if err := os.MkdirAll(r.cfg.State, 0o711); err != nil {
		return fmt.Errorf("making the runtime's directories: %w", err)
	}
	if err := mountInMemory(r.cfg.State); err != nil {
		// It works on a disk as well.
		r.log.Warn("containers start slower, for the directory of their state is on a disk", "directory", r.cfg.State, "error", err)
	}
	dirs := []string{r.state("sandboxes"), r.state("containers"), r.state("empty")}
	for name := range r.cfg.Handlers {
		dirs = append(dirs, r.handlerState(name))
	}
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return fmt.Errorf("making the runtime's directories: %w", err)
		}
	}
	return nil
}

// mountInMemory mounts a file system in memory at dir, unless dir is on one, or
// has something mounted below it: that is of a predecessor, and its containers
// run.
func mountInMemory(dir string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("looking at the file system of %s: %w", dir, err)
	}
	if fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC {
		return nil
	}
	resolved, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return fmt.Errorf("looking at %s: %w", dir, err)
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
