//go:build cgo

package container

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	pathrs "github.com/cyphar/filepath-securejoin/pathrs-lite"
	"github.com/moby/profiles/seccomp"
	"github.com/moby/sys/capability"
	"github.com/moby/sys/user"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/images"
	"hyperkube/internal/layout"
)

// defaultCapabilities are those that container engines agree on.
var defaultCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID",
	"CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
}

// capabilitySets are names that nobody may change.
type capabilitySets struct{ known, ours []string }

// allCapabilities returns those that the kernel knows, and those of them that
// this process can pass on, which never change: inside of a container or a small
// machine they may be fewer.
var allCapabilities = sync.OnceValues(func() (sets capabilitySets, err error) {
	list, err := capability.ListSupported()
	if err != nil {
		return sets, fmt.Errorf("listing the kernel's capabilities: %w", err)
	}
	mine, err := capability.NewPid2(0)
	if err == nil {
		err = mine.Load()
	}
	if err != nil {
		return sets, fmt.Errorf("reading this process's capabilities: %w", err)
	}
	for _, c := range list {
		name := "CAP_" + strings.ToUpper(c.String())
		sets.known = append(sets.known, name)
		if mine.Get(capability.PERMITTED, c) && mine.Get(capability.BOUNDING, c) {
			sets.ours = append(sets.ours, name)
		}
	}
	return sets, nil
})

func capabilities(security *runtimeapi.LinuxContainerSecurityContext) (*specs.LinuxCapabilities, error) {
	sets, err := allCapabilities()
	if err != nil {
		return nil, err
	}
	known, all := sets.known, slices.Clone(sets.ours)
	if security.GetPrivileged() {
		return &specs.LinuxCapabilities{Bounding: all, Effective: all, Permitted: all}, nil
	}
	names := func(list []string) (out []string, every bool, err error) {
		for _, name := range list {
			name = strings.ToUpper(name)
			if name == "ALL" {
				every = true
				continue
			}
			if !strings.HasPrefix(name, "CAP_") {
				name = "CAP_" + name
			}
			if !slices.Contains(known, name) {
				return nil, false, fmt.Errorf("unknown capability %q", name)
			}
			out = append(out, name)
		}
		return out, every, nil
	}
	add, addAll, err := names(security.GetCapabilities().GetAddCapabilities())
	if err != nil {
		return nil, err
	}
	drop, dropAll, err := names(security.GetCapabilities().GetDropCapabilities())
	if err != nil {
		return nil, err
	}
	ambient, _, err := names(security.GetCapabilities().GetAddAmbientCapabilities())
	if err != nil {
		return nil, err
	}
	have := slices.Clone(defaultCapabilities)
	if addAll {
		have = slices.Clone(all)
	}
	if dropAll {
		have = nil
	}
	// What is named counts more than "ALL".
	have = append(slices.DeleteFunc(have, func(c string) bool { return slices.Contains(drop, c) }), add...)
	have = append(have, ambient...)
	have = slices.DeleteFunc(have, func(c string) bool { return slices.Contains(drop, c) && !slices.Contains(add, c) })
	missing := func(c string) bool { return !slices.Contains(all, c) }
	have, ambient = slices.DeleteFunc(have, missing), slices.DeleteFunc(ambient, missing)
	slices.Sort(have)
	have = slices.Compact(have)
	caps := &specs.LinuxCapabilities{Bounding: have, Effective: have, Permitted: have}
	if len(ambient) > 0 {
		caps.Inheritable, caps.Ambient = ambient, ambient
	}
	return caps, nil
}

// resolveUser finds out who a container runs as, from the pod, the image and
// the files of its root.
func resolveUser(rootfs string, security *runtimeapi.LinuxContainerSecurityContext, image images.Config) (User, error) {
	var name string
	switch {
	case security.GetRunAsUser() != nil:
		name = strconv.FormatInt(security.GetRunAsUser().GetValue(), 10)
	case security.GetRunAsUsername() != "":
		name = security.GetRunAsUsername()
	default:
		name = image.User
	}
	if group := security.GetRunAsGroup(); group != nil {
		if security.GetRunAsUser() == nil && security.GetRunAsUsername() == "" {
			return User{}, fmt.Errorf("user group \"%d\" is specified without user", group.GetValue())
		}
		name, _, _ = strings.Cut(name, ":")
		name += ":" + strconv.FormatInt(group.GetValue(), 10)
	}
	passwd, err := readInRoot(rootfs, "etc/passwd")
	if err != nil {
		return User{}, fmt.Errorf("resolving user %q of the container: %w", name, err)
	}
	groups, err := readInRoot(rootfs, "etc/group")
	if err != nil {
		return User{}, fmt.Errorf("resolving user %q of the container: %w", name, err)
	}
	who, err := user.GetExecUser(name, &user.ExecUser{}, bytes.NewReader(passwd), bytes.NewReader(groups))
	if err != nil {
		return User{}, fmt.Errorf("resolving user %q of the container: %w", name, err)
	}
	u := User{UID: int64(who.Uid), GID: int64(who.Gid), Groups: []int64{int64(who.Gid)}}
	if security.GetSupplementalGroupsPolicy() == runtimeapi.SupplementalGroupsPolicy_Merge {
		for _, g := range who.Sgids {
			u.Groups = append(u.Groups, int64(g))
		}
		// With a group given the library leaves the user's own ones out.
		u.Groups = append(u.Groups, memberships(bytes.NewReader(passwd), bytes.NewReader(groups), u.UID)...)
	}
	u.Groups = append(u.Groups, security.GetSupplementalGroups()...)
	var unique []int64
	for _, g := range u.Groups {
		if !slices.Contains(unique, g) {
			unique = append(unique, g)
		}
	}
	u.Groups = unique
	return u, nil
}

// memberships returns the groups that the image's files put a user in.
func memberships(passwd, groups io.Reader, uid int64) []int64 {
	users, err := user.ParsePasswdFilter(passwd, func(u user.User) bool { return int64(u.Uid) == uid })
	if err != nil || len(users) == 0 {
		return nil
	}
	list, err := user.ParseGroupFilter(groups, func(g user.Group) bool { return slices.Contains(g.List, users[0].Name) })
	if err != nil {
		return nil
	}
	var out []int64
	for _, g := range list {
		out = append(out, int64(g.Gid))
	}
	return out
}

// readInRoot reads a file of a container's root, in which every link leads
// somewhere in that root, up to 16 MiB. A missing file reads as empty.
func readInRoot(rootfs, name string) ([]byte, error) {
	handle, err := pathrs.OpenInRoot(rootfs, name)
	if err != nil {
		return nil, nil //nolint:nilerr // nobody is in it
	}
	defer handle.Close()
	// A FIFO must not hold us up, nor a device do anything.
	if info, err := handle.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return nil, nil //nolint:nilerr // as well
	}
	f, err := pathrs.Reopen(handle, unix.O_RDONLY|unix.O_CLOEXEC)
	if err != nil {
		return nil, nil //nolint:nilerr // as well
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, 16<<20))
}

// profileOf is the profile that a caller asks for, or one that older callers do, by
// its name alone; nil for none.
func profileOf(profile *runtimeapi.SecurityProfile, name string) (*runtimeapi.SecurityProfile, error) {
	if profile != nil || name == "" {
		return profile, nil
	}
	switch name {
	case "runtime/default", "docker/default":
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, nil
	case "unconfined":
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
	}
	ref, ok := strings.CutPrefix(name, "localhost/")
	if !ok {
		return nil, fmt.Errorf("invalid security profile %q", name)
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: ref}, nil
}

// seccompFor translates the seccomp profile that is asked for; nil for none.
func seccompFor(security *runtimeapi.LinuxContainerSecurityContext, privileged bool, spec *specs.Spec) (*specs.LinuxSeccomp, error) {
	profile, err := profileOf(security.GetSeccomp(), security.GetSeccompProfilePath()) //nolint:staticcheck // older callers have no other
	if err != nil {
		return nil, fmt.Errorf("seccomp: %w", err)
	}
	if privileged || profile == nil {
		return nil, nil
	}
	switch profile.GetProfileType() {
	case runtimeapi.SecurityProfile_Unconfined:
		return nil, nil
	case runtimeapi.SecurityProfile_RuntimeDefault:
		s, err := seccomp.GetDefaultProfile(spec)
		if err != nil {
			return nil, fmt.Errorf("making the default seccomp profile: %w", err)
		}
		return s, nil
	case runtimeapi.SecurityProfile_Localhost:
		data, err := os.ReadFile(profile.GetLocalhostRef())
		if err != nil {
			return nil, fmt.Errorf("cannot load seccomp profile %q: %w", profile.GetLocalhostRef(), err)
		}
		s, err := seccomp.LoadProfile(string(data), spec)
		if err != nil {
			return nil, fmt.Errorf("cannot load seccomp profile %q: %w", profile.GetLocalhostRef(), err)
		}
		return s, nil
	}
	return nil, errors.New("unknown seccomp profile type")
}

// AppArmor is what the host can do with AppArmor.
type AppArmor struct {
	// Enabled tells that the kernel enforces it.
	Enabled bool
	// Default is the name of the loaded default profile; empty if it could
	// not be loaded.
	Default string

	// sys is where sysfs is, with securityfs in kernel/security.
	sys string
}

const appArmorProfile = "hyperkube-default"

// appArmorText is what every container may do: all but write to the kernel's
// files, mount, and trace or signal those outside.
const appArmorText = `#include <tunables/global>
profile ` + appArmorProfile + ` flags=(attach_disconnected,mediate_deleted) {
  #include <abstractions/base>
  network,
  capability,
  file,
  umount,
  signal (receive) peer=unconfined,
  signal (send,receive) peer=` + appArmorProfile + `,
  deny @{PROC}/* w,
  deny @{PROC}/{[^1-9],[^1-9][^0-9],[^1-9s][^0-9y][^0-9s],[^1-9][^0-9][^0-9][^0-9]*}/** w,
  deny @{PROC}/sys/[^k]** w,
  deny @{PROC}/sys/kernel/{?,??,[^s][^h][^m]**} w,
  deny @{PROC}/sysrq-trigger rwklx,
  deny @{PROC}/mem rwklx,
  deny @{PROC}/kmem rwklx,
  deny @{PROC}/kcore rwklx,
  deny mount,
  deny /sys/[^f]*/** wklx,
  deny /sys/f[^s]*/** wklx,
  deny /sys/fs/[^c]*/** wklx,
  deny /sys/fs/c[^g]*/** wklx,
  deny /sys/fs/cg[^r]*/** wklx,
  deny /sys/firmware/** rwklx,
  deny /sys/devices/virtual/powercap/** rwklx,
  deny /sys/kernel/security/** rwklx,
  ptrace (trace,read,tracedby,readby) peer=` + appArmorProfile + `,
}
`

// DetectAppArmor looks at the host and loads the default profile where it can.
func DetectAppArmor() (AppArmor, error) {
	return detectAppArmor("/sys", func() (string, error) {
		parser, err := exec.LookPath("apparmor_parser")
		if err != nil && layout.Exists("/sbin/apparmor_parser") {
			return "/sbin/apparmor_parser", nil
		}
		return parser, err
	})
}

// detectAppArmor is DetectAppArmor with sysfs in sys, and the program that
// loads profiles where find says; without one there is no default profile.
func detectAppArmor(sys string, find func() (string, error)) (AppArmor, error) {
	enabled, err := os.ReadFile(filepath.Join(sys, "module/apparmor/parameters/enabled"))
	if err != nil || !strings.HasPrefix(string(enabled), "Y") {
		return AppArmor{}, nil
	}
	host := AppArmor{Enabled: true, sys: sys}
	parser, err := find()
	if err != nil {
		return host, nil // the program is not everywhere
	}
	cmd := exec.Command(parser, "-Kr")
	cmd.Stdin = strings.NewReader(appArmorText)
	if out, err := cmd.CombinedOutput(); err != nil {
		return host, fmt.Errorf("loading the default AppArmor profile: %w: %s", err, strings.TrimSpace(string(out)))
	}
	host.Default = appArmorProfile
	return host, nil
}

func (a AppArmor) profileFor(security *runtimeapi.LinuxContainerSecurityContext, privileged bool) (string, error) {
	profile, err := profileOf(security.GetApparmor(), security.GetApparmorProfile()) //nolint:staticcheck // older callers have no other
	switch {
	case err != nil:
		return "", fmt.Errorf("apparmor: %w", err)
	case profile == nil && !privileged:
		return a.Default, nil
	case profile == nil:
		return "", nil
	}
	switch profile.GetProfileType() {
	case runtimeapi.SecurityProfile_RuntimeDefault:
		if privileged {
			return "", nil
		}
		return a.Default, nil
	case runtimeapi.SecurityProfile_Localhost:
		if !a.Enabled {
			return "", errors.New("apparmor is not supported")
		}
		name := strings.TrimPrefix(profile.GetLocalhostRef(), "localhost/")
		if name == "" || strings.ContainsAny(name, "\n") {
			return "", errors.New("bad name of an AppArmor profile")
		}
		// Lines of the name and its mode. What cannot be read is left to the
		// kernel to refuse.
		if loaded, err := os.ReadFile(filepath.Join(a.sys, "kernel/security/apparmor/profiles")); err == nil && !strings.Contains("\n"+string(loaded), "\n"+name+" (") {
			return "", fmt.Errorf("apparmor profile not found %s", name)
		}
		return name, nil
	}
	if a.Enabled {
		return "unconfined", nil
	}
	return "", nil
}

// buildDevices says which devices a container has and may use.
func buildDevices(in Input, privileged bool, spec *specs.Spec) error {
	resources := spec.Linux.Resources
	if privileged {
		resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
		list, err := hostDevices("/dev", "/dev")
		if err != nil {
			return err
		}
		for _, d := range list {
			switch d.Path {
			case "/dev/console", "/dev/ptmx", "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty":
				continue // the low level makes them
			}
			spec.Linux.Devices = append(spec.Linux.Devices, d)
		}
	} else {
		resources.Devices = []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
	}
	for _, d := range in.Config.GetDevices() {
		source, err := filepath.EvalSymlinks(d.GetHostPath())
		if err != nil {
			return fmt.Errorf("finding device %q: %w", d.GetHostPath(), err)
		}
		list, err := hostDevices(source, d.GetContainerPath())
		if err != nil {
			return err
		}
		access := d.GetPermissions()
		if access == "" {
			access = "rwm"
		}
		for _, device := range list {
			placeDevice(in, filepath.Join(source, strings.TrimPrefix(device.Path, d.GetContainerPath())), device, spec)
			resources.Devices = append(resources.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: device.Type, Major: &device.Major, Minor: &device.Minor, Access: access})
		}
	}
	return nil
}

// placeDevice puts the device that the host has at source into the container.
func placeDevice(in Input, source string, device specs.LinuxDevice, spec *specs.Spec) {
	if in.UserNS && source != device.Path {
		// Who is root in a user namespace makes no devices; the low level
		// mounts the host's instead, but only under their own names.
		spec.Mounts = append(spec.Mounts, specs.Mount{Destination: device.Path, Source: source, Type: "bind", Options: []string{"bind", "nosuid", "noexec"}})
		return
	}
	spec.Linux.Devices = slices.DeleteFunc(spec.Linux.Devices, func(o specs.LinuxDevice) bool { return o.Path == device.Path })
	spec.Linux.Devices = append(spec.Linux.Devices, device)
}

// hostDevices describes the device at source, or all in that folder, as found
// at target in the container.
func hostDevices(source, target string) ([]specs.LinuxDevice, error) {
	var list []specs.LinuxDevice
	err := filepath.WalkDir(source, func(file string, entry os.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, os.ErrNotExist) && file != source {
				return nil
			}
			return err
		}
		if entry.IsDir() {
			switch file {
			// Others' own, or mounted by the low level.
			case "/dev/pts", "/dev/shm", "/dev/fd", "/dev/mqueue", "/dev/.lxc", "/dev/.lxd-mounts", "/dev/.udev":
				return filepath.SkipDir
			}
			return nil
		}
		var st unix.Stat_t
		if err := unix.Lstat(file, &st); err != nil {
			return nil //nolint:nilerr // it went meanwhile
		}
		var kind string
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFCHR:
			kind = "c"
		case unix.S_IFBLK:
			kind = "b"
		default:
			if file == source {
				return fmt.Errorf("%s is not a device", source)
			}
			return nil
		}
		mode := os.FileMode(st.Mode &^ unix.S_IFMT)
		uid, gid := st.Uid, st.Gid
		list = append(list, specs.LinuxDevice{
			Path: filepath.Join(target, strings.TrimPrefix(file, source)), Type: kind,
			Major: int64(unix.Major(st.Rdev)), Minor: int64(unix.Minor(st.Rdev)),
			FileMode: &mode, UID: &uid, GID: &gid,
		})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listing devices: %w", err)
	}
	return list, nil
}
