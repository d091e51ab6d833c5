package volume

import (
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/selinux/go-selinux"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// HostHasSELinux tells whether SELinux is at work on this host.
func HostHasSELinux() bool {
	var fs unix.Statfs_t
	err := unix.Statfs("/sys/fs/selinux", &fs)
	return err == nil && fs.Type == unix.SELINUX_MAGIC && fs.Flags&unix.ST_RDONLY == 0
}

// FileLabels returns what tells which label the files of a container have, by its
// options: empty where the level is left to the runtime. It is nil without
// SELinux.
func FileLabels() func(*v1.SELinuxOptions) string {
	if !HostHasSELinux() {
		return nil
	}
	process, file := selinux.ContainerLabels()
	selinux.ReleaseLabel(process)
	return func(o *v1.SELinuxOptions) string { return fileLabel(file, o) }
}

// fileLabel puts options over the policy's label for the files of containers.
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

// HasLabels tells whether the file system that is mounted at path keeps SELinux
// labels. One that was mounted with one label for all, or that has none, does not.
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

func keepsLabels(m *mountinfo.Info) bool {
	for option := range strings.SplitSeq(m.Options+","+m.VFSOptions, ",") {
		if option == "seclabel" {
			return true
		}
	}
	return false
}
