package localpath

import (
	"context"
	"fmt"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"hyperkube/components/controllers/internal/storage"
	"hyperkube/internal/pod/localpath"
)

// removerAnnotation is the annotation of a pod with the name of the volume whose directory the pod removes.
const removerAnnotation = "hyperkube.io/removed-volume"

// removerName returns the name of the pod that removes the directory of a volume.
func removerName(volume string) string { return "remove-" + volume }

// syncVolume deletes pv after its claim was deleted, if its reclaim policy is Delete, and keeps the finalizer until the
// directory is removed. If a client deletes a volume with another policy, or one that was not released by a claim, it
// removes the finalizer and keeps the directory. Bound volumes keep the finalizer.
func (c *Controller) syncVolume(ctx context.Context, pv *corev1.PersistentVolume) error {
	remove := pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete && pv.Status.Phase == corev1.VolumeReleased
	if pv.DeletionTimestamp == nil {
		if !remove {
			return nil
		}
		err := c.env.Kube.CoreV1().PersistentVolumes().Delete(ctx, pv.Name, metav1.DeleteOptions{Preconditions: uid(pv.UID)})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting volume %s: %w", pv.Name, err)
		}
		return nil
	}
	if !slices.Contains(pv.Finalizers, localpath.Finalizer) || pv.Status.Phase == corev1.VolumeBound {
		return nil
	}
	if remove {
		gone, err := c.removeDirectory(ctx, pv)
		if err != nil || !gone {
			return err
		}
	}
	next := pv.DeepCopy()
	next.Finalizers = slices.DeleteFunc(next.Finalizers, func(f string) bool { return f == localpath.Finalizer })
	if _, err := c.env.Kube.CoreV1().PersistentVolumes().Update(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("removing finalizer of volume %s: %w", pv.Name, err)
	}
	return c.deleteRemoverPod(ctx, pv.Name)
}

// removeDirectory creates a pod that removes the directory of pv, unless it exists already, and reports whether the
// directory is removed. It also reports true if the node does not exist any more. If the pod failed, it emits an event,
// deletes the pod and returns an error, so that the retry creates a new one.
func (c *Controller) removeDirectory(ctx context.Context, pv *corev1.PersistentVolume) (bool, error) {
	nodes, err := c.nodes.List(labels.SelectorFromSet(labels.Set{corev1.LabelHostname: localpath.Hostname(pv)}))
	if err != nil {
		return false, err
	}
	if len(nodes) == 0 {
		return true, nil
	}
	name := removerName(pv.Name)
	pod, err := c.pods.Pods(metav1.NamespaceSystem).Get(name)
	if apierrors.IsNotFound(err) {
		_, err := c.env.Kube.CoreV1().Pods(metav1.NamespaceSystem).Create(ctx, storage.Scrubber{
			Image: c.image, Namespace: metav1.NamespaceSystem, Name: name, Node: nodes[0].Name,
			Annotations: map[string]string{removerAnnotation: pv.Name},
			Source: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{
				Path: path.Dir(pv.Spec.Local.Path), Type: ptr.To(corev1.HostPathDirectoryOrCreate),
			}},
			Entry: pv.Name,
		}.Pod(), metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return false, fmt.Errorf("creating pod that removes volume %s: %w", pv.Name, err)
		}
		return false, nil
	}
	if err != nil {
		return false, err
	}
	ended, failure := storage.Terminated(pod)
	switch {
	case !ended || pod.DeletionTimestamp != nil:
		return false, nil
	case failure == "":
		return true, nil
	}
	// The returned error causes a retry, with back-off. It creates a new pod.
	c.env.Events.Event(pv, corev1.EventTypeWarning, "VolumeFailedDelete", failure)
	if err := c.deleteRemoverPod(ctx, pv.Name); err != nil {
		return false, err
	}
	return false, fmt.Errorf("removing directory of volume %s: %s", pv.Name, failure)
}

// deleteRemoverPod deletes the pod that removed the directory of a volume, if it exists. volume is the volume's name.
func (c *Controller) deleteRemoverPod(ctx context.Context, volume string) error {
	pod, err := c.pods.Pods(metav1.NamespaceSystem).Get(removerName(volume))
	if apierrors.IsNotFound(err) || err == nil && pod.DeletionTimestamp != nil {
		return nil
	}
	if err != nil {
		return err
	}
	err = c.env.Kube.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: uid(pod.UID)})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting pod that removed volume %s: %w", volume, err)
	}
	return nil
}
