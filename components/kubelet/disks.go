package kubelet

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/node/eviction"
)

// disks determines the file systems on which the runtime stores images and containers' writable
// layers. Its methods are safe for concurrent use.
type disks struct {
	// root is the kubelet's root directory. own is the data directory of this project's runtime.
	root, dataDir string
	// imageFsInfo calls ImageFsInfo of another runtime. It is nil for this project's runtime.
	imageFsInfo func(context.Context) (*runtimeapi.ImageFsInfoResponse, error)

	mu                 sync.Mutex // guards the following fields, which are cached
	images, containers string
}

// newDisks returns disks. Only for a runtime other than this project's it calls ImageFsInfo; this
// project's runtime uses the directory of Layout.
func (k *Kubelet) newDisks() *disks {
	d := &disks{root: k.cfg.Layout.Kubelet, dataDir: k.cfg.Layout.Data}
	if strings.TrimPrefix(k.cfg.Runtime.Endpoint, "unix://") != k.cfg.Layout.RuntimeSocket() {
		d.imageFsInfo = func(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
			return k.cri.Images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
		}
	}
	return d
}

// paths returns a path on the file system of images and one on that of writable layers.
func (d *disks) paths(ctx context.Context) (images, containers string, err error) {
	if d.imageFsInfo == nil {
		return d.dataDir, d.dataDir, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.images != "" {
		return d.images, d.containers, nil
	}
	info, err := d.imageFsInfo(ctx)
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
	d.images, d.containers = images, containers
	return images, containers, nil
}

// compare reports which of the file systems differ from each other.
func (d *disks) compare(ctx context.Context) (eviction.Disks, error) {
	images, containers, err := d.paths(ctx)
	if err != nil {
		return eviction.Disks{}, err
	}
	var devices []uint64
	for _, path := range []string{d.root, images, containers} {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			return eviction.Disks{}, fmt.Errorf("getting file system of %s: %w", path, err)
		}
		devices = append(devices, st.Dev)
	}
	return eviction.Disks{Images: devices[1] != devices[0] || devices[2] != devices[1], Layers: devices[2] != devices[1]}, nil
}

// imagePath returns a path on the file system of images, or "" if it is unknown.
func (d *disks) imagePath() string {
	images, _, err := d.paths(context.Background())
	if err != nil {
		return ""
	}
	return images
}
