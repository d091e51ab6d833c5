package persistentvolume

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	volumehelpers "k8s.io/component-helpers/storage/volume"

	"hyperkube/components/controllers/internal/storage"
)

const (
	// recyclerNamespace is the namespace of upstream's recycler pods.
	recyclerNamespace = metav1.NamespaceDefault
	// recyclerAnnotation contains the name of the volume that a pod recycles.
	recyclerAnnotation = "hyperkube.io/recycled-volume"
)

// recycle reclaims a released volume with the reclaim policy Recycle. It creates a pod that deletes the content of the
// volume; events of the pod trigger the next calls. When the pod has succeeded, the volume becomes available; when it
// has failed, the volume becomes failed. Volumes other than hostPath and NFS cannot be recycled and become failed, as
// do all if Config.Image is not set.
func (c *Controller) recycle(ctx context.Context, pv *corev1.PersistentVolume) error {
	if c.cfg.Image == "" || pv.Spec.HostPath == nil && pv.Spec.NFS == nil {
		return c.failVolume(ctx, pv, "VolumeFailedRecycle", "no recyclable volume plugin matched")
	}
	name := "recycler-for-" + pv.Name
	pods := c.env.Kube.CoreV1().Pods(recyclerNamespace)
	pod, err := c.pods.Pods(recyclerNamespace).Get(name)
	if apierrors.IsNotFound(err) {
		_, err = pods.Create(ctx, storage.Scrubber{
			Image: c.cfg.Image, Namespace: recyclerNamespace, Name: name,
			Annotations: map[string]string{recyclerAnnotation: pv.Name},
			Source:      corev1.VolumeSource{HostPath: pv.Spec.HostPath, NFS: pv.Spec.NFS},
		}.Pod(), metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating pod that recycles volume %s: %w", pv.Name, err)
		}
		return nil
	}
	if err != nil {
		return err
	}
	ended, failure := storage.Terminated(pod)
	if !ended || pod.DeletionTimestamp != nil || pod.Annotations[recyclerAnnotation] != pv.Name {
		return nil
	}
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting pod that recycled volume %s: %w", pv.Name, err)
	}
	if failure != "" {
		return c.failVolume(ctx, pv, "VolumeFailedRecycle", "Recycle failed: "+failure)
	}
	c.env.Events.Event(pv, corev1.EventTypeNormal, "VolumeRecycled", "Volume recycled")
	next := pv.DeepCopy()
	// The volume becomes available, even if a user set the claim reference.
	next.Spec.ClaimRef = nil
	delete(next.Annotations, volumehelpers.AnnBoundByController)
	if pv, err = c.writeVolume(ctx, pv, next); err != nil {
		return err
	}
	_, err = c.volumePhase(ctx, pv, corev1.VolumeAvailable, "")
	return err
}
