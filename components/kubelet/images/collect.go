package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/telemetry"
)

// Collector removes images that nobody uses when the disk fills: the one used
// longest ago first, never a pinned one. It is safe for several goroutines.
type Collector struct {
	CRI *cri.Client
	// High and Low are percentages of the disk at Path: above High images go
	// until it is at Low.
	High, Low int
	// MinAge is how long an image has been known before it may go; MaxAge how
	// long it stays unused though there is room, 0: for ever.
	MinAge, MaxAge time.Duration
	// Records forget images that are gone; may be nil.
	Records *Records
	// Path is on the images' file system, unless the runtime names another.
	Path string
	Log  *slog.Logger
	// Metrics counts what is removed; may be nil.
	Metrics *telemetry.Metrics

	measure func(path string, to *unix.Statfs_t) error // nil: as the kernel does

	mu   sync.Mutex // held while it looks; guards seen
	seen map[string]seen
}

type seen struct{ first, used time.Time }

// Note looks which images there are and which are used, and removes none.
func (c *Collector) Note(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _, err := c.look(ctx)
	return err
}

// Collect looks once. With all every unused image goes that is old enough, as when
// the disk is too full for pods.
func (c *Collector) Collect(ctx context.Context, all bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	began := time.Now()
	list, used, err := c.look(ctx)
	if err != nil {
		return err
	}
	if c.Records != nil {
		if err := c.Records.Keep(list, began); err != nil {
			c.Log.Warn("forgetting how images were pulled that are gone failed", "error", err)
		}
	}
	list, old := c.expired(ctx, list, used)
	capacity, taken, err := c.disk(ctx)
	if err != nil {
		return errors.Join(err, old)
	}
	if capacity == 0 {
		return errors.Join(ErrNoCapacity, old)
	}
	if !all && (percent(capacity, taken) < int64(c.High) || c.neverFull()) {
		return old
	}
	goal := taken - capacity*int64(c.Low)/100
	if all {
		goal = capacity
	}
	var errs []error
	var freed int64
	for _, i := range c.idle(list, used, time.Now()) {
		if goal <= 0 {
			break
		}
		if _, err := c.CRI.Images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: i.Id}}); err != nil {
			errs = append(errs, fmt.Errorf("removing image %s: %w", i.Id, err))
			continue
		}
		c.Metrics.ImageCollected(false)
		c.Log.Info("removed an unused image", "image", i.RepoTags, "bytes", i.Size)
		goal -= int64(i.Size)
		freed += int64(i.Size)
	}
	if goal > 0 && !all && len(errs) == 0 {
		errs = append(errs, fmt.Errorf("%w (%d%% of %s used). "+ //nolint:staticcheck // as ErrFull
			"Failed to free sufficient space by deleting unused images (freed %d bytes). "+
			"Investigate disk usage, as it could be used by active images, logs, volumes, or other data.", ErrFull, percent(capacity, taken), size(capacity), freed))
	}
	return errors.Join(append(errs, old)...)
}

// percent is how full a disk is. A part of a percent counts as a whole one.
func percent(capacity, taken int64) int64 { return 100 - (capacity-taken)*100/capacity }

// neverFull tells whether images are left alone however full the disk is, until pods have
// no room.
func (c *Collector) neverFull() bool { return c.High >= 100 && c.MaxAge == 0 }

// disk measures that of the images, in bytes.
func (c *Collector) disk(ctx context.Context) (capacity, taken int64, err error) {
	path := c.Path
	if fs, err := c.CRI.Images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{}); err == nil && len(fs.ImageFilesystems) > 0 {
		if p := fs.ImageFilesystems[0].GetFsId().GetMountpoint(); p != "" {
			path = p
		}
	}
	measure := c.measure
	if measure == nil {
		measure = unix.Statfs
	}
	var st unix.Statfs_t
	if err := measure(path, &st); err != nil {
		return 0, 0, fmt.Errorf("measuring the images' disk: %w", err)
	}
	capacity = int64(st.Blocks) * st.Bsize
	return capacity, capacity - int64(st.Bavail)*st.Bsize, nil
}

// idle are the images of list that may go, in the order in which they do.
func (c *Collector) idle(list []*runtimeapi.Image, used map[string]bool, now time.Time) []*runtimeapi.Image {
	var idle []*runtimeapi.Image
	for _, i := range list {
		// One that has just come is for a container that is not there yet.
		if !i.Pinned && !used[i.Id] && now.Sub(c.seen[i.Id].first) >= c.MinAge {
			idle = append(idle, i)
		}
	}
	slices.SortStableFunc(idle, func(a, b *runtimeapi.Image) int {
		x, y := c.seen[a.Id], c.seen[b.Id]
		return cmp.Or(x.used.Compare(y.used), x.first.Compare(y.first))
	})
	return idle
}

// ErrNoCapacity is that the disk says that it has no room at all, for which nobody
// can tell how full it is.
var ErrNoCapacity = errors.New("invalid capacity 0 on image filesystem")

// ErrFull is that nothing more can be done for a disk that is too full.
//
//nolint:staticcheck // upstream's words, shown in events
var ErrFull = errors.New("Insufficient free disk space on the node's image filesystem")

// size is a number of bytes for people.
func size(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, prefix := float64(n)/unit, 0
	for ; value >= unit && prefix < 5; prefix++ {
		value /= unit
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGTPE"[prefix])
}

// expired removes what nobody has used for longer than MaxAge, and returns what of list
// is left.
func (c *Collector) expired(ctx context.Context, list []*runtimeapi.Image, used map[string]bool) ([]*runtimeapi.Image, error) {
	if c.MaxAge <= 0 {
		return list, nil
	}
	var left []*runtimeapi.Image
	var errs []error
	now := time.Now()
	for _, i := range list {
		s := c.seen[i.Id]
		last := s.used
		if last.IsZero() {
			last = s.first
		}
		if i.Pinned || used[i.Id] || now.Sub(last) < c.MaxAge {
			left = append(left, i)
			continue
		}
		if _, err := c.CRI.Images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: i.Id}}); err != nil {
			left = append(left, i)
			errs = append(errs, fmt.Errorf("removing image %s: %w", i.Id, err))
			continue
		}
		c.Metrics.ImageCollected(true)
		c.Log.Info("removed an image that was long not used", "image", i.RepoTags, "bytes", i.Size)
	}
	return left, errors.Join(errs...)
}

// mounted adds the images to refs that are volumes of a container.
func (c *Collector) mounted(ctx context.Context, id string, refs map[string]bool) error {
	resp, err := c.CRI.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if cri.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("asking for what a container has mounted: %w", err)
	}
	for _, m := range resp.GetStatus().GetMounts() {
		// It is named as the pod names it, which is not how images are listed.
		ref := m.GetImage().GetImage()
		if ref == "" || refs[ref] {
			continue
		}
		image, err := c.CRI.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
		if err != nil {
			return fmt.Errorf("asking for the image of a volume: %w", err)
		}
		refs[ref], refs[image.GetImage().GetId()] = true, true
	}
	return nil
}

// look notes which images there are and which are used.
func (c *Collector) look(ctx context.Context) ([]*runtimeapi.Image, map[string]bool, error) {
	resp, err := c.CRI.Images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return nil, nil, fmt.Errorf("listing images: %w", err)
	}
	containers, err := c.CRI.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, nil, fmt.Errorf("listing containers: %w", err)
	}
	refs := map[string]bool{}
	for _, x := range containers.Containers {
		refs[x.ImageRef], refs[x.ImageId], refs[x.GetImage().GetImage()] = true, true, true
		if err := c.mounted(ctx, x.Id, refs); err != nil {
			return nil, nil, err
		}
	}
	now := time.Now()
	fresh := map[string]seen{}
	used := map[string]bool{}
	for _, i := range resp.Images {
		s, ok := c.seen[i.Id]
		if !ok {
			s.first = now
		}
		if refs[i.Id] || slices.ContainsFunc(i.RepoTags, func(t string) bool { return refs[t] }) ||
			slices.ContainsFunc(i.RepoDigests, func(d string) bool { return refs[d] }) {
			used[i.Id], s.used = true, now
		}
		fresh[i.Id] = s
	}
	c.seen = fresh
	return resp.Images, used, nil
}
