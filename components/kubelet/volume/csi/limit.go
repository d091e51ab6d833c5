package csi

import (
	"context"
	"fmt"
	"slices"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// How many volumes of a driver the node takes may change while the driver runs,
// as where network interfaces and volumes share the same slots. Drivers whose
// CSIDriver gives a period are asked again after each, and when the attacher is
// told that there is no room.
// https://kubernetes.io/docs/concepts/storage/storage-limits/#mutable-csi-node-allocatable-count

// updatePeriod is how often a driver wants to be asked; zero is never.
func updatePeriod(obj *storagev1.CSIDriver) time.Duration {
	if obj == nil || obj.Spec.NodeAllocatableUpdatePeriodSeconds == nil {
		return 0
	}
	return time.Duration(*obj.Spec.NodeAllocatableUpdatePeriodSeconds) * time.Second
}

// allocatable is how many volumes the node takes by what the driver says; nil is
// any number.
func allocatable(info *csipb.NodeGetInfoResponse) *storagev1.VolumeNodeResources {
	if info.MaxVolumesPerNode <= 0 {
		return nil
	}
	count := int32(min(info.MaxVolumesPerNode, 1<<31-1))
	return &storagev1.VolumeNodeResources{Count: &count}
}

// keepCount asks a driver anew as often as its CSIDriver says, until ctx ends.
func (p *Plugin) keepCount(ctx context.Context, d *driver) {
	periods := make(chan time.Duration)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.followObject(ctx, d.plugin.Name, func(obj *storagev1.CSIDriver) {
			select {
			case periods <- updatePeriod(obj):
			case <-ctx.Done():
			}
		})
	}()
	defer func() { <-done }()
	var period time.Duration
	var ticker *time.Ticker
	var due <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			if ticker != nil {
				ticker.Stop()
			}
			return
		case now := <-periods:
			if now == period {
				continue
			}
			if ticker != nil {
				ticker.Stop()
				ticker, due = nil, nil
			}
			if period = now; period > 0 {
				ticker = time.NewTicker(period)
				due = ticker.C
			}
		case <-due:
			if err := p.recount(ctx, d); err != nil && ctx.Err() == nil {
				p.cfg.Log.Warn("asking a CSI driver how many volumes the node takes failed", "driver", d.plugin.Name, "error", err)
			}
		}
	}
}

// recount asks a driver how many volumes the node takes, and tells the API if that
// has changed.
func (p *Plugin) recount(ctx context.Context, d *driver) error {
	call, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	info, err := d.node.NodeGetInfo(call, &csipb.NodeGetInfoRequest{})
	if err != nil {
		return fmt.Errorf("error getting NodeGetInfo: %w", err)
	}
	node := p.cfg.Node()
	if node == nil {
		return nil
	}
	p.csiNode.Lock()
	defer p.csiNode.Unlock()
	return p.changeCSINode(ctx, node, func(list []storagev1.CSINodeDriver) []storagev1.CSINodeDriver {
		list = slices.Clone(list)
		for i := range list {
			if list[i].Name == d.plugin.Name {
				list[i].Allocatable = allocatable(info)
			}
		}
		return list
	})
}

// exhausted tells whether a volume could not be attached because the node takes no
// more, as its driver says, who is then asked how many that are. Drivers without a
// period are left alone: nobody would tell when there is room again.
func (p *Plugin) exhausted(ctx context.Context, k key) (bool, error) {
	obj, err := p.object(ctx, k.driver)
	if err != nil {
		return false, err
	}
	if updatePeriod(obj) == 0 {
		return false, nil
	}
	a, err := p.cfg.Kube.StorageV1().VolumeAttachments().Get(ctx, attachmentName(k, p.cfg.NodeName), metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("getting the volume's attachment: %w", err)
	}
	failed := a.Status.AttachError
	if failed == nil || failed.ErrorCode == nil || *failed.ErrorCode != int32(codes.ResourceExhausted) {
		return false, nil
	}
	d, err := p.driver(ctx, k.driver, 0)
	if err == nil {
		err = p.recount(ctx, d)
	}
	return true, err
}
