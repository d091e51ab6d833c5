package csi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"

	"hyperkube/components/kubelet/volume"
)

// TearDown implements volume.TearDowner: the volume is unpublished and, unless
// another pod uses it, unstaged. What is left on an error is found again. A volume
// that cannot be unstaged does not keep its pod: Run tries again, and the next pod
// that uses the volume has it staged anew.
func (p *Plugin) TearDown(ctx context.Context, r volume.TearDownRequest) error {
	d, err := readData(r.Dir)
	if missing(err) {
		// No driver has anything of it; it may have left a mount point.
		if err := errors.Join(removeEmpty(target(r.Dir, false)), removeEmpty(target(r.Dir, true))); err != nil {
			return err
		}
		if err := volume.Forget(r.Dir, dataFile, ""); err != nil {
			return err
		}
		p.users.Leave(r.Dir)
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", r.Dir, err)
	}
	driver, err := p.driver(ctx, d.Driver, 0)
	if err != nil {
		return fmt.Errorf("kubernetes.io/csi: Unmounter.TearDownAt failed to get CSI client: %w", err)
	}
	unlock := p.lock(d.key())
	defer unlock()
	at := target(r.Dir, d.Block)
	call, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	if _, err := driver.node.NodeUnpublishVolume(call, &csipb.NodeUnpublishVolumeRequest{VolumeId: d.Handle, TargetPath: at}); err != nil {
		return fmt.Errorf("UnmountVolume.TearDown failed for volume %q : kubernetes.io/csi: Unmounter.TearDownAt failed: %w", d.Spec, err)
	}
	p.mu.Lock()
	p.forgetMade(r.Dir, d.key())
	p.mu.Unlock()
	if err := removeEmpty(at); err != nil {
		return fmt.Errorf("UnmountVolume.TearDown failed for volume %q : %w", d.Spec, err)
	}
	if err := p.unstage(ctx, driver, d.key(), r.Dir); err != nil {
		p.cfg.Log.Warn("unstaging a volume failed, trying again", "volume", d.Spec, "error", err)
		p.mu.Lock()
		delete(p.staged, d.key())
		p.mu.Unlock()
		p.sweepSoon()
	}
	if err := volume.Forget(r.Dir, dataFile, ""); err != nil {
		return err
	}
	p.users.Leave(r.Dir)
	return nil
}

// forgetMade forgets a place, and with the last one what is known of the volume's
// size. The caller holds mu.
func (p *Plugin) forgetMade(dir string, k key) {
	delete(p.made, dir)
	for _, other := range p.made {
		if other == k {
			return
		}
	}
	delete(p.growths, k)
}

// unstage has the driver unstage a volume that no pod uses but that at leaving,
// empty for none. The caller holds the volume's lock.
func (p *Plugin) unstage(ctx context.Context, d *driver, k key, leaving string) error {
	dir := p.places.staged(k)
	if _, err := os.Lstat(filepath.Join(dir, dataFile)); missing(err) {
		return nil
	}
	uses, err := p.places.uses()
	if err != nil {
		return err
	}
	for _, u := range uses {
		if u.key() == k && u.dir != leaving {
			return nil
		}
	}
	call, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	at := globalMount(dir)
	if _, err := d.node.NodeUnstageVolume(call, &csipb.NodeUnstageVolumeRequest{VolumeId: k.handle, StagingTargetPath: at}); err != nil {
		return fmt.Errorf("kubernetes.io/csi: attacher.UnmountDevice failed: %w", err)
	}
	p.mu.Lock()
	delete(p.staged, k)
	p.mu.Unlock()
	if err := removeEmpty(at); err != nil {
		return err
	}
	if err := volume.Forget(dir, dataFile, ""); err != nil {
		return err
	}
	p.users.Leave(dir)
	return nil
}
