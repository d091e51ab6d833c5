package kubelet

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/node/nodestatus"
	"hyperkube/components/kubelet/pod/images"
	"hyperkube/components/kubelet/pod/podlogs"
	"hyperkube/components/kubelet/pod/volume"
)

// Intervals of periodic tasks for which neither the kernel nor the runtime has events.
const (
	imageGCInterval = 5 * time.Minute
	// busyRotationInterval is the interval of log rotation while a log grows fast. It exceeds a second because
	// the names of rotated logs have a resolution of a second.
	busyRotationInterval = 1100 * time.Millisecond
)

// housekeep rotates logs and removes exited containers and unused images.
func (k *Kubelet) housekeep(ctx context.Context) error {
	rotation := podlogs.Rotation{MaxSize: k.cfg.Logs.MaxSize, MaxFiles: k.cfg.Logs.MaxFiles}
	ticker := time.NewTicker(k.cfg.Logs.Interval)
	defer ticker.Stop()
	// The age of unused images counts from now.
	if err := k.collector.Observe(ctx); err != nil && ctx.Err() == nil {
		k.log.Warn("listing images in use failed", "err", err)
	}
	if r := k.host.Images.Puller.Records; r != nil {
		if err := r.Recover(ctx, k.cri.Images); err != nil && ctx.Err() == nil {
			k.log.Warn("recovering interrupted image pulls failed", "err", err)
		}
	}
	var lastImages time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			rotated, err := k.garbage.Collect(ctx, rotation)
			if err != nil && ctx.Err() == nil {
				k.log.Warn("garbage collection of containers failed", "err", err)
				k.nodeEvent(v1.EventTypeWarning, "ContainerGCFailed", err.Error())
			}
			next := k.cfg.Logs.Interval
			if rotated {
				next = min(next, busyRotationInterval)
			}
			ticker.Reset(next)
			if now.Sub(lastImages) >= imageGCInterval {
				lastImages = now
				if k.sourcesKnown.Load() {
					if err := k.garbage.RemoveOrphanedLogs(); err != nil {
						k.log.Warn("removing logs of deleted pods failed", "err", err)
					}
				}
				if err := k.collector.Collect(ctx, false); err != nil && ctx.Err() == nil {
					k.log.Warn("garbage collection of images failed", "err", err)
					switch {
					case errors.Is(err, images.ErrFull):
						k.nodeEvent(v1.EventTypeWarning, "FreeDiskSpaceFailed", err.Error())
					case errors.Is(err, images.ErrNoCapacity):
						k.nodeEvent(v1.EventTypeWarning, "InvalidDiskCapacity", err.Error())
					}
					k.nodeEvent(v1.EventTypeWarning, "ImageGCFailed", err.Error())
				}
			}
		}
	}
}

// nodeEvent emits an event for the node.
func (k *Kubelet) nodeEvent(kind, reason, message string) {
	k.host.Events.Event(nodestatus.Reference(k.cfg.NodeName), kind, reason, message)
}

// cgroupV1 is upstream's message.
const cgroupV1 = "cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a future release. " +
	"Please migrate to cgroup v2. More information at https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1"

// emitStartEvents emits events about the start of the kubelet and the state of its node.
func (k *Kubelet) emitStartEvents() {
	k.nodeEvent(v1.EventTypeNormal, "Starting", "Starting kubelet.")
	if why := k.host.Node.DNS.Check(); why != "" {
		k.nodeEvent(v1.EventTypeWarning, "CheckLimitsForResolvConf", why)
	}
	if k.machine.SwapBytes > 0 {
		if kept, err := volume.NoSwap(); err != nil {
			k.log.Warn("checking for tmpfs noswap support failed", "err", err)
		} else if !kept {
			k.nodeEvent(v1.EventTypeWarning, "PossibleMemoryBackedVolumesOnDisk", "The tmpfs noswap option is not supported. Memory-backed volumes (e.g. secrets, emptyDirs, etc.) "+
				"might be swapped to disk and should no longer be considered secure.")
		}
	}
	if k.cgroups == nil {
		return
	}
	if !k.cgroups.Unified() {
		k.nodeEvent(v1.EventTypeWarning, "CgroupV1", cgroupV1)
	}
}

// runtimeConfigAttempts is how often RuntimeConfig is called if the runtime exits during the call.
const runtimeConfigAttempts = 3

// getCgroupDriver gets the cgroup driver from the runtime. For an older runtime without RuntimeConfig,
// the configured driver is used.
func (k *Kubelet) getCgroupDriver(ctx context.Context) error {
	k.platform.SetSystemd(k.cfg.Cgroups.Systemd)
	var err error
	for range runtimeConfigAttempts {
		var resp *runtimeapi.RuntimeConfigResponse
		resp, err = k.cri.Runtime.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{}, cri.WaitForReady())
		if cri.IsUnimplemented(err) {
			k.metrics.LosingSupport()
			return nil
		}
		if err == nil {
			if resp.Linux != nil {
				k.platform.SetSystemd(resp.Linux.CgroupDriver == runtimeapi.CgroupDriver_SYSTEMD)
			}
			return nil
		}
	}
	return fmt.Errorf("getting the cgroup driver from the runtime: %w", err)
}

// getRuntimeInfo gets the runtime's name and cgroup driver. It is called once.
func (k *Kubelet) getRuntimeInfo(ctx context.Context) error {
	v, err := k.cri.Runtime.Version(ctx, &runtimeapi.VersionRequest{}, cri.WaitForReady())
	if err != nil {
		return fmt.Errorf("getting the version of the runtime: %w", err)
	}
	k.platform.SetRuntimeName(v.RuntimeName)
	return k.getCgroupDriver(ctx)
}
