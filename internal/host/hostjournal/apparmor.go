package hostjournal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// undoAppArmor removes an AppArmor profile from the kernel. It keeps a profile that still confines a process, for example
// a container of another cluster on this machine, because the process would run without a profile afterwards.
func undoAppArmor(c Change) error {
	return removeProfile(c.Name, "/sys/kernel/security/apparmor/.remove", "/proc")
}

// removeProfile removes the AppArmor profile name unless it confines a process. remove is the file of securityfs that
// removes a profile, and proc the mount point of procfs. A profile or an interface that does not exist is not an error.
func removeProfile(name, remove, proc string) error {
	labels, err := filepath.Glob(filepath.Join(proc, "[0-9]*/attr/current"))
	if err != nil {
		return fmt.Errorf("listing processes: %w", err)
	}
	for _, file := range labels {
		// A label is a name and a mode, such as "hyperkube-default (enforce)". Processes may have exited.
		if label, err := os.ReadFile(file); err == nil && strings.HasPrefix(string(label), name+" (") {
			return nil
		}
	}
	f, err := os.OpenFile(remove, os.O_WRONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("removing AppArmor profile: %w", err)
	}
	_, err = f.WriteString(name)
	if err = errors.Join(err, f.Close()); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("removing AppArmor profile: %w", err)
	}
	return nil
}
