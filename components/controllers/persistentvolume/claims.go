package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	volumehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"hyperkube/internal/api/podrefs"
)

// syncUnboundClaim finds a matching volume for a claim and binds it. If there is none, the claim gets the default
// storage class, or a provisioner is requested to create a volume. A claim with delayed binding waits for the
// scheduler.
func (c *Controller) syncUnboundClaim(ctx context.Context, pvc *corev1.PersistentVolumeClaim) error {
	if pvc.Spec.VolumeName != "" {
		return c.syncNamedVolume(ctx, pvc)
	}
	delayed, err := volumehelpers.IsDelayBindingMode(pvc, c.classes)
	if err != nil {
		return err
	}
	all, err := c.allVolumes()
	if err != nil {
		return err
	}
	candidates := slices.DeleteFunc(all, func(pv *corev1.PersistentVolume) bool { return !volumehelpers.CheckAccessModes(pvc, pv) })
	pv, err := volumehelpers.FindMatchingVolume(pvc, candidates, nil, nil, delayed, true)
	if err != nil {
		return fmt.Errorf("finding volume for claim %s/%s: %w", pvc.Namespace, pvc.Name, err)
	}
	if pv != nil {
		return c.bind(ctx, pv, pvc)
	}
	if changed, err := c.assignClass(ctx, pvc); changed || err != nil {
		return err
	}
	switch {
	case delayed && !volumehelpers.IsDelayBindingProvisioning(pvc):
		c.recordDelayedBinding(pvc)
	case volumehelpers.GetPersistentVolumeClaimClass(pvc) != "":
		return c.provision(ctx, pvc)
	default:
		c.env.Events.Event(pvc, corev1.EventTypeNormal, "FailedBinding", "no persistent volumes available for this claim and no storage class is set")
	}
	return c.claimStatus(ctx, pvc, corev1.ClaimPending, nil)
}

// recordDelayedBinding emits an event on a claim with delayed binding that states what it is waiting for: a pod that
// uses the claim, or the scheduling of such pods.
func (c *Controller) recordDelayedBinding(pvc *corev1.PersistentVolumeClaim) {
	reason, message := "WaitForFirstConsumer", "waiting for first consumer to be created before binding"
	pods, err := c.pods.Pods(pvc.Namespace).List(labels.Everything())
	if err != nil {
		return
	}
	var waiting []string
	for _, p := range pods {
		if p.Spec.NodeName == "" && p.DeletionTimestamp == nil && uses(p, pvc.Name) {
			waiting = append(waiting, p.Name)
		}
	}
	if len(waiting) > 0 {
		slices.Sort(waiting)
		reason, message = "WaitForPodScheduled", fmt.Sprintf("waiting for pod %s to be scheduled", strings.Join(waiting, ","))
		if len(waiting) > 1 {
			message = fmt.Sprintf("waiting for pods %s to be scheduled", strings.Join(waiting, ","))
		}
	}
	c.env.Events.Event(pvc, corev1.EventTypeNormal, reason, message)
}

// uses reports whether a pod uses the claim with this name.
func uses(p *corev1.Pod, claim string) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
		return podrefs.ClaimName(p, &v) == claim
	})
}

// assignClass assigns the default storage class, the newest if there are several, to a claim without a class, which may
// have been created before there was a default class. It reports whether the claim was changed.
func (c *Controller) assignClass(ctx context.Context, pvc *corev1.PersistentVolumeClaim) (bool, error) {
	if volumehelpers.PersistentVolumeClaimHasClass(pvc) {
		return false, nil
	}
	all, err := c.classes.List(labels.Everything())
	if err != nil {
		return false, err
	}
	var class *storagev1.StorageClass
	for _, k := range all {
		if k.Annotations["storageclass.kubernetes.io/is-default-class"] != "true" && k.Annotations["storageclass.beta.kubernetes.io/is-default-class"] != "true" {
			continue
		}
		// Choose the newest default class; if there are two, the first by name.
		if class == nil || class.CreationTimestamp.Before(&k.CreationTimestamp) ||
			class.CreationTimestamp.Equal(&k.CreationTimestamp) && k.Name < class.Name {
			class = k
		}
	}
	if class == nil {
		return false, nil
	}
	next := pvc.DeepCopy()
	next.Spec.StorageClassName = &class.Name
	return true, c.writeClaim(ctx, pvc, next)
}

// syncNamedVolume binds a claim to the volume that its spec names, if the volume matches and is not bound to another
// claim. Otherwise the claim stays pending. It returns an error if this controller chose the volume but another claim
// has it.
func (c *Controller) syncNamedVolume(ctx context.Context, pvc *corev1.PersistentVolumeClaim) error {
	pv, err := c.volume(pvc.Spec.VolumeName)
	switch {
	case err != nil:
		return err
	case pv == nil:
		return c.claimStatus(ctx, pvc, corev1.ClaimPending, nil)
	case pv.Spec.ClaimRef == nil:
		if err := satisfies(pv, pvc); err != nil {
			c.env.Events.Event(pvc, corev1.EventTypeWarning, "VolumeMismatch", fmt.Sprintf("Cannot bind to requested volume %q: %s", pv.Name, err))
			return c.claimStatus(ctx, pvc, corev1.ClaimPending, nil)
		}
		return c.bind(ctx, pv, pvc)
	case volumehelpers.IsVolumeBoundToClaim(pv, pvc):
		return c.bind(ctx, pv, pvc)
	case metav1.HasAnnotation(pvc.ObjectMeta, volumehelpers.AnnBoundByController):
		return fmt.Errorf("invalid binding of claim %q to volume %q: volume already claimed by %q",
			pvc.Namespace+"/"+pvc.Name, pv.Name, pv.Spec.ClaimRef.Namespace+"/"+pv.Spec.ClaimRef.Name)
	default:
		c.env.Events.Event(pvc, corev1.EventTypeWarning, "FailedBinding", fmt.Sprintf("volume %q already bound to a different claim.", pv.Name))
		return c.claimStatus(ctx, pvc, corev1.ClaimPending, nil)
	}
}

// satisfies returns the reason why a volume does not match a claim, or nil.
func satisfies(pv *corev1.PersistentVolume, pvc *corev1.PersistentVolumeClaim) error {
	want, has := pvc.Spec.Resources.Requests[corev1.ResourceStorage], pv.Spec.Capacity[corev1.ResourceStorage]
	switch {
	case pv.DeletionTimestamp != nil:
		return errors.New("the volume is marked for deletion")
	case has.Cmp(want) < 0:
		return errors.New("requested PV is too small")
	case volumehelpers.GetPersistentVolumeClass(pv) != volumehelpers.GetPersistentVolumeClaimClass(pvc):
		return errors.New("storageClassName does not match")
	case ptr.Deref(pv.Spec.VolumeAttributesClassName, "") != ptr.Deref(pvc.Spec.VolumeAttributesClassName, ""):
		return errors.New("volumeAttributesClassName does not match")
	case volumehelpers.CheckVolumeModeMismatches(&pvc.Spec, &pv.Spec):
		return errors.New("incompatible volumeMode")
	case !volumehelpers.CheckAccessModes(pvc, pv):
		return errors.New("incompatible accessMode")
	}
	return nil
}

// syncBoundClaim checks the volume of a bound claim and completes the binding. If the volume does not exist or is bound
// to another claim, the phase of the claim becomes Lost.
func (c *Controller) syncBoundClaim(ctx context.Context, pvc *corev1.PersistentVolumeClaim) error {
	lost := func(reason, message string) error {
		if pvc.Status.Phase == corev1.ClaimLost {
			return nil
		}
		if err := c.claimStatus(ctx, pvc, corev1.ClaimLost, nil); err != nil {
			return err
		}
		c.env.Events.Event(pvc, corev1.EventTypeWarning, reason, message)
		return nil
	}
	if pvc.Spec.VolumeName == "" {
		return lost("ClaimLost", "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
	}
	pv, err := c.volume(pvc.Spec.VolumeName)
	switch {
	case err != nil:
		return err
	case pv == nil:
		// The caches of claims and volumes are independent: the volume may be missing in the cache
		// only.
		_, err := c.env.Kube.CoreV1().PersistentVolumes().Get(ctx, pvc.Spec.VolumeName, metav1.GetOptions{})
		if err == nil {
			return nil // the volume's event triggers another sync
		}
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("getting volume %s: %w", pvc.Spec.VolumeName, err)
		}
		return lost("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
	case pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID == pvc.UID:
		return c.bind(ctx, pv, pvc)
	default:
		return lost("ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly")
	}
}

// provision requests a volume from the provisioner of the claim's storage class, by setting the provisioner annotation
// of the claim. Without a usable class, it emits an event and the claim stays pending. With Config.NoProvisioning, it
// only sets the phase Pending.
func (c *Controller) provision(ctx context.Context, pvc *corev1.PersistentVolumeClaim) error {
	if c.cfg.NoProvisioning {
		return c.claimStatus(ctx, pvc, corev1.ClaimPending, nil)
	}
	fail := func(message string) error {
		c.env.Events.Event(pvc, corev1.EventTypeWarning, "ProvisioningFailed", message)
		return c.claimStatus(ctx, pvc, corev1.ClaimPending, nil)
	}
	class, err := c.classes.Get(volumehelpers.GetPersistentVolumeClaimClass(pvc))
	if apierrors.IsNotFound(err) {
		return fail(err.Error())
	}
	if err != nil {
		return err
	}
	if strings.HasPrefix(class.Provisioner, "kubernetes.io/") {
		return fail(fmt.Sprintf("no volume plugin matched name: %s", class.Provisioner))
	}
	if pvc.Annotations[volumehelpers.AnnStorageProvisioner] != class.Provisioner || pvc.Annotations[volumehelpers.AnnBetaStorageProvisioner] != class.Provisioner {
		next := pvc.DeepCopy()
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, volumehelpers.AnnBetaStorageProvisioner, class.Provisioner)
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, volumehelpers.AnnStorageProvisioner, class.Provisioner)
		if err := c.writeClaim(ctx, pvc, next); err != nil {
			return err
		}
	}
	c.env.Events.Event(pvc, corev1.EventTypeNormal, "ExternalProvisioning", fmt.Sprintf(
		"Waiting for a volume to be created either by the external provisioner '%s' or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered.",
		class.Provisioner))
	return nil
}
