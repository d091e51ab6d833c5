package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	volumehelpers "k8s.io/component-helpers/storage/volume"
)

// Claims reads PersistentVolumeClaims and the PersistentVolumes that they are bound to. Errors are those of
// the API.
type Claims interface {
	Claim(ctx context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error)
	Volume(ctx context.Context, name string) (*v1.PersistentVolume, error)
}

// PersistentRequest is a request to set up a persistent volume for a pod.
type PersistentRequest struct {
	Pod *v1.Pod
	// Volume is the volume of the pod spec; Claim and PV are the objects that it refers to. They
	// are shared and must not be modified.
	Volume *v1.Volume
	Claim  *v1.PersistentVolumeClaim
	PV     *v1.PersistentVolume
	// Dir is the pod's directory of the volume: …/volumes/NAME/PV. Its parent exists.
	// SetUpPersistent must create Dir: its existence shows that the pod uses the volume, and
	// everything that is mounted there is unmounted when the pod terminates.
	Dir string
	// Fresh means that the volume has not been set up for the pod before.
	Fresh bool
	// ReadOnly means that the pod mounts the volume read-only.
	ReadOnly bool
}

// PersistentType is a type of persistent volumes, e.g. local or CSI.
type PersistentType interface {
	// Name is the name of the directory of these volumes below a pod's volumes directory, as
	// upstream names its plugins.
	Name() string
	// IsPersistent reports whether the volume is of this type.
	IsPersistent(pv *v1.PersistentVolume) bool
	// SetUpPersistent makes the volume usable for the pod, or verifies that it is. It is
	// idempotent.
	SetUpPersistent(ctx context.Context, r PersistentRequest) (Result, error)
}

// BlockType is a PersistentType that supports volumes of volumeMode Block: containers get a device instead of
// a mounted file system.
type BlockType interface {
	// SetUpBlock is like SetUpPersistent. Dir of the request is …/volumeDevices/NAME/PV, and the Result has a
	// Device instead of a Path.
	SetUpBlock(ctx context.Context, r PersistentRequest) (Result, error)
}

// Claim is the Type of volumes that refer to a PersistentVolumeClaim, including the claim of a generic ephemeral
// volume. It finds the PersistentVolume of the claim, checks that this node may use it, and sets it up by the
// PersistentType of the volume.
//
// https://kubernetes.io/docs/concepts/storage/persistent-volumes/
type Claim struct {
	Claims Claims
	// Node returns the Node object, or nil while it is not known.
	Node  func() *v1.Node
	Types []PersistentType
}

// Name returns "", because the directory of the volume is that of its PersistentType.
func (Claim) Name() string { return "" }

// Is reports whether v refers to a PersistentVolumeClaim, by name or as a generic ephemeral volume.
func (Claim) Is(v *v1.Volume) bool { return RefersToClaim(v) }

// SetUp sets up the PersistentVolume that the claim is bound to. It returns an error, to be retried, while the
// claim is not bound or the Node object is unknown, if the claim of an ephemeral volume belongs to another pod,
// and if the pod, the node or the volume mode does not match the volume. It returns ErrUnsupported if no
// PersistentType supports the volume.
func (t Claim) SetUp(ctx context.Context, r Request) (Result, error) {
	name, readOnly := r.Pod.Name+"-"+r.Volume.Name, false
	if src := r.Volume.PersistentVolumeClaim; src != nil {
		name, readOnly = src.ClaimName, src.ReadOnly
	}
	pvc, err := t.Claims.Claim(ctx, r.Pod.Namespace, name)
	if err != nil {
		return Result{}, fmt.Errorf("error processing PVC %s/%s: failed to fetch PVC from API server: %w", r.Pod.Namespace, name, err)
	}
	fail := func(err error) (Result, error) {
		return Result{}, fmt.Errorf("error processing PVC %s/%s: %w", r.Pod.Namespace, name, err)
	}
	if r.Volume.Ephemeral != nil && !metav1.IsControlledBy(pvc, r.Pod) {
		return fail(fmt.Errorf("PVC %s/%s was not created for pod %s/%s (pod is not owner)", pvc.Namespace, pvc.Name, r.Pod.Namespace, r.Pod.Name))
	}
	if pvc.Status.Phase != v1.ClaimBound || pvc.Spec.VolumeName == "" {
		return fail(errors.New("PVC is not bound"))
	}
	pv, err := t.Claims.Volume(ctx, pvc.Spec.VolumeName)
	if err != nil {
		return fail(fmt.Errorf("failed to fetch PV %s from API server: %w", pvc.Spec.VolumeName, err))
	}
	if ref := pv.Spec.ClaimRef; ref == nil || ref.UID != pvc.UID {
		return fail(fmt.Errorf("PV %s is not bound to the claim", pv.Name))
	}
	block := pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == v1.PersistentVolumeBlock
	mounts, devices := usageModes(r.Pod, r.Volume.Name)
	if mounts && block {
		return Result{}, fmt.Errorf("volume %s has volumeMode Block, but is specified in volumeMounts", r.Volume.Name)
	}
	if devices && !block {
		return Result{}, fmt.Errorf("volume %s has volumeMode Filesystem, but is specified in volumeDevices", r.Volume.Name)
	}
	node := t.Node()
	if node == nil {
		return fail(errors.New("the Node object is not available yet"))
	}
	if err := volumehelpers.CheckNodeAffinity(pv, node.Labels); err != nil {
		return fail(fmt.Errorf("PV %s has a node affinity that this node does not match: %w", pv.Name, err))
	}
	for _, own := range t.Types {
		if !own.IsPersistent(pv) {
			continue
		}
		return t.setUp(ctx, own, PersistentRequest{Pod: r.Pod, Volume: r.Volume, Claim: pvc, PV: pv, ReadOnly: readOnly}, filepath.Dir(r.Dir), block)
	}
	return Result{}, ErrUnsupported
}

// setUp sets up a PersistentVolume. own is the type that supports it, and volumes is the pod's volumes
// directory. block is true for volumeMode Block. On first use, it fails if the claim is being deleted or
// another pod uses a ReadWriteOncePod volume. Errors of the type are returned as a Failure, which appears in
// the pod's events.
func (t Claim) setUp(ctx context.Context, own PersistentType, r PersistentRequest, volumes string, block bool) (Result, error) {
	parent, setUp, operation := filepath.Join(volumes, own.Name()), own.SetUpPersistent, "MountVolume.SetUp"
	if block {
		device, ok := own.(BlockType)
		if !ok {
			return Result{}, fmt.Errorf("no volume plugin matched for block volume %s", r.PV.Name)
		}
		parent, setUp, operation = filepath.Join(filepath.Dir(volumes), devicesDir, own.Name()), device.SetUpBlock, "MapVolume.SetUpDevice"
	}
	if err := os.MkdirAll(parent, 0o750); err != nil {
		return Result{}, fmt.Errorf("creating the volume's directory: %w", err)
	}
	r.Dir = filepath.Join(parent, r.PV.Name)
	_, err := os.Lstat(r.Dir)
	r.Fresh = errors.Is(err, os.ErrNotExist)
	if r.Fresh {
		// A claim with the finalizer continues to exist as long as the pod uses it.
		if r.Claim.DeletionTimestamp != nil && !slices.Contains(r.Claim.Finalizers, pvcProtection) {
			return Result{}, fmt.Errorf("can't start pod because PVC %s is being deleted", r.Claim.Name)
		}
		if err := checkSinglePodAccess(volumes, own.Name(), r.PV); err != nil {
			return Result{}, err
		}
	}
	result, err := setUp(ctx, r)
	driver := ""
	if r.PV.Spec.CSI != nil {
		driver = r.PV.Spec.CSI.Driver
	}
	plugin := pluginName(own.Name(), driver)
	if err != nil {
		var failure *Failure
		if !errors.As(err, &failure) && !errors.Is(err, context.DeadlineExceeded) {
			err = &Failure{Operation: operation, Volume: r.PV.Name, Err: err}
		}
		return Result{Plugin: plugin}, err
	}
	result.Persistent, result.Name, result.Plugin = true, r.PV.Name, plugin
	result.ReadOnly = result.ReadOnly || r.ReadOnly
	return result, nil
}

// pvcProtection is the finalizer that protects claims in use by pods from deletion.
const pvcProtection = "kubernetes.io/pvc-protection"

// checkSinglePodAccess returns an error if the access mode of the volume is ReadWriteOncePod and another pod
// of this node already uses it. volumes is the volumes directory of the requesting pod, and kind the
// directory name of the volume's type.
func checkSinglePodAccess(volumes, kind string, pv *v1.PersistentVolume) error {
	if len(pv.Spec.AccessModes) != 1 || pv.Spec.AccessModes[0] != v1.ReadWriteOncePod {
		return nil
	}
	used, err := usedByOtherPod(volumes, kind, pv)
	if err == nil && used {
		err = errors.New("volume uses the ReadWriteOncePod access mode and is already in use by another pod")
	}
	return err
}

// usedByOtherPod reports whether another pod on this node uses a PersistentVolume, that is, has a directory
// for it. volumes is the volumes directory of the requesting pod, and kind the directory name of the volume's
// type.
func usedByOtherPod(volumes, kind string, pv *v1.PersistentVolume) (bool, error) {
	// …/pods/UID/volumes
	own := filepath.Dir(volumes)
	pods := filepath.Dir(own)
	entries, err := os.ReadDir(pods)
	if err != nil {
		return false, fmt.Errorf("looking for other users of the volume: %w", err)
	}
	for _, e := range entries {
		if e.Name() == filepath.Base(own) {
			continue
		}
		for _, name := range []string{mountsDir, devicesDir} {
			if _, err := os.Lstat(filepath.Join(pods, e.Name(), name, kind, pv.Name)); err == nil {
				return true, nil
			}
		}
	}
	return false, nil
}

// usageModes reports whether the init and app containers of the pod use the volume of that name as a file
// system (volumeMounts), as a device (volumeDevices), or both.
func usageModes(pod *v1.Pod, name string) (mounts, devices bool) {
	look := func(list []v1.Container) {
		for i := range list {
			for j := range list[i].VolumeMounts {
				mounts = mounts || list[i].VolumeMounts[j].Name == name
			}
			for j := range list[i].VolumeDevices {
				devices = devices || list[i].VolumeDevices[j].Name == name
			}
		}
	}
	look(pod.Spec.InitContainers)
	look(pod.Spec.Containers)
	return mounts, devices
}

// makeDir creates Dir, which shows that the pod uses the volume. It stays empty if the volume is used at its
// original path on the node. An existing directory is no error.
func (r PersistentRequest) makeDir() error {
	if err := os.Mkdir(r.Dir, 0o750); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("creating the volume's directory: %w", err)
	}
	return nil
}
