package volume

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Sharing is how dir becomes a shared mount.
type Sharing struct {
	dir string
	// Bind: dir is to be mounted on itself.
	Bind  bool
	share bool
}

// Shared sees that what containers mount below dir, such as those of drivers of
// volumes, is seen by the host and by other containers: where the host has no
// shared mount at dir, dir is to become one. Nothing is changed before Do.
// https://kubernetes.io/docs/concepts/storage/volumes/#mount-propagation
func Shared(dir string) (Sharing, error) {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return Sharing{}, fmt.Errorf("finding the mount of %s: %w", dir, err)
	}
	mounts, err := mountinfo.GetMounts(mountinfo.ParentsFilter(real))
	if err != nil {
		return Sharing{}, fmt.Errorf("reading the mount table: %w", err)
	}
	var deepest *mountinfo.Info
	for _, m := range mounts {
		if deepest == nil || len(m.Mountpoint) >= len(deepest.Mountpoint) {
			deepest = m
		}
	}
	if deepest == nil {
		return Sharing{}, fmt.Errorf("%s is on no mount", dir)
	}
	share := !strings.Contains(deepest.Optional, "shared:")
	return Sharing{dir: real, share: share, Bind: share && deepest.Mountpoint != real}, nil
}

// Do does it.
func (s Sharing) Do() error {
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
