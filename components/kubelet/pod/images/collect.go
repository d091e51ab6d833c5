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

// Collector removes unused images when the disk usage exceeds a threshold or they have been unused for too
// long. It starts with the least recently used image and never removes pinned images. It is safe for
// concurrent use.
type Collector struct {
	CRI *cri.Client
	// High and Low are percentages of the disk usage at Path: above High, images are removed until
	// the usage is at Low.
	High, Low int
	// MinAge is how long an image must be present before it may be removed. MaxAge is how long an
	// image may stay unused regardless of disk usage; 0 means forever.
	MinAge, MaxAge time.Duration
	// Records are the pull records, which are removed together with images. It may be nil.
	Records *Records
	// Path is a path on the file system of images, unless the runtime reports another one.
	Path string
	Log  *slog.Logger
	// Metrics counts removed images. It may be nil.
	Metrics *telemetry.Images

	measure func(path string, to *unix.Statfs_t) error // statfs by default

	mu sync.Mutex // held during an operation; guards seen
	// seen has the images that the runtime had in the last observation, by image ID.
	seen map[string]imageTimes
}

// imageTimes is when an image was first observed and when a container last used it; used is zero if no
// container has.
type imageTimes struct{ first, used time.Time }

// Observe records which images exist and which are in use, so that a later Collect has their ages. It removes
// no image.
func (c *Collector) Observe(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _, err := c.observe(ctx)
	return err
}

// Collect removes images that are older than MaxAge and, if the disk usage is above High, further images until
// it is at Low. If High is 100 and there is no MaxAge, it removes none. With all, as under disk pressure, it
// removes every unused image that is older than MinAge regardless of the disk usage. The error wraps ErrFull if
// too little could be removed, and is ErrNoCapacity if the size of the disk is unknown.
func (c *Collector) Collect(ctx context.Context, all bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	began := time.Now()
	list, used, err := c.observe(ctx)
	if err != nil {
		return err
	}
	if c.Records != nil {
		if err := c.Records.Prune(list, began); err != nil {
			c.Log.Warn("deleting ImagePulledRecord files of removed images failed; the files only use disk space, retrying at the next image garbage collection", "err", err)
		}
	}
	list, old := c.removeExpired(ctx, list, used)
	capacity, taken, err := c.diskUsage(ctx)
	if err != nil {
		return errors.Join(err, old)
	}
	if capacity == 0 {
		return errors.Join(ErrNoCapacity, old)
	}
	if !all && (percent(capacity, taken) < int64(c.High) || c.onlyUnderPressure()) {
		return old
	}
	goal := taken - capacity*int64(c.Low)/100
	if all {
		goal = capacity
	}
	var errs []error
	var freed int64
	for _, i := range c.removable(list, used, time.Now()) {
		if goal <= 0 {
			break
		}
		if _, err := c.CRI.Images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: i.Id}}); err != nil {
			errs = append(errs, fmt.Errorf("removing image %s: %w", i.Id, err))
			continue
		}
		c.Metrics.ImageCollected(false)
		c.Log.Info("unused image removed to free disk space", "image", i.RepoTags, "bytes", i.Size)
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

// percent returns the usage of a file system in percent, rounded up. capacity and taken are in bytes.
func percent(capacity, taken int64) int64 { return 100 - (capacity-taken)*100/capacity }

// onlyUnderPressure reports whether the configuration disables the removal of images except under disk
// pressure: High is 100 and there is no MaxAge.
func (c *Collector) onlyUnderPressure() bool { return c.High >= 100 && c.MaxAge == 0 }

// diskUsage returns the size and usage, in bytes, of the file system that the runtime reports for images,
// otherwise of that at Path.
func (c *Collector) diskUsage(ctx context.Context) (capacity, taken int64, err error) {
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
		return 0, 0, fmt.Errorf("getting statistics of the image file system: %w", err)
	}
	capacity = int64(st.Blocks) * st.Bsize
	return capacity, capacity - int64(st.Bavail)*st.Bsize, nil
}

// removable returns the images of list that are unused, not pinned and known to the kubelet for at least
// MinAge, least recently used first. used has the IDs of the images in use.
func (c *Collector) removable(list []*runtimeapi.Image, used map[string]bool, now time.Time) []*runtimeapi.Image {
	var idle []*runtimeapi.Image
	for _, i := range list {
		// The container of a recently pulled image may not exist yet.
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

// ErrNoCapacity is returned by Collect if the image file system reports a size of 0, so that its usage is
// unknown.
var ErrNoCapacity = errors.New("invalid capacity 0 on image filesystem")

// ErrFull is wrapped by the error of Collect if the disk usage is still above Low after all unused images
// were removed.
//
//nolint:staticcheck // upstream's words, shown in events
var ErrFull = errors.New("Insufficient free disk space on the node's image filesystem")

// size formats a number of bytes for messages.
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

// removeExpired removes images of list that have been unused for longer than MaxAge, and returns the
// remaining ones, including those whose removal failed. used has the IDs of the images in use.
func (c *Collector) removeExpired(ctx context.Context, list []*runtimeapi.Image, used map[string]bool) ([]*runtimeapi.Image, error) {
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
		c.Log.Info("unused image removed because it was unused for longer than imageMaximumGCAge", "image", i.RepoTags, "bytes", i.Size)
	}
	return left, errors.Join(errs...)
}

// addMounted adds the names and IDs of the images that the container id mounts as volumes to refs. A container
// that does not exist any more is no error.
func (c *Collector) addMounted(ctx context.Context, id string, refs map[string]bool) error {
	resp, err := c.CRI.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if cri.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("getting the mounts of a container: %w", err)
	}
	for _, m := range resp.GetStatus().GetMounts() {
		// The mount has the image name of the pod spec, which differs from the listed ID.
		ref := m.GetImage().GetImage()
		if ref == "" || refs[ref] {
			continue
		}
		image, err := c.CRI.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
		if err != nil {
			return fmt.Errorf("getting the image of a volume: %w", err)
		}
		refs[ref], refs[image.GetImage().GetId()] = true, true
	}
	return nil
}

// observe lists the images and updates c.seen, which has the times at which each image was first observed and last
// used. It returns the images and the IDs of those that containers use. The caller must hold mu.
func (c *Collector) observe(ctx context.Context) ([]*runtimeapi.Image, map[string]bool, error) {
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
		if err := c.addMounted(ctx, x.Id, refs); err != nil {
			return nil, nil, err
		}
	}
	now := time.Now()
	fresh := map[string]imageTimes{}
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
