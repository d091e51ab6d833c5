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

// The maximum number of volumes of a driver on a node may change while the driver runs, for example
// where network interfaces and volumes share the same slots. Drivers whose CSIDriver sets
// nodeAllocatableUpdatePeriodSeconds are queried periodically, and when an attachment fails because
// the node is full.
// https://kubernetes.io/docs/concepts/storage/storage-limits/#mutable-csi-node-allocatable-count

// updatePeriod returns how often a driver must be queried for its maximum number of volumes; zero means
// never. obj is its CSIDriver, or nil.
func updatePeriod(obj *storagev1.CSIDriver) time.Duration {
	if obj == nil || obj.Spec.NodeAllocatableUpdatePeriodSeconds == nil {
		return 0
	}
	return time.Duration(*obj.Spec.NodeAllocatableUpdatePeriodSeconds) * time.Second
}

// allocatable returns the maximum number of volumes that a driver can attach to the node, for the CSINode;
// nil means unlimited. info is the driver's response.
func allocatable(info *csipb.NodeGetInfoResponse) *storagev1.VolumeNodeResources {
	if info.MaxVolumesPerNode <= 0 {
		return nil
	}
	count := int32(min(info.MaxVolumesPerNode, 1<<31-1))
	return &storagev1.VolumeNodeResources{Count: &count}
}

// updateLimitPeriodically queries the driver d for its maximum number of volumes, as often as its CSIDriver
// requires, until ctx is done. It watches the CSIDriver for changes of the period.
func (p *Plugin) updateLimitPeriodically(ctx context.Context, d *driver) {
	periods := make(chan time.Duration)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.watchDriverObject(ctx, d.plugin.Name, func(obj *storagev1.CSIDriver) {
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
			if err := p.updateLimit(ctx, d); err != nil && ctx.Err() == nil {
				p.cfg.Log.Warn("updating maximum number of volumes of CSI driver failed; the CSINode keeps the previous maximum, retrying after the interval", "interval", period, "driver", d.plugin.Name, "err", err)
			}
		}
	}
}

// updateLimit queries the driver d for the maximum number of volumes and updates the CSINode if the number
// has changed. It does nothing before the Node object is known.
func (p *Plugin) updateLimit(ctx context.Context, d *driver) error {
	call, cancel := context.WithTimeout(ctx, callTimeout)
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

// limitReached reports whether the volume of k could not be attached because the node has reached the
// driver's maximum number of volumes, according to the error of its VolumeAttachment. If so, it queries the
// driver for the current maximum. It returns false for drivers without an update period, because nothing
// would report that the node can attach volumes again.
func (p *Plugin) limitReached(ctx context.Context, k key) (bool, error) {
	obj, err := p.driverObject(ctx, k.driver)
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
		err = p.updateLimit(ctx, d)
	}
	return true, err
}
