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
	"hyperkube/internal/host/layout"
)

// defaultCapabilities are the capabilities of a container that does not request others, as in common container engines.
var defaultCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID",
	"CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
}

// capabilitySets contains immutable lists: supported are the kernel's capabilities, available those of this
// process.
type capabilitySets struct{ supported, available []string }

// allCapabilities returns the capabilities that the kernel supports, and those that this process has and can pass on.
// In a container or a restricted VM the latter may be fewer. It reads them once; the result never changes.
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
		sets.supported = append(sets.supported, name)
		if mine.Get(capability.PERMITTED, c) && mine.Get(capability.BOUNDING, c) {
			sets.available = append(sets.available, name)
		}
	}
	return sets, nil
})

// capabilities returns the capability sets of a container: the default ones with those added and dropped that the
// container requests, or all for a privileged container. Capabilities that this process does not have are omitted.
// Unknown names are an error.
func capabilities(security *runtimeapi.LinuxContainerSecurityContext) (*specs.LinuxCapabilities, error) {
	sets, err := allCapabilities()
	if err != nil {
		return nil, err
	}
	known, all := sets.supported, slices.Clone(sets.available)
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
	// Capabilities listed by name take precedence over "ALL".
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

// resolveUser determines the user and groups of a container. The pod's settings take precedence over those of
// the image. Names are looked up in the passwd and group files of the container's root rootfs. A name that is
// not found there is an error, as is a group in the pod's settings without a user. With the policy Merge, the
// groups of the user in the image are added.
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
	execUser, err := user.GetExecUser(name, &user.ExecUser{}, bytes.NewReader(passwd), bytes.NewReader(groups))
	if err != nil {
		return User{}, fmt.Errorf("resolving user %q of the container: %w", name, err)
	}
	u := User{UID: int64(execUser.Uid), GID: int64(execUser.Gid), Groups: []int64{int64(execUser.Gid)}}
	if security.GetSupplementalGroupsPolicy() == runtimeapi.SupplementalGroupsPolicy_Merge {
		for _, g := range execUser.Sgids {
			u.Groups = append(u.Groups, int64(g))
		}
		// The library ignores the user's group memberships if a group is specified.
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

// memberships returns the IDs of the groups of the user uid according to the content of the image's passwd and
// group files. It returns none if the user is not in passwd or a file is invalid.
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

// readInRoot reads up to 16 MiB of a file in a container's root. Symlinks are resolved within that root. A file that is
// missing, not a regular file or not readable reads as empty.
func readInRoot(rootfs, name string) ([]byte, error) {
	handle, err := pathrs.OpenInRoot(rootfs, name)
	if err != nil {
		return nil, nil //nolint:nilerr // a missing file reads as empty
	}
	defer handle.Close()
	// Opening a FIFO could block, and opening a device could have side effects.
	if info, err := handle.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return nil, nil //nolint:nilerr // same
	}
	f, err := pathrs.Reopen(handle, unix.O_RDONLY|unix.O_CLOEXEC)
	if err != nil {
		return nil, nil //nolint:nilerr // same
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, 16<<20))
}

// profileOf returns the seccomp or AppArmor profile that a container requests, or nil if it requests none. name is the
// deprecated form of the request, such as "runtime/default" or "localhost/NAME". It is used if profile is nil.
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

// seccompFor returns the seccomp settings for the profile that the container requests. It returns nil if the container
// is privileged or unconfined or requests no profile. A profile file that does not exist or is invalid is an error.
func seccompFor(security *runtimeapi.LinuxContainerSecurityContext, privileged bool, spec *specs.Spec) (*specs.LinuxSeccomp, error) {
	profile, err := profileOf(security.GetSeccomp(), security.GetSeccompProfilePath()) //nolint:staticcheck // for older clients
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
			return nil, fmt.Errorf("generating the default seccomp profile: %w", err)
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

// AppArmor describes the state of AppArmor on the host. The zero value means that it is not enabled.
type AppArmor struct {
	// Enabled reports whether the kernel enforces AppArmor.
	Enabled bool
	// Default is the name of the loaded default profile. It is empty if the profile could not be
	// loaded.
	Default string

	// sys is the mount point of sysfs, with securityfs in kernel/security.
	sys string
}

// appArmorProfile is the name of the default AppArmor profile of containers.
const appArmorProfile = "hyperkube-default"

// appArmorText is the default AppArmor profile of containers. It allows everything except writing kernel files, reading
// sensitive ones such as /proc/kcore and /sys/firmware, mounting, and tracing or signaling processes outside the
// profile.
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

// DetectAppArmor checks whether AppArmor is enabled and, if so, loads the default profile with apparmor_parser. Without
// that program there is no default profile. Before it loads a profile that the kernel does not have yet, it calls record
// with the name of the profile; if record fails, it does not load the profile. After an error, the result is valid but has
// no default profile.
func DetectAppArmor(record func(profile string) error) (AppArmor, error) {
	return detectAppArmor("/sys", record, func() (string, error) {
		parser, err := exec.LookPath("apparmor_parser")
		if err != nil && layout.Exists("/sbin/apparmor_parser") {
			return "/sbin/apparmor_parser", nil
		}
		return parser, err
	})
}

// detectAppArmor implements DetectAppArmor for the sysfs at sys. find returns the path of apparmor_parser; if it fails,
// the default profile is not loaded, which is not an error. Before the profile is loaded, record is called with its
// name, unless the kernel already has it. detectAppArmor returns an error if record or loading the profile fails.
func detectAppArmor(sys string, record func(profile string) error, find func() (string, error)) (AppArmor, error) {
	enabled, err := os.ReadFile(filepath.Join(sys, "module/apparmor/parameters/enabled"))
	if err != nil || !strings.HasPrefix(string(enabled), "Y") {
		return AppArmor{}, nil
	}
	host := AppArmor{Enabled: true, sys: sys}
	parser, err := find()
	if err != nil {
		return host, nil // apparmor_parser is optional
	}
	// If the list of profiles cannot be read, the profile is recorded, so that `hyperkube down` removes it.
	if loaded, err := host.isLoaded(appArmorProfile); err != nil || !loaded {
		if err := record(appArmorProfile); err != nil {
			return host, err
		}
	}
	cmd := exec.Command(parser, "-Kr")
	cmd.Stdin = strings.NewReader(appArmorText)
	if out, err := cmd.CombinedOutput(); err != nil {
		return host, fmt.Errorf("loading the default AppArmor profile: %w: %s", err, strings.TrimSpace(string(out)))
	}
	host.Default = appArmorProfile
	return host, nil
}

// profileFor returns the name of the AppArmor profile of a container: the default profile, unless the container
// requests another one. A privileged container never gets the default profile. The name is "unconfined" if the container
// requests that and AppArmor is enabled, and empty without AppArmor, without a default profile, or for a privileged
// container that requests no profile. It returns an error if the container requests a profile of the node, and AppArmor
// is not enabled or the profile is not loaded.
func (a AppArmor) profileFor(security *runtimeapi.LinuxContainerSecurityContext, privileged bool) (string, error) {
	profile, err := profileOf(security.GetApparmor(), security.GetApparmorProfile()) //nolint:staticcheck // for older clients
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
			return "", errors.New("invalid AppArmor profile name")
		}
		// If the list of profiles cannot be read, the kernel rejects unknown profiles later.
		if loaded, err := a.isLoaded(name); err == nil && !loaded {
			return "", fmt.Errorf("apparmor profile not found %s", name)
		}
		return name, nil
	}
	if a.Enabled {
		return "unconfined", nil
	}
	return "", nil
}

// isLoaded reports whether the kernel has the AppArmor profile name. It returns an error if it cannot read the list of
// profiles.
func (a AppArmor) isLoaded(name string) (bool, error) {
	// Each line contains a name and a mode.
	loaded, err := os.ReadFile(filepath.Join(a.sys, "kernel/security/apparmor/profiles"))
	return strings.Contains("\n"+string(loaded), "\n"+name+" ("), err
}

// buildDevices adds the device nodes in a container's configuration to spec, and the cgroup rules that allow access to
// them. A privileged container gets all devices of the host.
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
				continue // libcontainer creates these
			}
			spec.Linux.Devices = append(spec.Linux.Devices, d)
		}
	} else {
		resources.Devices = []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
	}
	for _, d := range in.Config.GetDevices() {
		source, err := filepath.EvalSymlinks(d.GetHostPath())
		if err != nil {
			return fmt.Errorf("resolving device %q: %w", d.GetHostPath(), err)
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

// placeDevice adds a device node to the container. source is the path of the device on the host, device.Path
// that in the container. A node for the same path is replaced. In a user namespace, a device with another path
// than on the host is bind-mounted instead.
func placeDevice(in Input, source string, device specs.LinuxDevice, spec *specs.Spec) {
	if in.UserNS && source != device.Path {
		// Device nodes cannot be created in a user namespace. libcontainer bind-mounts the host's
		// device instead, but only with the same path.
		spec.Mounts = append(spec.Mounts, specs.Mount{Destination: device.Path, Source: source, Type: "bind", Options: []string{"bind", "nosuid", "noexec"}})
		return
	}
	spec.Linux.Devices = slices.DeleteFunc(spec.Linux.Devices, func(o specs.LinuxDevice) bool { return o.Path == device.Path })
	spec.Linux.Devices = append(spec.Linux.Devices, device)
}

// hostDevices returns the host's device at source, or all devices below source if it is a directory. Their
// paths in the container are target, or below target. Directories of /dev in which each container has its own
// mounts, such as /dev/pts, are skipped. It returns an error if source is another kind of file.
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
			// Mounted by libcontainer or owned by other software.
			case "/dev/pts", "/dev/shm", "/dev/fd", "/dev/mqueue", "/dev/.lxc", "/dev/.lxd-mounts", "/dev/.udev":
				return filepath.SkipDir
			}
			return nil
		}
		var st unix.Stat_t
		if err := unix.Lstat(file, &st); err != nil {
			return nil //nolint:nilerr // deleted in the meantime
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
