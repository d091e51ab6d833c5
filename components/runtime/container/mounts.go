//go:build cgo

package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// buildMounts sets the mounts of spec: the kernel's file systems, the sandbox's files for /etc, the pod's /dev/shm, and
// the mounts in the container's configuration, which take precedence. Mounts that spec already has, for devices, are
// kept.
func buildMounts(in Input, security *runtimeapi.LinuxContainerSecurityContext, spec *specs.Spec) error {
	privileged := security.GetPrivileged()
	access := "ro"
	if privileged {
		access = "rw"
	}
	mounts := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", access}},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", access}},
	}
	bind := func(source, destination string, options ...string) {
		mounts = append(mounts, specs.Mount{Destination: destination, Type: "bind", Source: source, Options: append([]string{"rbind", "rprivate"}, options...)})
	}
	destinations := map[string]bool{}
	for _, m := range in.Mounts {
		destinations[filepath.Clean(m.GetContainerPath())] = true
	}
	rootAccess := "rw"
	if security.GetReadonlyRootfs() {
		rootAccess = "ro"
	}
	for _, f := range []struct{ source, destination string }{
		{in.SandboxFiles.Hosts, "/etc/hosts"}, {in.SandboxFiles.Hostname, "/etc/hostname"}, {in.SandboxFiles.ResolvConf, "/etc/resolv.conf"},
	} {
		if destinations[f.destination] {
			continue
		}
		bind(f.source, f.destination, rootAccess)
		if in.UserNS {
			mounts[len(mounts)-1].Options = append(mounts[len(mounts)-1].Options, "idmap")
		}
	}
	if !destinations["/dev/shm"] {
		bind(in.SHM, "/dev/shm", "rw")
	}
	mounts = slices.DeleteFunc(mounts, func(m specs.Mount) bool { return destinations[m.Destination] })
	for _, m := range in.Mounts {
		mount, err := bindMount(m, spec)
		if err != nil {
			return err
		}
		mounts = append(mounts, mount)
	}
	mounts = append(mounts, spec.Mounts...) // devices
	sortMounts(mounts)
	spec.Mounts = mounts
	return nil
}

// cgroupRoots returns the destinations of read-only cgroup mounts in spec that consist of a tmpfs with a mount for each
// hierarchy. unified is true if the host has cgroup v2 only; then there are none. runc mounts the hierarchies read-only
// but leaves the tmpfs writable and without a size limit, so the caller must add these paths to the read-only paths.
func cgroupRoots(spec *specs.Spec, unified bool) []string {
	var paths []string
	for _, m := range spec.Mounts {
		if !unified && m.Type == "cgroup" && slices.Contains(m.Options, "ro") {
			paths = append(paths, m.Destination)
		}
	}
	return paths
}

// sortMounts sorts mounts so that parents precede the mounts below them.
func sortMounts(mounts []specs.Mount) {
	slices.SortStableFunc(mounts, func(a, b specs.Mount) int {
		return strings.Count(filepath.Clean(a.Destination), "/") - strings.Count(filepath.Clean(b.Destination), "/")
	})
}

// bindMount converts a CRI mount to an OCI mount. It creates the source directory if it does not exist, as other
// runtimes do. If the mount propagates, it also sets the propagation of the container's root in spec. It returns an
// error for unknown options, for recursive read-only mounts that are not read-only or that propagate, and if the source
// of a bidirectional mount is not on a shared mount.
func bindMount(m *runtimeapi.Mount, spec *specs.Spec) (specs.Mount, error) {
	destination, source := m.GetContainerPath(), m.GetHostPath()
	if destination == "" || source == "" {
		return specs.Mount{}, errors.New("mount has no path")
	}
	if !filepath.IsAbs(destination) {
		destination = "/" + destination
	}
	resolved, err := filepath.EvalSymlinks(source)
	if errors.Is(err, os.ErrNotExist) {
		if err = os.MkdirAll(source, 0o755); err == nil {
			resolved, err = filepath.EvalSymlinks(source)
		}
	}
	if err != nil {
		return specs.Mount{}, fmt.Errorf("failed to resolve mount source %q: %w", source, err)
	}
	options := []string{"rbind"}
	if len(m.GetUidMappings())+len(m.GetGidMappings()) > 0 {
		// The kubelet sends the mappings of the pod, which the container uses too.
		options = append(options, "idmap")
	}
	switch m.GetPropagation() {
	case runtimeapi.MountPropagation_PROPAGATION_PRIVATE:
		options = append(options, "rprivate")
	case runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER:
		options = append(options, "rslave")
		if spec.Linux.RootfsPropagation != "rshared" {
			spec.Linux.RootfsPropagation = "rslave"
		}
	case runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL:
		if err := checkShared(resolved); err != nil {
			return specs.Mount{}, err
		}
		options = append(options, "rshared")
		spec.Linux.RootfsPropagation = "rshared"
	}
	switch {
	case m.GetRecursiveReadOnly():
		if !m.GetReadonly() || m.GetPropagation() != runtimeapi.MountPropagation_PROPAGATION_PRIVATE {
			return specs.Mount{}, fmt.Errorf("mount %q: recursive read-only needs a read-only mount of private propagation", destination)
		}
		options = append(options, "rro")
	case m.GetReadonly():
		options = append(options, "ro")
	default:
		options = append(options, "rw")
	}
	for _, o := range m.GetMountOptions() {
		switch o {
		case "noexec", "nosuid", "nodev", "noatime", "nodiratime", "relatime", "strictatime", "nosymfollow", "exec", "suid", "dev":
			options = append(options, o)
		default:
			return specs.Mount{}, fmt.Errorf("mount %q: unknown option %q", destination, o)
		}
	}
	return specs.Mount{Destination: filepath.Clean(destination), Type: "bind", Source: resolved, Options: options}, nil
}

// checkShared returns an error if the mount that contains path is not a shared mount, so mounts that a container
// creates below path would not propagate to the host.
func checkShared(path string) error {
	info, err := mountinfo.GetMounts(mountinfo.ParentsFilter(path))
	if err != nil {
		return fmt.Errorf("reading the mount table: %w", err)
	}
	var deepest *mountinfo.Info
	for _, m := range info {
		if deepest == nil || len(m.Mountpoint) >= len(deepest.Mountpoint) {
			deepest = m
		}
	}
	if deepest == nil {
		return fmt.Errorf("path %q is not on a mount", path)
	}
	if !strings.Contains(deepest.Optional, "shared:") {
		return fmt.Errorf("path %q is mounted on %q but it is not a shared mount", path, deepest.Mountpoint)
	}
	return nil
}
