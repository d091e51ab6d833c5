package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Failure is the error of an operation on a volume, with the text of upstream's events.
type Failure struct {
	// Operation is upstream's name of the operation, for example "MountVolume.SetUp". It may end with how the
	// operation failed.
	Operation string
	// Volume is the name of the PersistentVolume or, for other volumes, that of the pod's volume.
	Volume string
	Err    error
}

// Error returns the message of the event with the cause Err.
func (f *Failure) Error() string {
	return f.Text(f.Err.Error())
}

// Text returns the message of the event about the failed operation, in which why is the cause.
func (f *Failure) Text(why string) string {
	what := f.Operation
	if !strings.Contains(what, " failed") {
		what += " failed"
	}
	return fmt.Sprintf("%s for volume %q : %s", what, f.Volume, why)
}

func (f *Failure) Unwrap() error { return f.Err }

// ErrAttachLimit means that a volume was not attached because the node has reached the driver's
// maximum number of volumes. The pod is rejected, so that it runs on another node.
var ErrAttachLimit = errors.New("the node has reached its volume attachment limit")

// TearDownRequest is a request to tear down a volume of a terminated pod.
type TearDownRequest struct {
	UID types.UID
	// Dir is the pod's directory of the volume.
	Dir string
}

// TearDowner is a type of volume whose teardown requires more than unmounting what is mounted below
// the pod's directory.
type TearDowner interface {
	// Name is the name of the type.
	Name() string
	// TearDown tears down one volume. It is idempotent and is called until it succeeds; the volume's
	// directory is not removed before.
	TearDown(ctx context.Context, r TearDownRequest) error
}

// mountsDir and devicesDir are the subdirectories of a pod's directory that contain its mounted volumes and its
// block volumes, by type and name.
const (
	mountsDir  = "volumes"
	devicesDir = "volumeDevices"
)

// TearDown reverts the setup of all volumes of a terminated pod: it tears down the volumes by type, unmounts
// what else is mounted below the pod's directory, and removes the directory. It is idempotent, and removes
// nothing while a mount remains. The caller retries after an error.
func (s *Set) TearDown(ctx context.Context, uid types.UID) error {
	dir := s.PodDir(uid)
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	began, made := time.Now(), s.foundVolumes(dir)
	// These are mounts of volumes, which could not be unmounted otherwise.
	if err := unmountBelow(filepath.Join(dir, "volume-subpaths")); err != nil {
		return err
	}
	var errs []error
	for _, t := range s.tearDowners() {
		for _, kind := range []string{mountsDir, devicesDir} {
			parent := filepath.Join(dir, kind, t.Name())
			entries, err := os.ReadDir(parent)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("listing the pod's volumes: %w", err)
			}
			for _, e := range entries {
				errs = append(errs, t.TearDown(ctx, TearDownRequest{UID: uid, Dir: filepath.Join(parent, e.Name())}))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := unmountBelow(dir); err != nil {
		return err
	}
	for _, v := range made {
		s.Metrics.VolumeOperation(v.plugin, v.operation, time.Since(began), nil)
	}
	return removeTree(dir)
}

// foundVolume is a volume in a pod's directory: the names of its plugin and its teardown operation in
// metrics.
type foundVolume struct{ plugin, operation string }

// foundVolumes returns the volumes, including block volumes, in the pod's directory dir, for metrics.
// Directories that cannot be read are omitted.
func (s *Set) foundVolumes(dir string) []foundVolume {
	var out []foundVolume
	for name, operation := range map[string]string{mountsDir: "volume_unmount", devicesDir: "unmap_volume"} {
		plugins, err := os.ReadDir(filepath.Join(dir, name))
		if err != nil {
			continue // not counted
		}
		for _, p := range plugins {
			list, err := os.ReadDir(filepath.Join(dir, name, p.Name()))
			if err != nil {
				continue
			}
			for range list {
				out = append(out, foundVolume{pluginName(p.Name(), ""), operation})
			}
		}
	}
	return out
}

// tearDowners returns the types and the persistent types of s that are TearDowners, only the first of each
// name.
func (s *Set) tearDowners() []TearDowner {
	var out []TearDowner
	seen := map[string]bool{}
	add := func(t any) {
		if d, ok := t.(TearDowner); ok && !seen[d.Name()] {
			seen[d.Name()] = true
			out = append(out, d)
		}
	}
	for _, t := range s.Types {
		add(t)
		if c, ok := t.(Claim); ok {
			for _, p := range c.Types {
				add(p)
			}
		}
	}
	return out
}
