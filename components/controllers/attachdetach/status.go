package attachdetach

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// attachedVolumes is the list of attached volumes to write to a node's status, and the pods that use each volume.
type attachedVolumes struct {
	volumes []corev1.AttachedVolume
	users   map[corev1.UniqueVolumeName]*desiredVolume
}

// add adds an attached volume. w is nil if no pod uses the volume any more.
func (s *attachedVolumes) add(name corev1.UniqueVolumeName, w *desiredVolume) {
	s.volumes = append(s.volumes, corev1.AttachedVolume{Name: name})
	if w != nil {
		s.users[name] = w
	}
}

// updateNodeStatus writes the list of attached volumes to the status of a node: the iSCSI disks in next and the volumes
// of the attached VolumeAttachments in have, except those in drop, which are about to be detached. It emits an event on
// the pods in wanted whose volumes are newly attached. It is not an error if the node was deleted.
func (c *Controller) updateNodeStatus(ctx context.Context, n *corev1.Node, next *attachedVolumes, have map[string]*storagev1.VolumeAttachment, wanted map[string]*desiredVolume, drop map[string]bool) error {
	for name, a := range have {
		if !a.Status.Attached || a.DeletionTimestamp != nil || drop[name] {
			continue
		}
		if volume, known := c.volumeOf(n, a); known {
			next.add(volume, wanted[name])
		}
	}
	byName := func(x, y corev1.AttachedVolume) int { return cmp.Compare(x.Name, y.Name) }
	slices.SortFunc(next.volumes, byName)
	old := slices.Clone(n.Status.VolumesAttached)
	slices.SortFunc(old, byName)
	if slices.Equal(old, next.volumes) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": n.UID}, "status": map[string]any{"volumesAttached": append([]corev1.AttachedVolume{}, next.volumes...)}})
	if err != nil {
		return fmt.Errorf("encoding node status: %w", err)
	}
	_, err = c.env.Kube.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("updating attached volumes of node %s: %w", n.Name, err)
	}
	for _, v := range c.newlyAttached(n, old, next.volumes) {
		w := next.users[v.Name]
		if w == nil {
			continue
		}
		name := string(v.Name)
		if w.pv != nil {
			name = w.pv.Name
		}
		w.emitEvent(c.env.Events, corev1.EventTypeNormal, "SuccessfulAttachVolume", fmt.Sprintf("AttachVolume.Attach succeeded for volume %q ", name))
	}
	return nil
}

// newlyAttached returns the volumes in now that were not attached before. old is the list in the cached status of the
// node; the cache may not contain the controller's last write yet, so that is considered too.
func (c *Controller) newlyAttached(n *corev1.Node, old, now []corev1.AttachedVolume) []corev1.AttachedVolume {
	c.mu.Lock()
	defer c.mu.Unlock()
	old = append(old, c.lastWritten[n.UID]...)
	c.lastWritten[n.UID] = now
	return slices.DeleteFunc(slices.Clone(now), func(v corev1.AttachedVolume) bool { return slices.Contains(old, v) })
}

// forgetNode discards the list of attached volumes that the controller has last written to the status of the node n,
// which was deleted.
func (c *Controller) forgetNode(n *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.lastWritten, n.UID)
}
