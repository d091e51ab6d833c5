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
	"hyperkube/internal/cgroup"
)

// mountAhead makes the container's mount namespace and changes config so that
// libcontainer joins it; its file is to be kept until then. If proc is true the
// first process mounts /proc when it is told to. It returns nil where libcontainer
// is to do all by itself, as it does with what is out of the ordinary and with
// whatever fails: it knows best what to say of that.
func (r *Runner) mountAhead(spec *specs.Spec, config *configs.Config, proc bool) (*mountspace.Space, error) {
	if r.Spaces == nil || !suited(spec, config) {
		return nil, nil
	}
	plan := mountspace.Plan{
		Rootfs: config.Rootfs, Mounts: config.Mounts, Devices: config.Devices, Proc: proc,
		Label:   config.MountLabel,
		Network: config.Namespaces.PathOf(configs.NEWNET), IPC: config.Namespaces.PathOf(configs.NEWIPC),
	}
	// libcontainer makes them too, but later. It, or who removes the container,
	// removes them. It cannot mount them in the new namespace: there it does not
	// see which version the host has.
	var err error
	if plan.Cgroups, err = r.makeCgroups(spec.Linux.CgroupsPath, config.Namespaces.Contains(configs.NEWCGROUP)); err != nil {
		return nil, err
	}
	space, err := r.Spaces.Make(plan)
	if err != nil {
		if r.Log != nil && !errors.Is(err, mountspace.ErrUnsuited) {
			r.Log.Debug("a container's mounts cannot be made ahead", "container", filepath.Base(spec.Linux.CgroupsPath), "error", err)
		}
		return nil, nil
	}
	config.Rootfs, config.Mounts, config.Devices = r.Spaces.Root(), space.Left, nil
	config.Namespaces.Add(configs.NEWNS, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), space.File.Fd()))
	return space, nil
}

// suited tells whether nothing about the container is out of the ordinary for
// who makes its mounts.
func suited(spec *specs.Spec, config *configs.Config) bool {
	return spec.Linux.RootfsPropagation == "" &&
		!config.Namespaces.Contains(configs.NEWUSER) && config.Namespaces.IsPrivate(configs.NEWNS) && len(config.Hooks) == 0
}

// makeCgroups makes a container's cgroups and says where what it is to see of them
// is: of the unified hierarchy its own cgroup if it has a namespace of its own, as
// it would see it by mounting the hierarchy there, else all of it.
func (r *Runner) makeCgroups(path string, own bool) ([]mountspace.Hierarchy, error) {
	if r.Cgroups.Unified() {
		if !own {
			return []mountspace.Hierarchy{{Dir: r.Cgroups.Dir("", "/")}}, nil
		}
		if err := r.Cgroups.Create(path, cgroup.Resources{}); err != nil {
			return nil, fmt.Errorf("making the container's cgroup: %w", err)
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
			return nil, fmt.Errorf("making the container's cgroup: %w", err)
		}
		list[i] = mountspace.Hierarchy{Name: filepath.Base(points[i]), Dir: dir}
	}
	return list, nil
}
