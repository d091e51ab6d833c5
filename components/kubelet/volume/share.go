package volume

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Share sees that what containers mount below dir, such as those of drivers of
// volumes, is seen by the host and by other containers: where the host has no
// shared mount at dir, dir becomes one. It is idempotent.
// https://kubernetes.io/docs/concepts/storage/volumes/#mount-propagation
func Share(dir string) error {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return fmt.Errorf("finding the mount of %s: %w", dir, err)
	}
	mounts, err := mountinfo.GetMounts(mountinfo.ParentsFilter(real))
	if err != nil {
		return fmt.Errorf("reading the mount table: %w", err)
	}
	var deepest *mountinfo.Info
	for _, m := range mounts {
		if deepest == nil || len(m.Mountpoint) >= len(deepest.Mountpoint) {
			deepest = m
		}
	}
	if deepest == nil {
		return fmt.Errorf("%s is on no mount", dir)
	}
	if strings.Contains(deepest.Optional, "shared:") {
		return nil
	}
	if deepest.Mountpoint != real {
		if err := unix.Mount(real, real, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("making %s a mount: %w", dir, err)
		}
	}
	if err := unix.Mount("", real, "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		if errors.Is(err, unix.EPERM) {
			return fmt.Errorf("making the mount of %s shared (are we root?): %w", dir, err)
		}
		return fmt.Errorf("making the mount of %s shared: %w", dir, err)
	}
	return nil
}
