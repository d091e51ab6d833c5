package volume

import (
	"context"
	"errors"
	"fmt"
	"os"

	v1 "k8s.io/api/core/v1"

	"hyperkube/internal/host/layout"
)

// HostPath is the Type of hostPath volumes, and the PersistentType of PersistentVolumes with a hostPath:
// paths of the node, which containers use directly.
type HostPath struct {
	// Aliases map the paths that pods use for directories of the node to the actual ones. The first one that applies is used.
	Aliases []layout.Alias
}

// Name returns the name of the directory of hostPath volumes in a pod's volumes directory.
func (HostPath) Name() string { return "kubernetes.io~host-path" }

// Is reports whether v is a hostPath volume.
func (HostPath) Is(v *v1.Volume) bool { return v.HostPath != nil }

// SetUp returns the path of the node. It checks the type of the path, or creates the path if the volume's type
// is DirectoryOrCreate or FileOrCreate. Without a type, it does not even check that the path exists.
func (t HostPath) SetUp(_ context.Context, r Request) (Result, error) {
	path := r.Volume.HostPath.Path
	for _, a := range t.Aliases {
		if actual := a.ToActual(path); actual != path {
			path = actual
			break
		}
	}
	kind := v1.HostPathUnset
	if r.Volume.HostPath.Type != nil {
		kind = *r.Volume.HostPath.Type
	}
	if err := checkHostPath(path, kind); err != nil {
		return Result{}, err
	}
	return Result{Path: path}, nil
}

// checkHostPath checks that the path is of the type that the pod expects, or creates it if the type permits.
// With the empty type it checks nothing.
func checkHostPath(path string, kind v1.HostPathType) error {
	if kind == v1.HostPathUnset {
		return nil
	}
	have, err := hostPathType(path)
	expected := hostPathNames[kind]
	switch {
	case expected == "":
		return fmt.Errorf("%s is an invalid volume type", kind)
	case errors.Is(err, os.ErrNotExist) && kind == v1.HostPathDirectoryOrCreate:
		if err := os.MkdirAll(path, 0o755); err != nil {
			return fmt.Errorf("creating the host path: %w", err)
		}
		return nil
	case errors.Is(err, os.ErrNotExist) && kind == v1.HostPathFileOrCreate:
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o644)
		if err != nil {
			return fmt.Errorf("creating the host path: %w", err)
		}
		return f.Close()
	case errors.Is(err, os.ErrNotExist):
		err = &notFoundError{path}
	}
	if err != nil {
		return fmt.Errorf("hostPath type check failed, %s is not a %s, unable to determine its type: %w", path, expected, err)
	}
	if hostPathNames[have] != expected {
		return fmt.Errorf("hostPath type check failed: %s is not a %s, it's a %s", path, expected, have)
	}
	return nil
}

// hostPathNames are the names of the types in upstream's messages.
var hostPathNames = map[v1.HostPathType]string{
	v1.HostPathDirectoryOrCreate: "directory", v1.HostPathDirectory: "directory", v1.HostPathFileOrCreate: "file", v1.HostPathFile: "file",
	v1.HostPathSocket: "socket file", v1.HostPathCharDev: "character device", v1.HostPathBlockDev: "block device",
}

// hostPathType returns the type of an existing path. Its errors are those of os.Stat, or that the file has
// another type.
func hostPathType(path string) (v1.HostPathType, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	switch mode := info.Mode(); {
	case mode.IsDir():
		return v1.HostPathDirectory, nil
	case mode.IsRegular():
		return v1.HostPathFile, nil
	case mode&os.ModeSocket != 0:
		return v1.HostPathSocket, nil
	case mode&os.ModeCharDevice != 0:
		return v1.HostPathCharDev, nil
	case mode&os.ModeDevice != 0:
		return v1.HostPathBlockDev, nil
	}
	return "", errors.New("only recognise file, directory, socket, block device and character device")
}

// notFoundError is the error for a path that does not exist, with upstream's text. It wraps os.ErrNotExist.
type notFoundError struct{ path string }

func (a *notFoundError) Error() string { return fmt.Sprintf("path %q does not exist", a.path) }

func (*notFoundError) Unwrap() error { return os.ErrNotExist }
