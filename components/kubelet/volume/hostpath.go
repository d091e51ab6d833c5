package volume

import (
	"context"
	"errors"
	"fmt"
	"os"

	v1 "k8s.io/api/core/v1"

	"hyperkube/internal/layout"
)

// HostPath is a path of the node.
type HostPath struct {
	// Alias is by what path pods know the kubelet's root directory.
	Alias layout.Alias
}

// Name implements Type.
func (HostPath) Name() string { return "kubernetes.io~host-path" }

// Is implements Type.
func (HostPath) Is(v *v1.Volume) bool { return v.HostPath != nil }

// SetUp implements Type.
func (t HostPath) SetUp(_ context.Context, r Request) (Result, error) {
	path := t.Alias.Locate(r.Volume.HostPath.Path)
	kind := v1.HostPathUnset
	if r.Volume.HostPath.Type != nil {
		kind = *r.Volume.HostPath.Type
	}
	if err := checkHostPath(path, kind); err != nil {
		return Result{}, err
	}
	return Result{Path: path}, nil
}

func checkHostPath(path string, kind v1.HostPathType) error {
	info, err := os.Stat(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("hostPath type check failed: %w", err)
	}
	exists := err == nil
	fail := func(what string) error { return fmt.Errorf("hostPath type check failed: %s is not a %s", path, what) }
	switch kind {
	case v1.HostPathUnset:
		return nil
	case v1.HostPathDirectoryOrCreate:
		if !exists {
			if err := os.MkdirAll(path, 0o755); err != nil {
				return fmt.Errorf("making the host path: %w", err)
			}
			return nil
		}
		if !info.IsDir() {
			return fail("directory")
		}
	case v1.HostPathDirectory:
		if !exists || !info.IsDir() {
			return fail("directory")
		}
	case v1.HostPathFileOrCreate:
		if !exists {
			f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o644)
			if err != nil {
				return fmt.Errorf("making the host path: %w", err)
			}
			return f.Close()
		}
		if !info.Mode().IsRegular() {
			return fail("file")
		}
	case v1.HostPathFile:
		if !exists || !info.Mode().IsRegular() {
			return fail("file")
		}
	case v1.HostPathSocket:
		if !exists || info.Mode()&os.ModeSocket == 0 {
			return fail("socket file")
		}
	case v1.HostPathCharDev:
		if !exists || info.Mode()&os.ModeCharDevice == 0 {
			return fail("character device")
		}
	case v1.HostPathBlockDev:
		if !exists || info.Mode()&os.ModeDevice == 0 || info.Mode()&os.ModeCharDevice != 0 {
			return fail("block device")
		}
	default:
		return fmt.Errorf("%s is an invalid volume type", kind)
	}
	return nil
}
