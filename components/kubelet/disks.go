package kubelet

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/eviction"
)

// disks knows where the runtime keeps images and what containers write. Its
// methods are safe for several goroutines.
type disks struct {
	// root is where pods have theirs, own where this project's runtime keeps
	// everything.
	root, own string
	// ask asks a runtime of somebody else's; nil when it is this project's.
	ask func(context.Context) (*runtimeapi.ImageFsInfoResponse, error)

	mu                 sync.Mutex // guards what follows, which is asked for once
	images, containers string
}

// newDisks asks any runtime but this project's, which is where Layout says.
func (k *Kubelet) newDisks() *disks {
	d := &disks{root: k.cfg.Layout.Kubelet, own: k.cfg.Layout.Data}
	if strings.TrimPrefix(k.cfg.Endpoint, "unix://") != k.cfg.Layout.RuntimeSocket() {
		d.ask = func(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
			return k.cri.Images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
		}
	}
	return d
}

// paths are one on the file system of images and one on that of what containers
// write.
func (d *disks) paths(ctx context.Context) (images, containers string, err error) {
	if d.ask == nil {
		return d.own, d.own, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.images != "" {
		return d.images, d.containers, nil
	}
	info, err := d.ask(ctx)
	if err != nil {
		return "", "", fmt.Errorf("asking the runtime where images are: %w", err)
	}
	first := func(list []*runtimeapi.FilesystemUsage) string {
		if len(list) == 0 {
			return ""
		}
		return list[0].GetFsId().GetMountpoint()
	}
	if images = first(info.GetImageFilesystems()); images == "" {
		images = d.own
	}
	if containers = first(info.GetContainerFilesystems()); containers == "" {
		containers = images
	}
	d.images, d.containers = images, containers
	return images, containers, nil
}

// apart tells which of the file systems are not the same.
func (d *disks) apart(ctx context.Context) (eviction.Disks, error) {
	images, containers, err := d.paths(ctx)
	if err != nil {
		return eviction.Disks{}, err
	}
	var devices []uint64
	for _, path := range []string{d.root, images, containers} {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			return eviction.Disks{}, fmt.Errorf("looking which file system %s is on: %w", path, err)
		}
		devices = append(devices, st.Dev)
	}
	return eviction.Disks{Images: devices[1] != devices[0] || devices[2] != devices[1], Layers: devices[2] != devices[1]}, nil
}

// imagesOn is a path on the file system of images; empty when nobody knows.
func (d *disks) imagesOn() string {
	images, _, err := d.paths(context.Background())
	if err != nil {
		return ""
	}
	return images
}
