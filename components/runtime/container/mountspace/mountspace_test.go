//go:build cgo

package mountspace

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"
)

// TestCgroups checks the content of /sys/fs/cgroup in a container: its own cgroup with the unified
// hierarchy, or directories and symlinks per hierarchy with cgroup v1.
func TestCgroups(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	host := t.TempDir()
	for _, file := range []string{"unified/memory.max", "cpu/cpu.shares", "memory/memory.limit_in_bytes"} {
		if err := os.MkdirAll(filepath.Join(host, filepath.Dir(file)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(host, file), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	maker := New(filepath.Join(t.TempDir(), "root"))
	defer maker.Close()
	for _, tt := range []struct {
		name  string
		list  []Hierarchy
		flags int
		want  string
	}{
		{"unified", []Hierarchy{{Dir: filepath.Join(host, "unified")}}, unix.MS_RDONLY, "memory.max"},
		{"unified and writable", []Hierarchy{{Dir: filepath.Join(host, "unified")}}, 0, "memory.max"},
		{"by controller", []Hierarchy{{Name: "cpu,cpuacct", Dir: filepath.Join(host, "cpu")}, {Name: "memory", Dir: filepath.Join(host, "memory")}},
			unix.MS_RDONLY, "cpu cpu,cpuacct cpuacct memory"},
		{"by controller and writable", []Hierarchy{{Name: "memory", Dir: filepath.Join(host, "memory")}}, 0, "memory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rootfs := t.TempDir()
			space, err := maker.Make(Plan{
				Rootfs: rootfs, Network: "/proc/self/ns/net", IPC: "/proc/self/ns/ipc", Cgroups: tt.list,
				Mounts: []*configs.Mount{
					{Destination: "/dev", Device: "tmpfs", Source: "tmpfs"},
					{Destination: "/sys/fs/cgroup", Device: "cgroup", Source: "cgroup", Flags: unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | tt.flags},
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer space.File.Close()
			if len(space.Remaining) != 0 {
				t.Errorf("left to others: %+v", space.Remaining)
			}
			var names []string
			var top, flags int64
			err = onDedicatedThread(func() error {
				if err := unix.Unshare(unix.CLONE_FS); err != nil {
					return err
				}
				if err := unix.Setns(int(space.File.Fd()), unix.CLONE_NEWNS); err != nil {
					return err
				}
				cgroupDir := filepath.Join(maker.Root(), "sys/fs/cgroup")
				entries, err := os.ReadDir(cgroupDir)
				for _, e := range entries {
					names = append(names, e.Name())
				}
				if err != nil {
					return err
				}
				var st unix.Statfs_t
				if err := unix.Statfs(cgroupDir, &st); err != nil {
					return err
				}
				top = st.Flags
				if tt.list[0].Name != "" {
					cgroupDir = filepath.Join(cgroupDir, tt.list[0].Name)
				}
				err = unix.Statfs(cgroupDir, &st)
				flags = st.Flags
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(names, " "); got != tt.want {
				t.Errorf("there are %q, want %q", got, tt.want)
			}
			if want := tt.flags | unix.MS_NOSUID; int(flags)&(unix.MS_RDONLY|unix.MS_NOSUID) != want {
				t.Errorf("mounted with flags %#x, want %#x", flags, want)
			}
			if int(top)&unix.MS_RDONLY != tt.flags {
				t.Errorf("the directory above is mounted with flags %#x, want %#x", top, tt.flags)
			}
		})
	}
}
