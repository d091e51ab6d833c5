package persistentvolume

import (
	"context"
	"fmt"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	volumehelpers "k8s.io/component-helpers/storage/volume"
)

// syncVolume sets the phase of a volume according to its claim, and reclaims the volume if the claim was deleted. If
// the claim is bound to another volume, this volume is released or becomes available.
func (c *Controller) syncVolume(ctx context.Context, pv *corev1.PersistentVolume) error {
	ref := pv.Spec.ClaimRef
	if ref == nil || ref.UID == "" {
		_, err := c.volumePhase(ctx, pv, corev1.VolumeAvailable, "")
		return err
	}
	pvc, err := c.claim(ref.Namespace, ref.Name)
	if err != nil {
		return err
	}
	if pvc == nil || pvc.UID != ref.UID {
		// The caches of claims and volumes are independent: the claim may be missing in the cache
		// only.
		pvc, err = c.env.Kube.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("getting claim of volume %s: %w", pv.Name, err)
		}
		if err != nil || pvc.UID != ref.UID {
			return c.release(ctx, pv)
		}
	}
	switch pvc.Spec.VolumeName {
	case "":
		if volumehelpers.CheckVolumeModeMismatches(&pvc.Spec, &pv.Spec) {
			message := fmt.Sprintf("Cannot bind PersistentVolume to requested PersistentVolumeClaim %q due to incompatible volumeMode.", pvc.Name)
			c.env.Events.Event(pv, corev1.EventTypeWarning, "VolumeMismatch", message)
			message = fmt.Sprintf("Cannot bind PersistentVolume %q to requested PersistentVolumeClaim %q due to incompatible volumeMode.", pv.Name, pvc.Name)
			c.env.Events.Event(pvc, corev1.EventTypeWarning, "VolumeMismatch", message)
			return nil
		}
		// The claim's sync completes the binding.
		c.Add(claimKey + pvc.Namespace + "/" + pvc.Name)
		return nil
	case pv.Name:
		_, err := c.volumePhase(ctx, pv, corev1.VolumeBound, "")
		return err
	}
	// The claim is bound to another volume.
	if metav1.HasAnnotation(pv.ObjectMeta, volumehelpers.AnnDynamicallyProvisioned) && pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		return c.release(ctx, pv)
	}
	return c.unbind(ctx, pv)
}

// release sets the phase of a volume to Released, unless it is Failed, and applies its reclaim policy. The claim of the
// volume was deleted or is bound to another volume.
func (c *Controller) release(ctx context.Context, pv *corev1.PersistentVolume) error {
	if pv.Status.Phase != corev1.VolumeReleased && pv.Status.Phase != corev1.VolumeFailed {
		var err error
		if pv, err = c.volumePhase(ctx, pv, corev1.VolumeReleased, ""); err != nil {
			return err
		}
	}
	switch pv.Spec.PersistentVolumeReclaimPolicy {
	case corev1.PersistentVolumeReclaimRetain:
		return nil
	case corev1.PersistentVolumeReclaimRecycle:
		return c.recycle(ctx, pv)
	case corev1.PersistentVolumeReclaimDelete:
		return c.delete(ctx, pv)
	default:
		return c.failVolume(ctx, pv, "VolumeUnknownReclaimPolicy", "Volume has unrecognized PersistentVolumeReclaimPolicy")
	}
}

// deletableHostPath matches the host paths that upstream's controller deletes itself. It only affects the message about
// volumes that cannot be deleted.
var deletableHostPath = regexp.MustCompile(`^/tmp/.+$`)

// delete handles a released volume with the reclaim policy Delete. It leaves the deletion to the volume's provisioner.
// A volume without a provisioner cannot be deleted, so its phase becomes Failed.
func (c *Controller) delete(ctx context.Context, pv *corev1.PersistentVolume) error {
	if metav1.HasAnnotation(pv.ObjectMeta, volumehelpers.AnnDynamicallyProvisioned) || metav1.HasAnnotation(pv.ObjectMeta, volumehelpers.AnnMigratedTo) {
		return nil
	}
	if pv.Spec.CSI != nil {
		return nil
	}
	message := fmt.Sprintf("error getting deleter volume plugin for volume %q: no deletable volume plugin matched", pv.Name)
	if h := pv.Spec.HostPath; h != nil && !deletableHostPath.MatchString(h.Path) {
		message = fmt.Sprintf("host_path deleter only supports /tmp/.+ but received provided %s", h.Path)
	}
	return c.failVolume(ctx, pv, "VolumeFailedDelete", message)
}

// unbind removes the reference to a claim from a volume, which becomes available. If a user or provisioner has set the
// reference, only its UID is removed, so that another claim of the same name can be bound.
func (c *Controller) unbind(ctx context.Context, pv *corev1.PersistentVolume) error {
	next := pv.DeepCopy()
	if metav1.HasAnnotation(pv.ObjectMeta, volumehelpers.AnnBoundByController) {
		next.Spec.ClaimRef = nil
		delete(next.Annotations, volumehelpers.AnnBoundByController)
	} else {
		next.Spec.ClaimRef.UID = ""
	}
	pv, err := c.writeVolume(ctx, pv, next)
	if err != nil {
		return err
	}
	_, err = c.volumePhase(ctx, pv, corev1.VolumeAvailable, "")
	return err
}
