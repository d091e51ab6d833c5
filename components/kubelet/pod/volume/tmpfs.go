package volume

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// NoSwap reports whether this kernel supports the tmpfs option noswap (Linux 6.4 or later), by creating a tmpfs
// that is not mounted. It returns an error if that fails.
func NoSwap() (bool, error) {
	fs, noswap, err := openTmpfs()
	if err != nil {
		return false, err
	}
	return noswap, unix.Close(fs)
}

// openTmpfs creates a tmpfs that is not mounted yet and returns its file descriptor, which the caller must
// close. noswap is true if the kernel supports that option, which is then set. It uses fsopen, which reports
// an unknown option only to the caller; mount would write a line to the kernel log for every volume.
func openTmpfs() (fs int, noswap bool, err error) {
	fs, err = unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, false, fmt.Errorf("creating a tmpfs: %w", err)
	}
	err = unix.FsconfigSetFlag(fs, "noswap")
	if err != nil && !errors.Is(err, unix.EINVAL) {
		_ = unix.Close(fs)
		return -1, false, fmt.Errorf("setting noswap of a tmpfs: %w", err)
	}
	return fs, err == nil, nil
}

// mountTmpfs mounts a tmpfs at dir unless one is mounted. size is the maximum in bytes; 0 means the kernel's
// default. The content is not swapped if the kernel supports that.
func mountTmpfs(dir string, size int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err == nil && st.Type == unix.TMPFS_MAGIC {
		if mounted, err := mountinfo.Mounted(dir); err == nil && mounted {
			return nil
		}
	}
	fs, _, err := openTmpfs()
	if err != nil {
		return err
	}
	defer unix.Close(fs)
	options := [][2]string{{"source", "tmpfs"}, {"mode", "1777"}}
	if size > 0 {
		options = append(options, [2]string{"size", strconv.FormatInt(size, 10)})
	}
	for _, o := range options {
		if err := unix.FsconfigSetString(fs, o[0], o[1]); err != nil {
			return fmt.Errorf("setting %s of a tmpfs: %w", o[0], err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return fmt.Errorf("creating a tmpfs: %w", err)
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("creating a mount of a tmpfs: %w", err)
	}
	defer unix.Close(mount)
	if err := unix.MoveMount(mount, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mounting a tmpfs at %s: %w", dir, err)
	}
	return nil
}
