package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"hyperkube/components/kubelet/pod/volume"
)

// republishInterval is the interval at which a volume is published again if its driver requires
// republishing.
const republishInterval = time.Minute

// expansionCheckInterval is the interval at which the kubelet checks whether a volume in use must be
// expanded. It polls, because a node is not permitted to watch claims.
const expansionCheckInterval = 10 * time.Second

// driverReturnTimeout is how long a pod whose volume was published before a kubelet restart waits for the
// driver to register.
const driverReturnTimeout = 10 * time.Second

// job is a volume to set up for a pod, as specified by an inline volume or a PersistentVolume.
type job struct {
	k   key
	pod *v1.Pod
	// spec is the name of the PersistentVolume or, for an inline volume, that of the pod's volume.
	spec string
	// volume is the name of the volume in the pod spec.
	volume string
	// dir is the pod's directory of the volume.
	dir      string
	inline   bool
	block    bool
	readOnly bool
	fsType   string
	options  []string
	access   []v1.PersistentVolumeAccessMode
	// context is the volume attributes for the driver. stageRef, pubRef and expandRef refer to the Secrets
	// for staging, publishing and expanding; they may be nil. claim and pv are nil for an inline volume.
	context   map[string]string
	stageRef  *v1.SecretReference
	pubRef    *v1.SecretReference
	expandRef *v1.SecretReference
	claim     *v1.PersistentVolumeClaim
	pv        *v1.PersistentVolume
}

// target returns the path where the driver publishes the volume.
func (j *job) target() string { return target(j.dir, j.block) }

// target returns the path in dir, the pod's directory for a volume, where the driver publishes the volume. block is
// true for a block volume.
func target(dir string, block bool) string {
	if block {
		return filepath.Join(dir, "dev")
	}
	return filepath.Join(dir, "mount")
}

// Name returns the name of the directory of CSI volumes in a pod's volumes directory.
func (p *Plugin) Name() string { return pluginName }

// Is reports whether v is an inline CSI volume.
func (p *Plugin) Is(v *v1.Volume) bool { return v.CSI != nil }

// IsPersistent reports whether pv is a CSI volume.
func (p *Plugin) IsPersistent(pv *v1.PersistentVolume) bool { return pv.Spec.CSI != nil }

// SetUp publishes an inline ephemeral volume for the pod.
func (p *Plugin) SetUp(ctx context.Context, r volume.Request) (volume.Result, error) {
	src := r.Volume.CSI
	j := &job{
		k: key{src.Driver, inlineHandle(r.Volume.Name, r.Pod.UID)}, pod: r.Pod, spec: r.Volume.Name, dir: r.Dir, inline: true,
		readOnly: ptr.Deref(src.ReadOnly, false), context: src.VolumeAttributes,
		access: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
	}
	if src.FSType != nil {
		j.fsType = *src.FSType
	}
	if src.NodePublishSecretRef != nil {
		j.pubRef = &v1.SecretReference{Name: src.NodePublishSecretRef.Name, Namespace: r.Pod.Namespace}
	}
	return p.setUp(ctx, j)
}

// SetUpPersistent attaches, stages and publishes a PersistentVolume with a file system for the pod.
func (p *Plugin) SetUpPersistent(ctx context.Context, r volume.PersistentRequest) (volume.Result, error) {
	return p.setUp(ctx, persistent(r, false))
}

// SetUpBlock attaches, stages and publishes a PersistentVolume as a block device for the pod.
func (p *Plugin) SetUpBlock(ctx context.Context, r volume.PersistentRequest) (volume.Result, error) {
	return p.setUp(ctx, persistent(r, true))
}

// persistent returns the job of a PersistentVolume. block is true for volumeMode Block.
func persistent(r volume.PersistentRequest, block bool) *job {
	src := r.PV.Spec.CSI
	return &job{
		k: key{src.Driver, src.VolumeHandle}, pod: r.Pod, spec: r.PV.Name, volume: r.Volume.Name, dir: r.Dir, block: block, readOnly: r.ReadOnly || src.ReadOnly,
		fsType: src.FSType, options: r.PV.Spec.MountOptions, access: r.PV.Spec.AccessModes, context: src.VolumeAttributes,
		stageRef: src.NodeStageSecretRef, pubRef: src.NodePublishSecretRef, expandRef: src.NodeExpandSecretRef, claim: r.Claim, pv: r.PV,
	}
}

// failure returns a Failure, for the pod's events, of a step such as "SetUp": of the operation MapVolume for a
// block volume, otherwise of MountVolume.
func (j *job) failure(step string, err error) error {
	op := "MountVolume." + step
	if j.block {
		op = "MapVolume." + step
	}
	return &volume.Failure{Operation: op, Volume: j.spec, Err: err}
}

// cause returns the innermost error that err wraps. If a call of the driver has failed, that is the driver's
// gRPC status.
func cause(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}

// mode returns the lifecycle mode that the driver must support: Ephemeral for an inline volume, Persistent for a
// PersistentVolume.
func (j *job) mode() storagev1.VolumeLifecycleMode {
	if j.inline {
		return storagev1.VolumeLifecycleEphemeral
	}
	return storagev1.VolumeLifecyclePersistent
}

// checkMode returns an error if the CSIDriver obj does not list the volume's lifecycle mode. A driver without
// a list, or without a CSIDriver, supports only Persistent.
func checkMode(obj *storagev1.CSIDriver, j *job) error {
	modes := []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	if obj != nil && len(obj.Spec.VolumeLifecycleModes) > 0 {
		modes = obj.Spec.VolumeLifecycleModes
	}
	if !slices.Contains(modes, j.mode()) {
		return fmt.Errorf("kubernetes.io/csi: mounter.SetUpAt failed to check volume lifecycle mode: volume mode %q not supported by driver %s (only supports %q)", j.mode(), j.k.driver, modes)
	}
	return nil
}

// isStaged reports whether this process has staged the volume. After a restart, staging is repeated, which is
// idempotent.
func (p *Plugin) isStaged(k key) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.staged[k]
}

// removeStaged removes the directory dir of a volume whose staging was rejected, and the volume is no longer in
// use by it. A directory that is mounted or not empty remains. Errors are ignored.
func (p *Plugin) removeStaged(dir string) {
	if err := removeEmpty(globalMount(dir)); err == nil && volume.RemoveData(dir, dataFile, "") == nil {
		p.users.Release(dir)
	}
}

// removeEmpty removes an empty directory or a file. A path that does not exist is no error; a mount point and a
// directory with files are.
func removeEmpty(path string) error {
	if _, err := os.Lstat(path); isNotExist(err) {
		return nil
	}
	mounted, err := mountinfo.Mounted(path)
	if err != nil {
		return fmt.Errorf("looking for a mount: %w", err)
	}
	if mounted {
		return fmt.Errorf("%s is still mounted", path)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("removing a mount point: %w", err)
	}
	return nil
}

// attributesAndSecrets returns the volume attributes and the secrets of the call that publishes the volume. If
// the CSIDriver obj requires it, information about the pod is added to the attributes, and tokens of the pod's
// service account to the attributes or, if it requires that, to the secrets. Nothing is added if obj is nil.
func (p *Plugin) attributesAndSecrets(ctx context.Context, obj *storagev1.CSIDriver, j *job) (attributes, secrets map[string]string, err error) {
	attributes = map[string]string{}
	maps.Copy(attributes, j.context)
	if secrets, err = p.secret(ctx, j.pubRef); err != nil || obj == nil {
		return attributes, secrets, err
	}
	if ptr.Deref(obj.Spec.PodInfoOnMount, false) {
		attributes["csi.storage.k8s.io/pod.name"] = j.pod.Name
		attributes["csi.storage.k8s.io/pod.namespace"] = j.pod.Namespace
		attributes["csi.storage.k8s.io/pod.uid"] = string(j.pod.UID)
		attributes["csi.storage.k8s.io/serviceAccount.name"] = j.pod.Spec.ServiceAccountName
		attributes["csi.storage.k8s.io/ephemeral"] = strconv.FormatBool(j.inline)
	}
	if len(obj.Spec.TokenRequests) == 0 || p.cfg.Tokens == nil {
		return attributes, secrets, nil
	}
	type tokenAttribute struct {
		Token   string    `json:"token"`
		Expires time.Time `json:"expirationTimestamp"`
	}
	tokens := map[string]tokenAttribute{}
	for _, r := range obj.Spec.TokenRequests {
		token, expires, _, err := p.cfg.Tokens.Bound(ctx, j.pod, r.Audience, r.ExpirationSeconds)
		if err != nil {
			return nil, nil, fmt.Errorf("kubernetes.io/csi: mounter.SetupAt failed to get service accoount token attributes: %w", err)
		}
		tokens[r.Audience] = tokenAttribute{token, expires.UTC().Truncate(time.Second)}
	}
	raw, err := json.Marshal(tokens)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding tokens: %w", err)
	}
	const name = "csi.storage.k8s.io/serviceAccount.tokens"
	if ptr.Deref(obj.Spec.ServiceAccountTokenInSecrets, false) {
		all := map[string]string{name: string(raw)}
		maps.Copy(all, secrets)
		all[name] = string(raw)
		secrets = all
	} else {
		attributes[name] = string(raw)
	}
	return attributes, secrets, nil
}

// appliesGroup reports whether the pod's fsGroup must be applied to the volume, by the kubelet or the driver,
// according to the fsGroupPolicy of the CSIDriver obj, which may be nil. By default, it is applied only to
// ReadWriteOnce volumes with a file system type. It is never applied to a read-only volume.
//
// https://kubernetes-csi.github.io/docs/support-fsgroup.html
func (p *Plugin) appliesGroup(obj *storagev1.CSIDriver, j *job) bool {
	policy := storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	if obj != nil && obj.Spec.FSGroupPolicy != nil && *obj.Spec.FSGroupPolicy != "" {
		policy = *obj.Spec.FSGroupPolicy
	}
	switch {
	case policy == storagev1.NoneFSGroupPolicy || j.readOnly:
		return false
	case policy == storagev1.FileFSGroupPolicy:
		return true
	}
	return j.fsType != "" && slices.Contains(j.access, v1.ReadWriteOnce)
}

// capability returns how the pod accesses the volume, for calls of the driver.
func (j *job) capability(d *driver) *csipb.VolumeCapability {
	c := &csipb.VolumeCapability{AccessMode: &csipb.VolumeCapability_AccessMode{Mode: accessMode(d, j.access)}}
	if j.block {
		c.AccessType = &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}}
	} else {
		c.AccessType = &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{FsType: j.fsType, MountFlags: j.options}}
	}
	return c
}

// accessMode converts the access modes of a PersistentVolume to the CSI access mode. Only the first mode
// counts; without modes it is ReadWriteOnce. Only drivers that support it get a mode that distinguishes one
// writer from several on one node.
func accessMode(d *driver, modes []v1.PersistentVolumeAccessMode) csipb.VolumeCapability_AccessMode_Mode {
	mode := v1.ReadWriteOnce
	if len(modes) > 0 {
		mode = modes[0]
	}
	single := d.capabilities[csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER]
	switch {
	case mode == v1.ReadWriteMany:
		return csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	case mode == v1.ReadOnlyMany:
		return csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case !single:
		return csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	case mode == v1.ReadWriteOncePod:
		return csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	}
	return csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
}
