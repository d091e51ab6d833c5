package volume

import (
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/selinux/go-selinux"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// HostHasSELinux reports whether SELinux is enabled on this host: its file system is mounted at /sys/fs/selinux
// and is not read-only.
func HostHasSELinux() bool {
	var fs unix.Statfs_t
	err := unix.Statfs("/sys/fs/selinux", &fs)
	return err == nil && fs.Type == unix.SELINUX_MAGIC && fs.Flags&unix.ST_RDONLY == 0
}

// FileLabels returns a function that returns the SELinux label of a container's files for its SELinux
// options, with which a volume can be mounted. The label is empty if the options have no level, so that the
// runtime chooses it. Without SELinux, FileLabels returns nil.
func FileLabels() func(*v1.SELinuxOptions) string {
	if !HostHasSELinux() {
		return nil
	}
	process, file := selinux.ContainerLabels()
	selinux.ReleaseLabel(process)
	return func(o *v1.SELinuxOptions) string { return fileLabel(file, o) }
}

// fileLabel returns file, the policy's label for files of containers, with the user and level of the options.
// It returns "" if the options have no level.
func fileLabel(file string, o *v1.SELinuxOptions) string {
	parts := strings.SplitN(file, ":", 4)
	if len(parts) != 4 || o.Level == "" {
		return ""
	}
	if o.User != "" {
		parts[0] = o.User
	}
	parts[3] = o.Level
	return strings.Join(parts, ":")
}

// HasLabels reports whether the file system mounted at path supports SELinux labels per file. File systems
// without labels or mounted with a single label do not. It is false if path is not a mount point or the host
// has no SELinux.
func HasLabels(path string) bool {
	if !HostHasSELinux() {
		return false
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false
	}
	found, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(real))
	return err == nil && len(found) > 0 && keepsLabels(found[len(found)-1])
}

// keepsLabels reports whether the mount m stores SELinux labels per file.
func keepsLabels(m *mountinfo.Info) bool {
	for option := range strings.SplitSeq(m.Options+","+m.VFSOptions, ",") {
		if option == "seclabel" {
			return true
		}
	}
	return false
}
