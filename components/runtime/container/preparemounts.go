//go:build cgo

package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"hyperkube/components/runtime/container/mountspace"
	"hyperkube/internal/host/cgroup"
)

// prepareMounts creates the container's mount namespace before the container is started, because this is faster
// than in libcontainer. It changes config so that libcontainer joins the namespace. The caller must keep the
// returned file open until libcontainer has joined. proc is true if a pre-started process will mount /proc.
// prepareMounts returns nil without an error if it does not support the container's settings or if creating the
// namespace fails; libcontainer then creates the namespace and reports errors. It returns an error only if the
// container's cgroups cannot be created.
func (r *Runner) prepareMounts(spec *specs.Spec, config *configs.Config, proc bool) (*mountspace.Space, error) {
	if r.Spaces == nil || !supportsPreparedMounts(spec, config) {
		return nil, nil
	}
	plan := mountspace.Plan{
		Rootfs: config.Rootfs, Mounts: config.Mounts, Devices: config.Devices, Proc: proc,
		Label:   config.MountLabel,
		Network: config.Namespaces.PathOf(configs.NEWNET), IPC: config.Namespaces.PathOf(configs.NEWIPC),
	}
	// libcontainer creates the cgroups too, but later. libcontainer or the removal of the container
	// deletes them. They must exist before the cgroup mounts are prepared on the host, because the
	// cgroup version cannot be detected from within the new namespace.
	var err error
	if plan.Cgroups, err = r.makeCgroups(spec.Linux.CgroupsPath, config.Namespaces.Contains(configs.NEWCGROUP)); err != nil {
		return nil, err
	}
	space, err := r.Spaces.Make(plan)
	if err != nil {
		if r.Log != nil && !errors.Is(err, mountspace.ErrUnsupported) {
			r.Log.Debug("creating mount namespace ahead failed, the container starts nevertheless but slower", "containerID", filepath.Base(spec.Linux.CgroupsPath), "err", err)
		}
		return nil, nil
	}
	config.Rootfs, config.Mounts, config.Devices = r.Spaces.Root(), space.Remaining, nil
	config.Namespaces.Add(configs.NEWNS, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), space.File.Fd()))
	return space, nil
}

// supportsPreparedMounts reports whether prepareMounts supports the container: it has no mount propagation, no user
// namespace, no hooks and its own mount namespace.
func supportsPreparedMounts(spec *specs.Spec, config *configs.Config) bool {
	return spec.Linux.RootfsPropagation == "" &&
		!config.Namespaces.Contains(configs.NEWUSER) && config.Namespaces.IsPrivate(configs.NEWNS) && len(config.Hooks) == 0
}

// makeCgroups creates the cgroups of a container and returns the cgroup directories to mount in it. With cgroup
// v1, there is one directory per hierarchy. With cgroup v2, it is the container's cgroup if cgroupNS is true,
// which means that the container has its own cgroup namespace; otherwise it is the root of the hierarchy and no
// cgroup is created.
func (r *Runner) makeCgroups(path string, cgroupNS bool) ([]mountspace.Hierarchy, error) {
	if r.Cgroups.Unified() {
		if !cgroupNS {
			return []mountspace.Hierarchy{{Dir: r.Cgroups.Dir("", "/")}}, nil
		}
		if err := r.Cgroups.Create(path, cgroup.Resources{}); err != nil {
			return nil, fmt.Errorf("creating the container's cgroup: %w", err)
		}
		return []mountspace.Hierarchy{{Dir: r.Cgroups.Dir("", path)}}, nil
	}
	points, dirs := r.Cgroups.Dirs("/"), r.Cgroups.Dirs(path)
	list := make([]mountspace.Hierarchy, len(dirs))
	for i, dir := range dirs {
		err := os.Mkdir(dir, 0o755)
		if errors.Is(err, os.ErrNotExist) {
			err = r.Cgroups.Create(path, cgroup.Resources{})
		}
		if err != nil && !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("creating the container's cgroup: %w", err)
		}
		list[i] = mountspace.Hierarchy{Name: filepath.Base(points[i]), Dir: dir}
	}
	return list, nil
}
