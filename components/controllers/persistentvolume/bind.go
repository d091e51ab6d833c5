package persistentvolume

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	volumehelpers "k8s.io/component-helpers/storage/volume"
)

// bind binds a volume and a claim to each other with up to four writes: the volume, its phase, the claim and its
// status. It skips writes that were done already, so that another call completes an interrupted binding.
func (c *Controller) bind(ctx context.Context, pv *corev1.PersistentVolume, pvc *corev1.PersistentVolumeClaim) error {
	next, changed, err := volumehelpers.GetBindVolumeToClaim(pv, pvc)
	if err != nil {
		return fmt.Errorf("binding volume %s: %w", pv.Name, err)
	}
	if changed {
		if pv, err = c.writeVolume(ctx, pv, next); err != nil {
			return err
		}
	}
	if pv, err = c.volumePhase(ctx, pv, corev1.VolumeBound, ""); err != nil {
		return err
	}
	bound := pvc.DeepCopy()
	if bound.Spec.VolumeName != pv.Name {
		bound.Spec.VolumeName = pv.Name
		metav1.SetMetaDataAnnotation(&bound.ObjectMeta, volumehelpers.AnnBoundByController, "yes")
	}
	if !metav1.HasAnnotation(bound.ObjectMeta, volumehelpers.AnnBindCompleted) {
		metav1.SetMetaDataAnnotation(&bound.ObjectMeta, volumehelpers.AnnBindCompleted, "yes")
		if err := c.writeClaim(ctx, pvc, bound); err != nil {
			return err
		}
		if pvc, err = c.claim(pvc.Namespace, pvc.Name); pvc == nil || err != nil {
			return err
		}
	}
	return c.claimStatus(ctx, pvc, corev1.ClaimBound, pv)
}

// writeVolume updates a volume in the API server and returns the result. old is the version before the change.
func (c *Controller) writeVolume(ctx context.Context, old, next *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	written, err := c.env.Kube.CoreV1().PersistentVolumes().Update(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("updating volume %s: %w", next.Name, err)
	}
	c.lastVolume.RecordWrite(old, written)
	return written, nil
}

// writeClaim updates a claim in the API server. old is the version before the change.
func (c *Controller) writeClaim(ctx context.Context, old, next *corev1.PersistentVolumeClaim) error {
	written, err := c.env.Kube.CoreV1().PersistentVolumeClaims(next.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("updating claim %s/%s: %w", next.Namespace, next.Name, err)
	}
	c.lastClaim.RecordWrite(old, written)
	return nil
}

// volumePhase sets the phase and message of a volume and returns the updated volume. It writes nothing if the volume
// has the phase already.
func (c *Controller) volumePhase(ctx context.Context, pv *corev1.PersistentVolume, phase corev1.PersistentVolumePhase, message string) (*corev1.PersistentVolume, error) {
	if pv.Status.Phase == phase {
		return pv, nil
	}
	next := pv.DeepCopy()
	next.Status.Phase, next.Status.Message = phase, message
	written, err := c.env.Kube.CoreV1().PersistentVolumes().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("updating status of volume %s: %w", pv.Name, err)
	}
	c.lastVolume.RecordWrite(pv, written)
	return written, nil
}

// failVolume sets the phase of a volume to Failed and emits a warning event. It does nothing if the phase is Failed
// already.
func (c *Controller) failVolume(ctx context.Context, pv *corev1.PersistentVolume, reason, message string) error {
	if pv.Status.Phase == corev1.VolumeFailed {
		return nil
	}
	written, err := c.volumePhase(ctx, pv, corev1.VolumeFailed, message)
	if err != nil {
		return err
	}
	c.env.Events.Event(written, corev1.EventTypeWarning, reason, message)
	return nil
}

// preResizeCapacity is the annotation with the size of a volume's file system, if the volume was expanded but its file
// system was not, because the claim that requested the expansion was deleted in between.
const preResizeCapacity = "volume.alpha.kubernetes.io/pre-resize-capacity"

// capacityBeforeResize returns the capacity for the status of a claim that is newly bound to a volume with the capacity
// has. If the file system is smaller than the volume, it returns the size of the file system, so that the kubelet
// expands it.
func capacityBeforeResize(pv *corev1.PersistentVolume, has resource.Quantity) resource.Quantity {
	if before, err := resource.ParseQuantity(pv.Annotations[preResizeCapacity]); err == nil {
		return before
	}
	return has
}

// claimStatus sets the phase of a claim, and its access modes and capacity to those of its volume pv, which is nil for
// a claim that is not bound. A claim that is already bound keeps its capacity, which the controller that expands
// volumes updates. It writes nothing if the status is the same.
func (c *Controller) claimStatus(ctx context.Context, pvc *corev1.PersistentVolumeClaim, phase corev1.PersistentVolumeClaimPhase, pv *corev1.PersistentVolume) error {
	next := pvc.DeepCopy()
	s := &next.Status
	s.Phase = phase
	if pv == nil {
		s.AccessModes, s.Capacity, s.CurrentVolumeAttributesClassName = nil, nil, nil
	} else {
		s.AccessModes = pv.Spec.AccessModes
		// After a volume expansion, the controller that expanded the volume updates the claim's
		// capacity.
		if has, ok := pv.Spec.Capacity[corev1.ResourceStorage]; ok && pvc.Status.Phase != corev1.ClaimBound || s.Capacity == nil {
			s.Capacity = corev1.ResourceList{corev1.ResourceStorage: capacityBeforeResize(pv, has)}
		}
		if pvc.Status.Phase != corev1.ClaimBound {
			s.CurrentVolumeAttributesClassName = nil
			if name := pv.Spec.VolumeAttributesClassName; name != nil && *name != "" {
				s.CurrentVolumeAttributesClassName = name
			}
		}
	}
	if apiequality.Semantic.DeepEqual(next.Status, pvc.Status) {
		return nil
	}
	written, err := c.env.Kube.CoreV1().PersistentVolumeClaims(pvc.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("updating status of claim %s/%s: %w", pvc.Namespace, pvc.Name, err)
	}
	c.lastClaim.RecordWrite(pvc, written)
	return nil
}
