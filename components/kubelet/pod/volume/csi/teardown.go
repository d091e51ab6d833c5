package csi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"

	"hyperkube/components/kubelet/pod/volume"
)

// TearDown unpublishes the volume of a terminated pod and, unless another pod uses it, unstages it. Without a
// data file, the driver was never called, and only the directories are removed. It returns an error, to be
// retried, if the driver is not registered or fails to unpublish. A failure to unstage the volume does not
// delay the deletion of the pod: Run retries it, and if another pod uses the volume before, the volume is
// staged again.
func (p *Plugin) TearDown(ctx context.Context, r volume.TearDownRequest) error {
	d, err := readData(r.Dir)
	if isNotExist(err) {
		// No driver call was made; an empty mount point may remain.
		if err := errors.Join(removeEmpty(target(r.Dir, false)), removeEmpty(target(r.Dir, true))); err != nil {
			return err
		}
		if err := volume.RemoveData(r.Dir, dataFile, ""); err != nil {
			return err
		}
		p.users.Release(r.Dir)
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
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := driver.node.NodeUnpublishVolume(call, &csipb.NodeUnpublishVolumeRequest{VolumeId: d.Handle, TargetPath: at}); err != nil {
		return fmt.Errorf("UnmountVolume.TearDown failed for volume %q : kubernetes.io/csi: Unmounter.TearDownAt failed: %w", d.Spec, err)
	}
	p.mu.Lock()
	p.forgetPublished(r.Dir, d.key())
	p.mu.Unlock()
	if err := removeEmpty(at); err != nil {
		return fmt.Errorf("UnmountVolume.TearDown failed for volume %q : %w", d.Spec, err)
	}
	if err := p.unstage(ctx, driver, d.key(), r.Dir); err != nil {
		p.cfg.Log.Warn("unstaging CSI volume of terminated pod failed; the volume remains mounted on the node until a retry succeeds, retrying with back-off", "volume", d.Spec, "driver", d.Driver, "err", err)
		p.mu.Lock()
		delete(p.staged, d.key())
		p.mu.Unlock()
		p.sweepSoon()
	}
	if err := volume.RemoveData(r.Dir, dataFile, ""); err != nil {
		return err
	}
	p.users.Release(r.Dir)
	return nil
}

// forgetPublished records that the driver does not publish a volume at the directory dir any more. If it was the
// last directory of the volume k, the state of the volume's expansion is removed too. The caller must hold p.mu.
func (p *Plugin) forgetPublished(dir string, k key) {
	delete(p.published, dir)
	for _, other := range p.published {
		if other == k {
			return
		}
	}
	delete(p.expansions, k)
}

// unstage calls the driver to unstage the volume k and removes its data. It does nothing if a pod uses the
// volume or if the volume is not staged. leaving is the directory of a pod that does not count because its
// volume was just unpublished, or "". The caller must hold the volume's lock.
func (p *Plugin) unstage(ctx context.Context, d *driver, k key, leaving string) error {
	dir := p.places.staged(k)
	if _, err := os.Lstat(filepath.Join(dir, dataFile)); isNotExist(err) {
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
	call, cancel := context.WithTimeout(ctx, callTimeout)
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
	if err := volume.RemoveData(dir, dataFile, ""); err != nil {
		return err
	}
	p.users.Release(dir)
	return nil
}
