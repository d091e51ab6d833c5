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

// statement is what a node's status is to say of what is attached to it, and who wants
// that.
type statement struct {
	volumes []corev1.AttachedVolume
	wants   map[corev1.UniqueVolumeName]*want
}

// add says that a volume is attached. w may be nil: nobody wants it any more.
func (s *statement) add(name corev1.UniqueVolumeName, w *want) {
	s.volumes = append(s.volumes, corev1.AttachedVolume{Name: name})
	if w != nil {
		s.wants[name] = w
	}
}

// tellNode writes what is attached into the node's status, beside the disks of targets
// that next has, and tells the pods of what is there since.
func (c *Controller) tellNode(ctx context.Context, n *corev1.Node, next *statement, have map[string]*storagev1.VolumeAttachment, wanted map[string]*want, drop map[string]bool) error {
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
		return fmt.Errorf("encoding the node's status: %w", err)
	}
	_, err = c.env.Kube.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("telling node %s what is attached: %w", n.Name, err)
	}
	for _, v := range c.fresh(n, old, next.volumes) {
		w := next.wants[v.Name]
		if w == nil {
			continue
		}
		name := string(v.Name)
		if w.pv != nil {
			name = w.pv.Name
		}
		w.tell(c.env.Events, corev1.EventTypeNormal, "SuccessfulAttachVolume", fmt.Sprintf("AttachVolume.Attach succeeded for volume %q ", name))
	}
	return nil
}

// fresh returns what is attached to a node since the last time. The cache may lack what
// was written a moment ago.
func (c *Controller) fresh(n *corev1.Node, old, now []corev1.AttachedVolume) []corev1.AttachedVolume {
	c.mu.Lock()
	defer c.mu.Unlock()
	old = append(old, c.written[n.UID]...)
	c.written[n.UID] = now
	return slices.DeleteFunc(slices.Clone(now), func(v corev1.AttachedVolume) bool { return slices.Contains(old, v) })
}

// forget forgets what was written into the status of a node that is gone.
func (c *Controller) forget(n *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.written, n.UID)
}
