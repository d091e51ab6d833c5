package attachdetach

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/record"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/internal/api/podrefs"
	"hyperkube/internal/pod/podutil"
)

// desiredVolume is a volume that should be attached to a node, and the pods on the node that use it. pv is nil for an
// iSCSI volume without a claim.
type desiredVolume struct {
	pv   *corev1.PersistentVolume
	pods []*corev1.Pod
}

// emitEvent emits an event of the type kind ("Normal" or "Warning") on each pod that uses the volume.
func (w *desiredVolume) emitEvent(events record.EventRecorder, kind, reason, message string) {
	for _, p := range w.pods {
		events.Event(p, kind, reason, message)
	}
}

// eachVolume calls yield for each volume of the pods on a node that have not terminated. The last argument is the
// PersistentVolume if the pod uses the volume through a claim, and else nil. Volumes whose claim is not bound are
// skipped.
func (c *Controller) eachVolume(node string, yield func(*corev1.Pod, *corev1.Volume, *corev1.PersistentVolume)) error {
	pods, err := control.PodsOnNode(c.pods, node)
	if err != nil {
		return err
	}
	for _, p := range pods {
		if podutil.Terminal(p) {
			continue
		}
		for i := range p.Spec.Volumes {
			v := &p.Spec.Volumes[i]
			name := podrefs.ClaimName(p, v)
			if name == "" {
				yield(p, v, nil)
				continue
			}
			pvc, err := c.claims.PersistentVolumeClaims(p.Namespace).Get(name)
			if err != nil || pvc.Spec.VolumeName == "" || pvc.Status.Phase != corev1.ClaimBound || v.Ephemeral != nil && !metav1.IsControlledBy(pvc, p) {
				continue
			}
			pv, err := c.volumes.Get(pvc.Spec.VolumeName)
			if err != nil || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != pvc.UID {
				continue
			}
			yield(p, v, pv)
		}
	}
	return nil
}

// desiredVolumes returns the volumes that should be attached to a node because its pods use them: CSI volumes by the
// name of their VolumeAttachment, and iSCSI disks by their unique volume name.
func (c *Controller) desiredVolumes(node string) (volumes map[string]*desiredVolume, disks map[corev1.UniqueVolumeName]*desiredVolume, err error) {
	volumes, disks = map[string]*desiredVolume{}, map[corev1.UniqueVolumeName]*desiredVolume{}
	err = c.eachVolume(node, func(p *corev1.Pod, v *corev1.Volume, pv *corev1.PersistentVolume) {
		if disk := diskOf(v, pv); disk != "" {
			if disks[disk] == nil {
				disks[disk] = &desiredVolume{pv: pv}
			}
			disks[disk].pods = append(disks[disk].pods, p)
		}
		if pv == nil || pv.Spec.CSI == nil || !c.attachable(pv.Spec.CSI.Driver) {
			return
		}
		key := attachmentName(pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle, node)
		if volumes[key] == nil {
			volumes[key] = &desiredVolume{pv: pv}
		}
		volumes[key].pods = append(volumes[key].pods, p)
	})
	return volumes, disks, err
}

// attachable reports whether the volumes of a CSI driver must be attached to nodes. This is the case unless the
// driver's CSIDriver object sets attachRequired to false.
func (c *Controller) attachable(driver string) bool {
	d, err := c.drivers.Get(driver)
	return err != nil || d.Spec.AttachRequired == nil || *d.Spec.AttachRequired
}

// attached returns those VolumeAttachments of a node that this controller has created, by name. It recognizes them by
// their names.
func (c *Controller) attached(node string) (map[string]*storagev1.VolumeAttachment, error) {
	all, err := c.attachments.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	out := map[string]*storagev1.VolumeAttachment{}
	for _, a := range all {
		if a.Spec.NodeName != node || a.Spec.Source.PersistentVolumeName == nil {
			continue
		}
		pv, err := c.volumes.Get(*a.Spec.Source.PersistentVolumeName)
		if err == nil && pv.Spec.CSI != nil && a.Name == attachmentName(pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle, node) ||
			err != nil && attachmentNameRE.MatchString(a.Name) {
			out[a.Name] = a
		}
	}
	return out, nil
}

// attachmentNameRE matches the names of the VolumeAttachments that this controller creates.
var attachmentNameRE = regexp.MustCompile(`^csi-[0-9a-f]{64}$`)

// volumeOf returns the unique name under which the node n reports the volume of the VolumeAttachment a. It returns
// false if the PersistentVolume was deleted and the node does not report the volume. n may be nil.
func (c *Controller) volumeOf(n *corev1.Node, a *storagev1.VolumeAttachment) (corev1.UniqueVolumeName, bool) {
	pv, err := c.volumes.Get(*a.Spec.Source.PersistentVolumeName)
	if err == nil && pv.Spec.CSI != nil {
		return uniqueName(pv.Spec.CSI), true
	}
	if n == nil {
		return "", false
	}
	names := slices.Clone(n.Status.VolumesInUse)
	for _, v := range n.Status.VolumesAttached {
		names = append(names, v.Name)
	}
	for _, name := range names {
		handle, ok := strings.CutPrefix(string(name), csiPrefix+a.Spec.Attacher+"^")
		if ok && attachmentName(a.Spec.Attacher, handle, n.Name) == a.Name {
			return name, true
		}
	}
	return "", false
}

// exclusive reports whether a volume can be attached to one node only. If the volume has no access
// modes, the CSI attacher decides.
func exclusive(pv *corev1.PersistentVolume) bool {
	return len(pv.Spec.AccessModes) > 0 && !slices.ContainsFunc(pv.Spec.AccessModes, func(m corev1.PersistentVolumeAccessMode) bool {
		return m == corev1.ReadWriteMany || m == corev1.ReadOnlyMany
	})
}

// emitMultiAttachError emits an event on the pods, which cannot start because their volume is attached to another node.
func (w *desiredVolume) emitMultiAttachError(events record.EventRecorder) {
	w.emitEvent(events, corev1.EventTypeWarning, "FailedAttachVolume", fmt.Sprintf(
		"Multi-Attach error for volume %q Volume is already exclusively attached to one node and can't be attached to another", w.pv.Name))
}

// attach creates the VolumeAttachment with this name for a volume, which requests the CSI driver to attach it. It does
// nothing if the volume is exclusive and attached to another node; the deletion of that VolumeAttachment triggers
// another sync.
func (c *Controller) attach(ctx context.Context, node, name string, w *desiredVolume) error {
	if exclusive(w.pv) {
		// The cache may not contain yet a VolumeAttachment just created for another node.
		if !c.reserve(w.pv.Name, node, name) {
			return fmt.Errorf("attaching volume %s to node %s: %w", w.pv.Name, node, control.ErrStale)
		}
		all, err := c.attachments.List(labels.Everything())
		if err != nil {
			return err
		}
		for _, a := range all {
			if a.Spec.NodeName != node && a.Spec.Source.PersistentVolumeName != nil && *a.Spec.Source.PersistentVolumeName == w.pv.Name {
				c.releaseReservation(w.pv.Name, name)
				w.emitMultiAttachError(c.env.Events)
				// The deletion of the other VolumeAttachment triggers another sync.
				return nil
			}
		}
	}
	_, err := c.env.Kube.StorageV1().VolumeAttachments().Create(ctx, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: w.pv.Spec.CSI.Driver, NodeName: node,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &w.pv.Name},
		},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		// The request may have succeeded despite the error, so keep the reservation until it
		// expires.
		return fmt.Errorf("attaching volume %s to node %s: %w", w.pv.Name, node, err)
	}
	return nil
}

// pendingTimeout is how long a VolumeAttachment that was created, but is not in the cache yet, reserves its
// volume.
const pendingTimeout = time.Minute

// pendingAttachment is an attachment of an exclusive volume that was requested and that the cache does not show yet.
// name identifies the attachment.
type pendingAttachment struct {
	node, name string
	since      time.Time
}

// reserve records that an exclusive volume is being attached to a node, because the cache does not show it immediately.
// It returns false if the volume has been reserved for another node within pendingTimeout. name identifies the attachment:
// the caller passes it to releaseReservation when the cache shows the attachment, or when it was not created.
func (c *Controller) reserve(volume, node, name string) bool {
	now := c.env.Clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if a, ok := c.pendingAttachments[volume]; ok && a.node != node && now.Sub(a.since) < pendingTimeout {
		return false
	}
	c.pendingAttachments[volume] = pendingAttachment{node, name, now}
	return true
}

// releaseReservation removes the reservation of a volume by the attachment with this name, because the attachment is in
// the cache or was not created.
func (c *Controller) releaseReservation(volume, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pendingAttachments[volume].name == name {
		delete(c.pendingAttachments, volume)
	}
}

// volumeDeleted queries the API server, because the cache may be stale, and reports whether a PersistentVolume does not
// exist.
func (c *Controller) volumeDeleted(ctx context.Context, volume string) (bool, error) {
	// The controller's RBAC role allows listing persistent volumes, not getting them.
	list, err := c.env.Kube.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", volume).String()})
	if err != nil {
		return false, fmt.Errorf("listing volume %s: %w", volume, err)
	}
	return !slices.ContainsFunc(list.Items, func(pv corev1.PersistentVolume) bool { return pv.Name == volume }), nil
}

// markUsed records that the volume of an attachment is in use or was detached. name identifies the attachment, as id
// in mayRemove. If the volume is unused later, forceDetachAfter is counted from then on.
func (c *Controller) markUsed(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.unusedSince, name)
}

// mayDetach reports whether the volume of the VolumeAttachment a, which no pod uses, can be detached from the node n
// now. It returns true if n is nil, because the node was deleted, and if the name of the volume is unknown. It returns
// false if a is being deleted.
func (c *Controller) mayDetach(n *corev1.Node, a *storagev1.VolumeAttachment) bool {
	if a.DeletionTimestamp != nil {
		return false // already being deleted
	}
	volume, known := c.volumeOf(n, a)
	return n == nil || !known || c.mayRemove(n, a.Name, volume)
}

// mayRemove reports whether an unused volume can be detached from a node: the node does not have it mounted any more,
// has the out-of-service taint, or is unhealthy and the volume has been unused for forceDetachAfter. id identifies the
// attachment in Controller.unusedSince. If it has to wait, it schedules another sync.
func (c *Controller) mayRemove(n *corev1.Node, id string, volume corev1.UniqueVolumeName) bool {
	if outOfService(n) || !slices.Contains(n.Status.VolumesInUse, volume) {
		return true
	}
	if c.forceDetachAfter <= 0 {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	since, ok := c.unusedSince[id]
	if !ok {
		since = c.env.Clock.Now()
		c.unusedSince[id] = since
	}
	left := c.forceDetachAfter - c.env.Clock.Since(since)
	if left > 0 {
		c.AddAfter(n.Name, left+time.Millisecond)
		return false
	}
	return !healthy(n)
}

// detach deletes a VolumeAttachment, which requests the CSI driver to detach the volume. It does not wait for the
// driver.
func (c *Controller) detach(ctx context.Context, a *storagev1.VolumeAttachment) error {
	err := c.env.Kube.StorageV1().VolumeAttachments().Delete(ctx, a.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &a.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("detaching volume %s: %w", *a.Spec.Source.PersistentVolumeName, err)
	}
	c.markUsed(a.Name)
	return nil
}
