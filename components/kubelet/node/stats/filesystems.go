package stats

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// FileSystems finds the file systems on which the runtime stores images and the writable layers of
// containers. Its methods are safe for concurrent use.
type FileSystems struct {
	// root is the kubelet's root directory. dataDir is the data directory of this project's runtime.
	root, dataDir string
	images        runtimeapi.ImageServiceClient // nil if all files are in dataDir

	mu                       sync.Mutex // guards the following fields, which are cached
	imagePath, containerPath string
}

// NewFileSystems returns the FileSystems of a node. root is the kubelet's root directory. images is the image
// service of the runtime, or nil if the runtime keeps all files in dataDir.
func NewFileSystems(root, dataDir string, images runtimeapi.ImageServiceClient) *FileSystems {
	return &FileSystems{root: root, dataDir: dataDir, images: images}
}

// Paths returns a path on the file system of images and one on that of writable layers, as the runtime reports
// them. They default to the data directory of this project's runtime. The result of the runtime is cached. It
// returns an error if the runtime does not respond.
func (d *FileSystems) Paths(ctx context.Context) (images, containers string, err error) {
	if d.images == nil {
		return d.dataDir, d.dataDir, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.imagePath != "" {
		return d.imagePath, d.containerPath, nil
	}
	info, err := d.images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		return "", "", fmt.Errorf("getting image file system from runtime: %w", err)
	}
	first := func(list []*runtimeapi.FilesystemUsage) string {
		if len(list) == 0 {
			return ""
		}
		return list[0].GetFsId().GetMountpoint()
	}
	if images = first(info.GetImageFilesystems()); images == "" {
		images = d.dataDir
	}
	if containers = first(info.GetContainerFilesystems()); containers == "" {
		containers = images
	}
	d.imagePath, d.containerPath = images, containers
	return images, containers, nil
}

// Compare reports which of the file systems differ: images is true if the runtime's files are not all on the
// file system of the kubelet's root directory, and layers is true if writable layers are not on the file
// system of images.
func (d *FileSystems) Compare(ctx context.Context) (images, layers bool, err error) {
	imagePath, containerPath, err := d.Paths(ctx)
	if err != nil {
		return false, false, err
	}
	var devices []uint64
	for _, path := range []string{d.root, imagePath, containerPath} {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			return false, false, fmt.Errorf("getting file system of %s: %w", path, err)
		}
		devices = append(devices, st.Dev)
	}
	return devices[1] != devices[0] || devices[2] != devices[1], devices[2] != devices[1], nil
}

// ImagePath returns a path on the file system of images, or "" if it is unknown.
func (d *FileSystems) ImagePath() string {
	images, _, err := d.Paths(context.Background())
	if err != nil {
		return ""
	}
	return images
}
