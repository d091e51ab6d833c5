package kubelet

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/images"
	"hyperkube/components/kubelet/nodestatus"
	"hyperkube/components/kubelet/podlogs"
	"hyperkube/components/kubelet/volume"
)

// How often the house is looked at. The kernel and the runtime have no events
// for what is looked for here.
const (
	imagesEvery = 5 * time.Minute
	// busyEvery is how often logs are looked at while one grows fast: no sooner,
	// for old logs are named by the second.
	busyEvery = 1100 * time.Millisecond
)

// housekeep rotates logs and removes dead containers and unused images.
func (k *Kubelet) housekeep(ctx context.Context) error {
	rotation := podlogs.Rotation{MaxSize: k.cfg.Logs.MaxSize, MaxFiles: k.cfg.Logs.MaxFiles}
	ticker := time.NewTicker(k.cfg.Logs.Interval)
	defer ticker.Stop()
	// What is unused from now on has its age from now.
	if err := k.collector.Note(ctx); err != nil && ctx.Err() == nil {
		k.log.Warn("looking at images failed", "error", err)
	}
	if r := k.host.Images.Puller.Records; r != nil {
		if err := r.Recover(ctx, k.cri.Images); err != nil && ctx.Err() == nil {
			k.log.Warn("looking at pulls that were cut short failed", "error", err)
		}
	}
	var lastImages time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			rotated, err := k.manager.Tidy(ctx, rotation)
			if err != nil && ctx.Err() == nil {
				k.log.Warn("tidying up containers failed", "error", err)
				k.nodeEvent(v1.EventTypeWarning, "ContainerGCFailed", err.Error())
			}
			next := k.cfg.Logs.Interval
			if rotated {
				next = min(next, busyEvery)
			}
			ticker.Reset(next)
			if now.Sub(lastImages) >= imagesEvery {
				lastImages = now
				if k.sourcesKnown.Load() {
					if err := k.manager.ClearLogs(); err != nil {
						k.log.Warn("removing logs of pods that are gone failed", "error", err)
					}
				}
				if err := k.collector.Collect(ctx, false); err != nil && ctx.Err() == nil {
					k.log.Warn("removing unused images failed", "error", err)
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

// nodeEvent tells of the node.
func (k *Kubelet) nodeEvent(kind, reason, message string) {
	k.host.Events.Event(nodestatus.Reference(k.cfg.NodeName), kind, reason, message)
}

// cgroupV1 is what upstream says of it.
const cgroupV1 = "cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a future release. " +
	"Please migrate to cgroup v2. More information at https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1"

// greet tells that the kubelet has started, and what its node is like.
func (k *Kubelet) greet() {
	k.nodeEvent(v1.EventTypeNormal, "Starting", "Starting kubelet.")
	if why := k.host.DNS.Check(); why != "" {
		k.nodeEvent(v1.EventTypeWarning, "CheckLimitsForResolvConf", why)
	}
	if k.machine.SwapBytes > 0 {
		if kept, err := volume.NoSwap(); err != nil {
			k.log.Warn("looking whether volumes in memory can be kept out of the swap failed", "error", err)
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

// driverTries is how often a runtime is asked that ends meanwhile.
const driverTries = 3

// askDriver asks the runtime how it wants cgroups named; of one that cannot be
// asked, as those are that came before the question, the configuration says it.
func (k *Kubelet) askDriver(ctx context.Context) error {
	k.host.Limits.Systemd.Store(k.cfg.Cgroups.Systemd)
	var err error
	for range driverTries {
		var resp *runtimeapi.RuntimeConfigResponse
		resp, err = k.cri.Runtime.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{}, cri.Wait())
		if cri.IsUnimplemented(err) {
			k.metrics.LosingSupport()
			return nil
		}
		if err == nil {
			if resp.Linux != nil {
				k.host.Limits.Systemd.Store(resp.Linux.CgroupDriver == runtimeapi.CgroupDriver_SYSTEMD)
			}
			return nil
		}
	}
	return fmt.Errorf("asking the runtime for its cgroup driver: %w", err)
}

// runtimeFacts asks the runtime once for its name and its cgroup driver.
func (k *Kubelet) runtimeFacts(ctx context.Context) error {
	v, err := k.cri.Runtime.Version(ctx, &runtimeapi.VersionRequest{}, cri.Wait())
	if err != nil {
		return fmt.Errorf("asking the runtime for its version: %w", err)
	}
	k.host.RuntimeName = v.RuntimeName
	return k.askDriver(ctx)
}
