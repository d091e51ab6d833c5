package volume

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// SharedMount is a plan how to make the directory dir a shared mount.
type SharedMount struct {
	dir string
	// Bind means that dir is not a mount point and must be bind-mounted on itself.
	Bind  bool
	share bool
}

// PlanSharedMount returns a plan to make dir a shared mount, so that the host and other containers see what
// containers, such as CSI drivers, mount below dir. If dir is below a shared mount, the plan is empty. It only
// reads the mount table: Apply changes the mounts, after the caller has recorded them in the host journal.
//
// https://kubernetes.io/docs/concepts/storage/volumes/#mount-propagation
func PlanSharedMount(dir string) (SharedMount, error) {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return SharedMount{}, fmt.Errorf("finding the mount of %s: %w", dir, err)
	}
	mounts, err := mountinfo.GetMounts(mountinfo.ParentsFilter(real))
	if err != nil {
		return SharedMount{}, fmt.Errorf("reading the mount table: %w", err)
	}
	var deepest *mountinfo.Info
	for _, m := range mounts {
		if deepest == nil || len(m.Mountpoint) >= len(deepest.Mountpoint) {
			deepest = m
		}
	}
	if deepest == nil {
		return SharedMount{}, fmt.Errorf("%s is not below any mount", dir)
	}
	share := !strings.Contains(deepest.Optional, "shared:")
	return SharedMount{dir: real, share: share, Bind: share && deepest.Mountpoint != real}, nil
}

// Apply executes the plan: it bind-mounts the directory on itself if it is not a mount point, and makes the
// mount shared. If the directory was already on a shared mount when the plan was made, it does nothing.
func (s SharedMount) Apply() error {
	if s.Bind {
		if err := unix.Mount(s.dir, s.dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("making %s a mount: %w", s.dir, err)
		}
	}
	if s.share {
		if err := unix.Mount("", s.dir, "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("making the mount of %s shared: %w", s.dir, err)
		}
	}
	return nil
}
