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

// Failure is an error of one step of making one volume, as events tell of it.
type Failure struct {
	// Operation is as upstream's are called, e.g. MountVolume.SetUp, or says
	// that and how it failed.
	Operation string
	// Volume is the name of the persistent volume or of the pod's.
	Volume string
	Err    error
}

func (f *Failure) Error() string {
	return f.Text(f.Err.Error())
}

// Text is what is said of the failure when why is its cause.
func (f *Failure) Text(why string) string {
	what := f.Operation
	if !strings.Contains(what, " failed") {
		what += " failed"
	}
	return fmt.Sprintf("%s for volume %q : %s", what, f.Volume, why)
}

func (f *Failure) Unwrap() error { return f.Err }

// ErrAttachLimit is that a volume was not attached because the node takes no more
// of its driver's: the pod is refused, so that it runs elsewhere.
var ErrAttachLimit = errors.New("the node has reached its volume attachment limit")

// TearDownRequest is one volume of a pod that has ended.
type TearDownRequest struct {
	UID types.UID
	// Dir is the pod's own place for the volume.
	Dir string
}

// TearDowner is a type of volume for which more is to be taken back than what is
// mounted below the pod's directory.
type TearDowner interface {
	// Name is that of the type.
	Name() string
	// TearDown takes back one volume. It is idempotent, and called again until it
	// succeeds; nothing of the volume is touched before it has.
	TearDown(ctx context.Context, r TearDownRequest) error
}

// Folders of a pod's directory that have its volumes, by type and name.
const (
	mountsFolder  = "volumes"
	devicesFolder = "volumeDevices"
)

// TearDown takes back all that was made for a pod: its volumes by their types,
// whatever else is mounted below its directory, and the directory. It is
// idempotent, and removes nothing while a mount is left.
func (s *Set) TearDown(ctx context.Context, uid types.UID) error {
	dir := s.PodDir(uid)
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	began, made := time.Now(), s.made(dir)
	// They are of volumes, which could not be unmounted else.
	if err := unmountBelow(filepath.Join(dir, "volume-subpaths")); err != nil {
		return err
	}
	var errs []error
	for _, t := range s.tearDowners() {
		for _, kind := range []string{mountsFolder, devicesFolder} {
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
		s.Metrics.Stored(v.plugin, v.operation, time.Since(began), nil)
	}
	return removeTree(dir)
}

// madeVolume is one of which there is something in a pod's directory: what made it,
// and what taking it back is called.
type madeVolume struct{ plugin, operation string }

// made are the volumes of a pod's directory.
func (s *Set) made(dir string) []madeVolume {
	var out []madeVolume
	for folder, operation := range map[string]string{mountsFolder: "volume_unmount", devicesFolder: "unmap_volume"} {
		plugins, err := os.ReadDir(filepath.Join(dir, folder))
		if err != nil {
			continue // nothing is counted
		}
		for _, p := range plugins {
			list, err := os.ReadDir(filepath.Join(dir, folder, p.Name()))
			if err != nil {
				continue
			}
			for range list {
				out = append(out, madeVolume{pluginName(p.Name(), ""), operation})
			}
		}
	}
	return out
}

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
