// Package housekeeping does periodic tasks of the node: it rotates logs and removes exited containers and unused
// images.
package housekeeping

import (
	"context"
	"errors"
	"log/slog"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/pod/images"
	"hyperkube/components/kubelet/pod/podlogs"
)

// imageGCInterval is the period in which unused images and logs of deleted pods are removed: neither the
// kernel nor the runtime has events for that.
const (
	imageGCInterval = 5 * time.Minute
	// busyRotationInterval is the interval of log rotation while a log grows fast. It exceeds a second because
	// the names of rotated logs have a resolution of a second.
	busyRotationInterval = 1100 * time.Millisecond
)

// Containers rotates logs, and removes exited containers and the logs of pods that were deleted.
type Containers interface {
	// Collect rotates logs and removes exited containers. It reports whether a log was rotated, so that it
	// must be called again soon.
	Collect(ctx context.Context, rotation podlogs.Rotation) (rotated bool, err error)
	// RemoveOrphanedLogs removes the logs of deleted pods. All pods of the node must be known.
	RemoveOrphanedLogs() error
}

// Housekeeper periodically rotates logs and removes exited containers, unused images and logs of deleted
// pods. All fields are required unless their comment says otherwise.
type Housekeeper struct {
	Containers Containers
	Images     *images.Collector
	// Records are the records of image pulls. They may be nil.
	Records *images.Records
	// ImageService is the runtime's image service.
	ImageService runtimeapi.ImageServiceClient
	// Interval is the period in which log sizes are checked.
	Interval time.Duration
	Rotation podlogs.Rotation
	// PodsKnown reports whether all sources have delivered their pods.
	PodsKnown func() bool
	// Warn emits a Warning event for the node.
	Warn func(reason, message string)
	Log  *slog.Logger
}

// Run does the periodic tasks until ctx is done. Failures are logged and retried in the next period; those of
// removing containers and images are also reported as events of the node. The error is always nil.
func (h *Housekeeper) Run(ctx context.Context) error {
	ticker := time.NewTicker(h.Interval)
	defer ticker.Stop()
	// The age of unused images counts from now.
	if err := h.Images.Observe(ctx); err != nil && ctx.Err() == nil {
		h.Log.Warn("listing images at the start of the kubelet failed; their unused time counts only from the first image garbage collection, so unused images are removed later", "err", err)
	}
	if r := h.Records; r != nil {
		if err := r.Recover(ctx, h.ImageService); err != nil && ctx.Err() == nil {
			h.Log.Warn("processing image pulls that the last stop of the kubelet interrupted failed; pods must present pull credentials for these images until the images are pulled again, retrying at the next start of the kubelet", "err", err)
		}
	}
	var lastImages time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			rotated, err := h.Containers.Collect(ctx, h.Rotation)
			if err != nil && ctx.Err() == nil {
				h.Log.Warn("rotating container logs or removing exited containers failed; they use disk space until a retry succeeds, retrying after the interval", "interval", h.Interval, "err", err)
				h.Warn("ContainerGCFailed", err.Error())
			}
			next := h.Interval
			if rotated {
				next = min(next, busyRotationInterval)
			}
			ticker.Reset(next)
			if now.Sub(lastImages) >= imageGCInterval {
				lastImages = now
				if h.PodsKnown() {
					if err := h.Containers.RemoveOrphanedLogs(); err != nil {
						h.Log.Warn("removing container logs of deleted pods failed; they use disk space until a retry succeeds, retrying in 5 minutes", "err", err)
					}
				}
				if err := h.Images.Collect(ctx, false); err != nil && ctx.Err() == nil {
					h.Log.Warn("removing unused images failed; they use disk space until a retry succeeds, retrying in 5 minutes", "err", err)
					switch {
					case errors.Is(err, images.ErrFull):
						h.Warn("FreeDiskSpaceFailed", err.Error())
					case errors.Is(err, images.ErrNoCapacity):
						h.Warn("InvalidDiskCapacity", err.Error())
					}
					h.Warn("ImageGCFailed", err.Error())
				}
			}
		}
	}
}
