package csi

import (
	"context"
	"fmt"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"

	"hyperkube/components/kubelet/pod/volume"
)

// statsTimeout is the timeout of a NodeGetVolumeStats call.
const statsTimeout = 10 * time.Second

// measure queries the driver for the usage of a published volume. Values of a unit that the driver does not
// report are nil. It returns an error if the driver is not registered now.
func (p *Plugin) measure(ctx context.Context, j *job) (*volume.Usage, error) {
	d, err := p.driver(ctx, j.k.driver, 0)
	if err != nil {
		return nil, err
	}
	staging := ""
	if d.stages() && !j.inline {
		staging = globalMount(p.places.staged(j.k))
	}
	call, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	resp, err := d.node.NodeGetVolumeStats(call, &csipb.NodeGetVolumeStatsRequest{VolumeId: j.k.handle, VolumePath: j.target(), StagingTargetPath: staging})
	if err != nil {
		return nil, fmt.Errorf("failed to get volume stats: %w", err)
	}
	out := &volume.Usage{}
	number := func(n int64) *uint64 {
		if n < 0 {
			return nil
		}
		u := uint64(n)
		return &u
	}
	for _, u := range resp.Usage {
		switch u.GetUnit() {
		case csipb.VolumeUsage_BYTES:
			out.Capacity, out.Available, out.Used = number(u.Total), number(u.Available), number(u.Used)
		case csipb.VolumeUsage_INODES:
			out.Inodes, out.InodesFree, out.InodesUsed = number(u.Total), number(u.Available), number(u.Used)
		}
	}
	return out, nil
}
