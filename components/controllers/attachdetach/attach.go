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
	"hyperkube/internal/podfacts"
	"hyperkube/internal/podrefs"
)

// want is a volume that pods of a node use.
type want struct {
	pv   *corev1.PersistentVolume
	pods []*corev1.Pod
}

func (w *want) tell(events record.EventRecorder, kind, reason, message string) {
	for _, p := range w.pods {
		events.Event(p, kind, reason, message)
	}
}

// eachVolume calls yield with the volumes of a node's pods, and with the persistent
// volume of what is there by a claim, nil for others. Claims that are not bound are
// left out.
func (c *Controller) eachVolume(node string, yield func(*corev1.Pod, *corev1.Volume, *corev1.PersistentVolume)) error {
	pods, err := control.PodsOn(c.pods, node)
	if err != nil {
		return err
	}
	for _, p := range pods {
		if podfacts.Terminal(p) {
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

// wanted returns the volumes of drivers to be attached to a node, by their
// attachments, and the disks of targets to be given to it.
func (c *Controller) wanted(node string) (volumes map[string]*want, disks map[corev1.UniqueVolumeName]*want, err error) {
	volumes, disks = map[string]*want{}, map[corev1.UniqueVolumeName]*want{}
	err = c.eachVolume(node, func(p *corev1.Pod, v *corev1.Volume, pv *corev1.PersistentVolume) {
		if disk := diskOf(v, pv); disk != "" {
			if disks[disk] == nil {
				disks[disk] = &want{pv: pv}
			}
			disks[disk].pods = append(disks[disk].pods, p)
		}
		if pv == nil || pv.Spec.CSI == nil || !c.attachable(pv.Spec.CSI.Driver) {
			return
		}
		key := attachmentName(pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle, node)
		if volumes[key] == nil {
			volumes[key] = &want{pv: pv}
		}
		volumes[key].pods = append(volumes[key].pods, p)
	})
	return volumes, disks, err
}

// attachable tells whether a driver's volumes are to be attached: unless it says
// otherwise, they are.
func (c *Controller) attachable(driver string) bool {
	d, err := c.drivers.Get(driver)
	return err != nil || d.Spec.AttachRequired == nil || *d.Spec.AttachRequired
}

// attached returns the attachments to a node that this controller makes, by
// name. Those of others are theirs.
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
			err != nil && ownName.MatchString(a.Name) {
			out[a.Name] = a
		}
	}
	return out, nil
}

// ownName is what the names of attachments look like that this controller makes.
var ownName = regexp.MustCompile(`^csi-[0-9a-f]{64}$`)

// volumeOf is how a node speaks of the volume of an attachment; false if the volume
// is gone, and the node does not speak of it.
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

// exclusive tells whether only one node may have a volume. One that does not say who may
// use it is the attacher's to judge.
func exclusive(pv *corev1.PersistentVolume) bool {
	return len(pv.Spec.AccessModes) > 0 && !slices.ContainsFunc(pv.Spec.AccessModes, func(m corev1.PersistentVolumeAccessMode) bool {
		return m == corev1.ReadWriteMany || m == corev1.ReadOnlyMany
	})
}

// tellTaken tells that another node has the volume.
func (w *want) tellTaken(events record.EventRecorder) {
	w.tell(events, corev1.EventTypeWarning, "FailedAttachVolume", fmt.Sprintf(
		"Multi-Attach error for volume %q Volume is already exclusively attached to one node and can't be attached to another", w.pv.Name))
}

// attach asks for a volume to be attached, unless another node has it that it
// cannot share.
func (c *Controller) attach(ctx context.Context, node, name string, w *want) error {
	if exclusive(w.pv) {
		// The cache may lack what was made for another node a moment ago.
		if !c.reserve(w.pv.Name, node, name) {
			return fmt.Errorf("attaching volume %s to node %s: %w", w.pv.Name, node, control.ErrStale)
		}
		all, err := c.attachments.List(labels.Everything())
		if err != nil {
			return err
		}
		for _, a := range all {
			if a.Spec.NodeName != node && a.Spec.Source.PersistentVolumeName != nil && *a.Spec.Source.PersistentVolumeName == w.pv.Name {
				c.seen(w.pv.Name, name)
				w.tellTaken(c.env.Events)
				// Its going is heard of.
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
		// Unless it was written nevertheless: the reservation ends by itself.
		return fmt.Errorf("attaching volume %s to node %s: %w", w.pv.Name, node, err)
	}
	return nil
}

// unseen is for how long an attachment that was made counts without having been
// seen.
const unseen = time.Minute

// attaching is an attachment that was asked for.
type attaching struct {
	node, name string
	since      time.Time
}

// reserve notes that a volume is attached to a node, and is false if one to another
// node was made that has not been seen yet.
func (c *Controller) reserve(volume, node, name string) bool {
	now := c.env.Clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if a, ok := c.made[volume]; ok && a.node != node && now.Sub(a.since) < unseen {
		return false
	}
	c.made[volume] = attaching{node, name, now}
	return true
}

// seen ends a reservation, for the cache has the attachment of that name, or it was
// not made.
func (c *Controller) seen(volume, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made[volume].name == name {
		delete(c.made, volume)
	}
}

// surelyGone asks whether there is no volume of a name, which the cache may be late
// to have.
func (c *Controller) surelyGone(ctx context.Context, volume string) (bool, error) {
	// The controller's role has it list volumes, not get them.
	list, err := c.env.Kube.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", volume).String()})
	if err != nil {
		return false, fmt.Errorf("looking for volume %s: %w", volume, err)
	}
	return !slices.ContainsFunc(list.Items, func(pv corev1.PersistentVolume) bool { return pv.Name == volume }), nil
}

// keep forgets since when nobody wanted an attachment.
func (c *Controller) keep(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.unwanted, name)
}

// mayDetach tells whether a volume that nobody wants can go: once the node no
// longer has it mounted, or is gone, or is known or must be taken to be dead.
func (c *Controller) mayDetach(n *corev1.Node, a *storagev1.VolumeAttachment) bool {
	if a.DeletionTimestamp != nil {
		return false // it is going
	}
	volume, known := c.volumeOf(n, a)
	return n == nil || !known || c.mayTake(n, a.Name, volume)
}

// mayTake tells whether a volume that nobody wants can be taken from a node; id is how
// the controller speaks of its being there.
func (c *Controller) mayTake(n *corev1.Node, id string, volume corev1.UniqueVolumeName) bool {
	if outOfService(n) || !slices.Contains(n.Status.VolumesInUse, volume) {
		return true
	}
	if c.force <= 0 {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	since, ok := c.unwanted[id]
	if !ok {
		since = c.env.Clock.Now()
		c.unwanted[id] = since
	}
	left := c.force - c.env.Clock.Since(since)
	if left > 0 {
		c.AddAfter(n.Name, left+time.Millisecond)
		return false
	}
	return !healthy(n)
}

func (c *Controller) detach(ctx context.Context, a *storagev1.VolumeAttachment) error {
	err := c.env.Kube.StorageV1().VolumeAttachments().Delete(ctx, a.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &a.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("detaching volume %s: %w", *a.Spec.Source.PersistentVolumeName, err)
	}
	c.keep(a.Name)
	return nil
}
