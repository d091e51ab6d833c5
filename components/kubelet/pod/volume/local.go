package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	v1 "k8s.io/api/core/v1"

	"hyperkube/internal/pod/localpath"
)

// Local is the PersistentType of local PersistentVolumes: directories or block devices of the node.
type Local struct {
	// Root is the directory of the volumes of the built-in provisioner. Such a volume is a directory that
	// SetUpPersistent creates.
	Root string
	// Warn records a warning event for a pod; it may be nil.
	Warn func(pod *v1.Pod, reason, message string)
	// WarnVolume records a warning event for a volume; it may be nil.
	WarnVolume func(pv *v1.PersistentVolume, reason, message string)
}

// slowChangeReporter returns a function that emits an event that changing the group of the pod's volume takes
// long, or nil if Warn is nil.
func (t Local) slowChangeReporter(pod *v1.Pod) func(message string) {
	if t.Warn == nil {
		return nil
	}
	return func(message string) { t.Warn(pod, "VolumePermissionChangeInProgress", message) }
}

// Name returns the name of the directory of local volumes in a pod's volumes directory.
func (Local) Name() string { return "kubernetes.io~local-volume" }

// IsPersistent reports whether pv is a local volume.
func (Local) IsPersistent(pv *v1.PersistentVolume) bool { return pv.Spec.Local != nil }

// SetUpPersistent checks a directory, which the pod uses at its original path, or mounts a block device in the
// pod's directory and formats it if it is empty and not read-only. On first use it changes the group to the
// pod's fsGroup, unless the volume is read-only or another pod uses it. Directories of the built-in provisioner
// are created.
func (t Local) SetUpPersistent(ctx context.Context, r PersistentRequest) (Result, error) {
	path := r.PV.Spec.Local.Path
	if localpath.IsManaged(r.PV) && filepath.Dir(path) == filepath.Clean(t.Root) {
		if err := os.MkdirAll(t.Root, 0o700); err != nil {
			return Result{}, fmt.Errorf("creating the directory of local volumes: %w", err)
		}
		if _, err := makeDir(path); err != nil {
			return Result{}, err
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		return Result{}, fmt.Errorf("path %q does not exist: %w", path, err)
	}
	if isBlock(info) {
		if err := r.makeDir(); err != nil {
			return Result{}, err
		}
		fsType := ""
		if t := r.PV.Spec.Local.FSType; t != nil {
			fsType = *t
		}
		if err := MountDevice(ctx, path, r.Dir, fsType, r.PV.Spec.MountOptions, r.ReadOnly); err != nil {
			var other *contentMismatchError
			unlike := errors.As(err, &other)
			err = fmt.Errorf("local: failed to mount device %s at %s (fstype: %s), error %w", path, r.Dir, fsType, err)
			if unlike && t.WarnVolume != nil {
				t.WarnVolume(r.PV, "FailedMountOnFilesystemMismatch", fmt.Sprintf("MountVolume failed for volume %q %s", r.PV.Name, err))
			}
			return Result{}, &Failure{Operation: "MountVolume.MountDevice", Volume: r.PV.Name, Err: err}
		}
		path = r.Dir
	} else if !info.IsDir() {
		return Result{}, fmt.Errorf("only directory and block device are supported: %q is neither", path)
	}
	// An earlier attempt may have mounted the device in the pod's directory before the change of
	// the group failed.
	if group := FSGroup(r.Pod); group != nil && !r.ReadOnly && (r.Fresh || path == r.Dir && lacksGroup(path)) {
		if err := t.changeGroup(r, path, *group); err != nil {
			return Result{}, err
		}
	}
	if err := r.makeDir(); err != nil {
		return Result{}, err
	}
	return Result{Path: path, Relabel: !r.ReadOnly}, nil
}

// changeGroup changes the group of the volume at path to group, the pod's fsGroup. If another pod uses the
// volume, it changes nothing and only emits a warning event if the group of path is another one.
func (t Local) changeGroup(r PersistentRequest, path string, group int64) error {
	used, err := usedByOtherPod(filepath.Dir(filepath.Dir(r.Dir)), t.Name(), r.PV)
	if err != nil {
		return err
	}
	if !used {
		return ChangeGroup(r.Pod, path, group, t.slowChangeReporter(r.Pod))
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("failed to check fsGroup for %s (%w)", path, err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int64(st.Gid) != group && t.Warn != nil {
		t.Warn(r.Pod, "AlreadyMountedVolume", fmt.Sprintf("The requested fsGroup is %d, but the volume %s has GID %d. The volume may not be shareable.", group, r.PV.Name, st.Gid))
	}
	return nil
}

// SetUpBlock returns the block device of the volume.
func (Local) SetUpBlock(_ context.Context, r PersistentRequest) (Result, error) {
	return r.device(r.PV.Spec.Local.Path)
}

// device returns a Result with the block device of the host at path, with links resolved, and creates the
// pod's directory for the volume. It returns an error if path is not a block device.
func (r PersistentRequest) device(path string) (Result, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return Result{}, fmt.Errorf("path %q does not exist: %w", path, err)
	}
	info, err := os.Stat(real)
	if err != nil {
		return Result{}, fmt.Errorf("path %q does not exist: %w", path, err)
	}
	if !isBlock(info) {
		return Result{}, fmt.Errorf("%q is not a block device", path)
	}
	if err := r.makeDir(); err != nil {
		return Result{}, err
	}
	return Result{Device: real}, nil
}

func isBlock(info os.FileInfo) bool {
	return info.Mode()&os.ModeDevice != 0 && info.Mode()&os.ModeCharDevice == 0
}

// IsPersistent reports whether pv has a hostPath.
func (HostPath) IsPersistent(pv *v1.PersistentVolume) bool { return pv.Spec.HostPath != nil }

// SetUpPersistent checks the type of the path like SetUp. If the PersistentVolume specifies no type and the
// path does not exist, it creates a directory.
func (HostPath) SetUpPersistent(_ context.Context, r PersistentRequest) (Result, error) {
	src := r.PV.Spec.HostPath
	kind := v1.HostPathUnset
	if src.Type != nil {
		kind = *src.Type
	}
	if err := checkHostPath(src.Path, kind); err != nil {
		return Result{}, err
	}
	if _, err := os.Stat(src.Path); errors.Is(err, os.ErrNotExist) {
		// The runtime would create it, but a subPath is resolved before that.
		if err := os.MkdirAll(src.Path, 0o755); err != nil {
			return Result{}, fmt.Errorf("creating the host path: %w", err)
		}
	}
	if err := r.makeDir(); err != nil {
		return Result{}, err
	}
	return Result{Path: src.Path}, nil
}
