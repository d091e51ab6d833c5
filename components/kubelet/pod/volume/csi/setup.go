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

	"hyperkube/components/kubelet/pod/volume"
)

// setup is one attempt to set up a volume for a pod: to attach, stage, publish and expand it. It skips the steps
// that an earlier attempt has completed.
type setup struct {
	p *Plugin
	j *job
	d *driver
	// object is the CSIDriver of the driver; nil if it has none.
	object *storagev1.CSIDriver
	// alreadyPublished means that this process has already set up the volume; republish means that the driver
	// must publish it nevertheless. savedData is the data saved by an earlier attempt, zero if there was
	// none.
	alreadyPublished, republish bool
	savedData                   data
	// needsAttachment means that the volume requires a VolumeAttachment; publishContext is that of the
	// attachment.
	needsAttachment bool
	publishContext  map[string]string
	// state is the data saved by this attempt.
	state data
}

// setUp attaches, stages, publishes and expands the volume of the job, as far as it is not done yet, and
// returns the result for the pod. Errors appear in the pod's events; the pod worker retries.
func (p *Plugin) setUp(ctx context.Context, j *job) (volume.Result, error) {
	s := &setup{p: p, j: j}
	wait, err := s.inspect(ctx)
	if err != nil {
		return volume.Result{}, err
	}
	if err := s.attach(ctx); err != nil {
		return volume.Result{}, err
	}
	if s.d, err = p.driver(ctx, j.k.driver, wait); err != nil {
		return volume.Result{}, s.driverNotFound(err)
	}
	unlock := p.lock(j.k)
	defer unlock()
	begun := time.Now()
	if !s.alreadyPublished || s.republish {
		if err := s.publish(ctx); err != nil {
			return volume.Result{}, err
		}
	}
	if err := p.expandIfNeeded(ctx, s.d, j, !s.alreadyPublished); err != nil {
		return volume.Result{}, j.expansionFailure(err)
	}
	if j.block && !s.alreadyPublished {
		p.event(j.pod, v1.EventTypeNormal, "SuccessfulMountVolume", fmt.Sprintf("MapVolume.MapPodDevice succeeded for volume %q volumeMapPath %q", j.spec, filepath.Dir(j.dir)))
	}
	p.mu.Lock()
	p.published[j.dir] = j.k
	p.mu.Unlock()
	return s.result(begun), nil
}

// inspect determines the state of the volume and reads the CSIDriver. It returns how long to wait for a
// driver that is not registered: zero, or driverReturnTimeout if the volume was published before a restart of
// the kubelet, because the driver then has to register again.
func (s *setup) inspect(ctx context.Context) (wait time.Duration, err error) {
	s.p.mu.Lock()
	_, s.alreadyPublished = s.p.published[s.j.dir]
	s.p.mu.Unlock()
	if s.object, err = s.p.driverObject(ctx, s.j.k.driver); err != nil {
		return 0, s.j.failure("SetUp", err)
	}
	if err := checkMode(s.object, s.j); err != nil {
		return 0, s.j.failure("SetUp", err)
	}
	s.savedData, err = readData(s.j.dir)
	if err == nil && !s.alreadyPublished {
		wait = driverReturnTimeout
	} else if err != nil && !isNotExist(err) {
		return 0, s.j.failure("SetUp", err)
	}
	s.republish = s.object != nil && ptr.Deref(s.object.Spec.RequiresRepublish, false)
	return wait, nil
}

// attach waits until the volume is attached, if the driver requires attachment and the volume must be
// published. Without an API server it does not wait. It returns context.DeadlineExceeded after a timeout.
func (s *setup) attach(ctx context.Context) (err error) {
	p, j := s.p, s.j
	s.needsAttachment = !j.inline && (s.object == nil || s.object.Spec.AttachRequired == nil || *s.object.Spec.AttachRequired)
	if s.needsAttachment && p.cfg.Kube != nil && (!s.alreadyPublished || s.republish) {
		if err := os.MkdirAll(j.dir, 0o750); err != nil {
			return j.failure("SetUp", fmt.Errorf("creating the volume's directory: %w", err))
		}
		switch s.publishContext, err = p.attachment(ctx, j.k, j.dir); {
		case errors.Is(err, errNoAttachRequired):
			s.needsAttachment = false
			if s.object, err = p.driverObject(ctx, j.k.driver); err != nil {
				return j.failure("SetUp", err)
			}
		case errors.Is(err, context.DeadlineExceeded):
			return err
		case err != nil:
			return j.failure("WaitForAttach", err)
		}
	}
	if !s.needsAttachment && !s.alreadyPublished && !j.inline {
		// An earlier attempt may have waited before the driver stopped requiring attachment.
		p.users.Release(j.dir)
	}
	return nil
}

// driverNotFound returns a Failure with upstream's text for a driver that is not registered.
func (s *setup) driverNotFound(err error) error {
	step, what := "MountDevice", "attacher.MountDevice failed to create newCsiDriverClient: "
	if s.j.inline {
		step, what = "SetUp", "mounter.SetUpAt failed to get CSI client: "
	} else if s.j.block {
		step, what = "SetUpDevice", "blockMapper.SetUpDevice failed to get CSI client: "
	}
	return s.j.failure(step, fmt.Errorf("kubernetes.io/csi: %s%w", what, err))
}

// publish saves the data that the teardown requires, and then calls the driver to stage and publish the
// volume. If the driver rejects that definitely and nothing is staged, the data is removed again.
func (s *setup) publish(ctx context.Context) (err error) {
	p, j := s.p, s.j
	s.state = data{Spec: j.spec, Handle: j.k.handle, Driver: j.k.driver, Node: p.cfg.NodeName, Mode: string(j.mode()), Block: j.block}
	if s.needsAttachment {
		s.state.Attachment = attachmentName(j.k, p.cfg.NodeName)
	}
	if s.state.Label = s.savedData.Label; s.savedData.Handle == "" {
		if s.state.Label, err = p.chooseLabel(s.object, j); err != nil {
			return j.failure("SetUp", err)
		}
	}
	j.options = withLabel(j.options, s.state.Label)
	if err := volume.SaveData(j.dir, dataFile, s.state); err != nil {
		return j.failure("SetUp", err)
	}
	err = s.stageAndPublish(ctx)
	if err != nil && !s.alreadyPublished && s.savedData.Handle == "" && isFinalError(cause(err)) && !p.isStaged(j.k) {
		// There is nothing to clean up.
		os.Remove(filepath.Join(j.dir, dataFile))
	}
	return err
}

// result returns the volume as the pod uses it. It must be set up again at Refresh, for republishing or
// expansion; that time is relative to begun.
func (s *setup) result(begun time.Time) volume.Result {
	p, j := s.p, s.j
	out := volume.Result{Name: j.spec, ReadOnly: j.readOnly, Persistent: true}
	if j.block {
		out.Device = j.target()
	} else {
		out.Path = j.target()
		// A driver's file system may or may not support labels.
		out.Relabel = !j.readOnly && volume.HasLabels(out.Path)
	}
	if s.d.capabilities[csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS] {
		out.Measure = func(ctx context.Context) (*volume.Usage, error) { return p.measure(ctx, j) }
	}
	switch {
	case s.republish:
		out.Refresh = begun.Add(republishInterval)
	case j.claim != nil && s.d.expands() && !j.readOnly:
		out.Refresh = begun.Add(expansionCheckInterval)
		if next := p.expansionOf(j.k).nextAttempt; !next.IsZero() {
			out.Refresh = next
		}
	}
	return out
}

// stageAndPublish calls the driver to stage the volume if necessary and to publish it for the pod, and
// applies the pod's fsGroup unless the driver does that.
func (s *setup) stageAndPublish(ctx context.Context) error {
	p, j, d := s.p, s.j, s.d
	capability := j.capability(d)
	group := volume.FSGroup(j.pod)
	apply := group != nil && !j.block && p.appliesGroup(s.object, j)
	if apply && d.mountsWithGroup() {
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
	attributes, secrets, err := p.attributesAndSecrets(ctx, s.object, j)
	if err != nil {
		return j.failure("SetUp", err)
	}
	if err := os.MkdirAll(filepath.Dir(j.target()), 0o750); err != nil {
		return j.failure("SetUp", fmt.Errorf("creating the volume's directory: %w", err))
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err = d.node.NodePublishVolume(call, &csipb.NodePublishVolumeRequest{
		VolumeId: j.k.handle, PublishContext: s.publishContext, StagingTargetPath: staging, TargetPath: j.target(), VolumeCapability: capability,
		Readonly: j.readOnly, Secrets: secrets, VolumeContext: attributes,
	})
	if err != nil {
		return j.failure("SetUp", err)
	}
	if apply {
		if err := volume.ChangeGroup(j.pod, j.target(), *group, func(message string) {
			p.event(j.pod, v1.EventTypeWarning, "VolumePermissionChangeInProgress", message)
		}); err != nil {
			return j.failure("SetUp", fmt.Errorf("applyFSGroup failed for vol %s: %w", j.k.handle, err))
		}
	}
	return nil
}

// stage calls the driver to stage the volume at the path staging, unless this process has already staged it. The data
// for the teardown is saved before the call. If the driver rejects the first attempt, so that nothing is staged,
// stage removes the data again.
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
	fresh := isNotExist(err)
	if err := volume.SaveData(dir, dataFile, data{Handle: s.state.Handle, Driver: s.state.Driver, Attachment: s.state.Attachment, Label: s.state.Label}); err != nil {
		return j.failure(step, err)
	}
	if err := os.MkdirAll(staging, 0o750); err != nil {
		return j.failure(step, fmt.Errorf("creating the directory of a staged volume: %w", err))
	}
	if s.state.Attachment != "" {
		p.users.Use(j.k.unique(), dir)
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err = s.d.node.NodeStageVolume(call, &csipb.NodeStageVolumeRequest{
		VolumeId: j.k.handle, PublishContext: s.publishContext, StagingTargetPath: staging, VolumeCapability: capability, Secrets: secrets, VolumeContext: j.context,
	})
	if err != nil {
		if fresh && isFinalError(err) {
			p.removeStaged(dir)
		}
		return j.failure(step, err)
	}
	p.mu.Lock()
	p.staged[j.k] = true
	p.mu.Unlock()
	return nil
}
