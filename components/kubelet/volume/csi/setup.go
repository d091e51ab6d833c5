package csi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"hyperkube/components/kubelet/volume"
)

// setup is one setting up of a volume, which goes on where one before it has ended.
type setup struct {
	p *Plugin
	j *job
	d *driver
	// object of the driver; nil if it has none.
	object *storagev1.CSIDriver
	// made: this process has set it up already. again: the driver is to publish it
	// nevertheless. before is what was kept by whoever began with it, zero for nobody.
	made, again bool
	before      data
	// attached: it is by a VolumeAttachment, of which published is told to the driver.
	attached  bool
	published map[string]string
	// state is what is kept now.
	state data
}

func (p *Plugin) setUp(ctx context.Context, j *job) (volume.Result, error) {
	s := &setup{p: p, j: j}
	wait, err := s.look(ctx)
	if err != nil {
		return volume.Result{}, err
	}
	if err := s.attach(ctx); err != nil {
		return volume.Result{}, err
	}
	if s.d, err = p.driver(ctx, j.k.driver, wait); err != nil {
		return volume.Result{}, s.driverless(err)
	}
	unlock := p.lock(j.k)
	defer unlock()
	begun := time.Now()
	if !s.made || s.again {
		if err := s.publish(ctx); err != nil {
			return volume.Result{}, err
		}
	}
	if err := p.grow(ctx, s.d, j, !s.made); err != nil {
		return volume.Result{}, j.growthFailure(err)
	}
	if j.block && !s.made {
		p.event(j.pod, v1.EventTypeNormal, "SuccessfulMountVolume", fmt.Sprintf("MapVolume.MapPodDevice succeeded for volume %q volumeMapPath %q", j.spec, filepath.Dir(j.dir)))
	}
	p.mu.Lock()
	p.made[j.dir] = j.k
	p.mu.Unlock()
	return s.result(begun), nil
}

// look finds out what is known of the volume and of its driver. It returns how long a
// driver that is not there is to be waited for: as long as one takes to come back if it
// has been there.
func (s *setup) look(ctx context.Context) (wait time.Duration, err error) {
	s.p.mu.Lock()
	_, s.made = s.p.made[s.j.dir]
	s.p.mu.Unlock()
	if s.object, err = s.p.object(ctx, s.j.k.driver); err != nil {
		return 0, s.j.failure("SetUp", err)
	}
	if err := checkMode(s.object, s.j); err != nil {
		return 0, s.j.failure("SetUp", err)
	}
	s.before, err = readData(s.j.dir)
	if err == nil && !s.made {
		wait = returnFor
	} else if err != nil && !missing(err) {
		return 0, s.j.failure("SetUp", err)
	}
	s.again = s.object != nil && ptr.Deref(s.object.Spec.RequiresRepublish, false)
	return wait, nil
}

// attach waits until the volume is attached, if it is to be.
func (s *setup) attach(ctx context.Context) (err error) {
	p, j := s.p, s.j
	s.attached = !j.inline && (s.object == nil || s.object.Spec.AttachRequired == nil || *s.object.Spec.AttachRequired)
	if s.attached && p.cfg.Kube != nil && (!s.made || s.again) {
		if err := os.MkdirAll(j.dir, 0o750); err != nil {
			return j.failure("SetUp", fmt.Errorf("making the volume's directory: %w", err))
		}
		switch s.published, err = p.attachment(ctx, j.k, j.dir); {
		case errors.Is(err, errUnattached):
			s.attached = false
			if s.object, err = p.object(ctx, j.k.driver); err != nil {
				return j.failure("SetUp", err)
			}
		case errors.Is(err, context.DeadlineExceeded):
			return err
		case err != nil:
			return j.failure("WaitForAttach", err)
		}
	}
	if !s.attached && !s.made && !j.inline {
		// It may have been waited for before its driver said that it is not.
		p.users.Leave(j.dir)
	}
	return nil
}

// driverless says in upstream's words that there is no driver.
func (s *setup) driverless(err error) error {
	step, what := "MountDevice", "attacher.MountDevice failed to create newCsiDriverClient: "
	if s.j.inline {
		step, what = "SetUp", "mounter.SetUpAt failed to get CSI client: "
	} else if s.j.block {
		step, what = "SetUpDevice", "blockMapper.SetUpDevice failed to get CSI client: "
	}
	return s.j.failure(step, fmt.Errorf("kubernetes.io/csi: %s%w", what, err))
}

// publish keeps what is about to be done, and has the driver do it.
func (s *setup) publish(ctx context.Context) (err error) {
	p, j := s.p, s.j
	s.state = data{Spec: j.spec, Handle: j.k.handle, Driver: j.k.driver, Node: p.cfg.NodeName, Mode: string(j.mode()), Block: j.block}
	if s.attached {
		s.state.Attachment = attachmentName(j.k, p.cfg.NodeName)
	}
	if s.state.Label = s.before.Label; s.before.Handle == "" {
		if s.state.Label, err = p.chooseLabel(s.object, j); err != nil {
			return j.failure("SetUp", err)
		}
	}
	j.options = withLabel(j.options, s.state.Label)
	if err := volume.Keep(j.dir, dataFile, s.state); err != nil {
		return j.failure("SetUp", err)
	}
	err = s.place(ctx)
	if err != nil && !s.made && s.before.Handle == "" && final(cause(err)) && !p.isStaged(j.k) {
		// There is nothing to take back.
		os.Remove(filepath.Join(j.dir, dataFile))
	}
	return err
}

// result tells what the pod gets, and when the volume is to be looked at again after
// begun.
func (s *setup) result(begun time.Time) volume.Result {
	p, j := s.p, s.j
	out := volume.Result{Name: j.spec, ReadOnly: j.readOnly, Persistent: true}
	if j.block {
		out.Device = j.target()
	} else {
		out.Path = j.target()
		// Drivers bring file systems that have labels and others.
		out.Relabel = !j.readOnly && volume.HasLabels(out.Path)
	}
	if s.d.can[csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS] {
		out.Measure = func(ctx context.Context) (*volume.Usage, error) { return p.measure(ctx, j) }
	}
	switch {
	case s.again:
		out.Refresh = begun.Add(republishEvery)
	case j.claim != nil && s.d.expands() && !j.readOnly:
		out.Refresh = begun.Add(growEvery)
		if next := p.growth(j.k).next; !next.IsZero() {
			out.Refresh = next
		}
	}
	return out
}

// place has the driver stage the volume, if it has not yet, and publish it for
// the pod.
func (s *setup) place(ctx context.Context) error {
	p, j, d := s.p, s.j, s.d
	capability := j.capability(d)
	group := volume.FSGroup(j.pod)
	apply := group != nil && !j.block && p.appliesGroup(s.object, j)
	if apply && d.givesGroup() {
		if m := capability.GetMount(); m != nil {
			m.VolumeMountGroup = strconv.FormatInt(*group, 10)
		}
		apply = false
	}
	staging := ""
	if d.stages() && !j.inline {
		staging = globalMount(p.places.staged(j.k))
		if err := s.stage(ctx, capability, staging); err != nil {
			return err
		}
	}
	attributes, secrets, err := p.about(ctx, s.object, j)
	if err != nil {
		return j.failure("SetUp", err)
	}
	if err := os.MkdirAll(filepath.Dir(j.target()), 0o750); err != nil {
		return j.failure("SetUp", fmt.Errorf("making the volume's directory: %w", err))
	}
	call, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	_, err = d.node.NodePublishVolume(call, &csipb.NodePublishVolumeRequest{
		VolumeId: j.k.handle, PublishContext: s.published, StagingTargetPath: staging, TargetPath: j.target(), VolumeCapability: capability,
		Readonly: j.readOnly, Secrets: secrets, VolumeContext: attributes,
	})
	if err != nil {
		return j.failure("SetUp", err)
	}
	if apply {
		if err := volume.GiveTo(j.pod, j.target(), *group, func(message string) {
			p.event(j.pod, v1.EventTypeWarning, "VolumePermissionChangeInProgress", message)
		}); err != nil {
			return j.failure("SetUp", fmt.Errorf("applyFSGroup failed for vol %s: %w", j.k.handle, err))
		}
	}
	return nil
}

// stage has the driver stage the volume unless it has done so for this process
// already.
func (s *setup) stage(ctx context.Context, capability *csipb.VolumeCapability, staging string) error {
	p, j := s.p, s.j
	if p.isStaged(j.k) {
		return nil
	}
	step := "MountDevice"
	if j.block {
		step = "SetUpDevice"
	}
	secrets, err := p.secret(ctx, j.stageRef)
	if err != nil {
		return j.failure(step, err)
	}
	dir := filepath.Dir(staging)
	_, err = readData(dir)
	fresh := missing(err)
	if err := volume.Keep(dir, dataFile, data{Handle: s.state.Handle, Driver: s.state.Driver, Attachment: s.state.Attachment, Label: s.state.Label}); err != nil {
		return j.failure(step, err)
	}
	if err := os.MkdirAll(staging, 0o750); err != nil {
		return j.failure(step, fmt.Errorf("making the place of a staged volume: %w", err))
	}
	if s.state.Attachment != "" {
		p.users.Use(j.k.unique(), dir)
	}
	call, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	_, err = s.d.node.NodeStageVolume(call, &csipb.NodeStageVolumeRequest{
		VolumeId: j.k.handle, PublishContext: s.published, StagingTargetPath: staging, VolumeCapability: capability, Secrets: secrets, VolumeContext: j.context,
	})
	if err != nil {
		if fresh && final(err) {
			p.removeStaged(dir)
		}
		return j.failure(step, err)
	}
	p.mu.Lock()
	p.staged[j.k] = true
	p.mu.Unlock()
	return nil
}
