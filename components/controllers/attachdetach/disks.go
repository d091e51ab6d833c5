package attachdetach

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// diskPrefix is the prefix of the unique volume names of iSCSI disks.
const diskPrefix = "kubernetes.io/iscsi/"

// diskOf returns the unique name of an iSCSI volume, or "" if the volume is not an iSCSI disk. pv is the
// PersistentVolume that the claim of the pod's volume v is bound to, or nil for a volume without a claim.
func diskOf(v *corev1.Volume, pv *corev1.PersistentVolume) corev1.UniqueVolumeName {
	name := func(portal, target string, lun int32) corev1.UniqueVolumeName {
		return corev1.UniqueVolumeName(fmt.Sprintf("%s%s:%s:%d", diskPrefix, portal, target, lun))
	}
	if pv != nil && pv.Spec.ISCSI != nil {
		return name(pv.Spec.ISCSI.TargetPortal, pv.Spec.ISCSI.IQN, pv.Spec.ISCSI.Lun)
	}
	if v.ISCSI != nil {
		return name(v.ISCSI.TargetPortal, v.ISCSI.IQN, v.ISCSI.Lun)
	}
	return ""
}

// hasDisks reports whether a pod has iSCSI volumes without a claim.
func hasDisks(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.ISCSI != nil })
}

// hasDisk reports whether the status of a node lists an iSCSI disk as attached.
func hasDisk(n *corev1.Node, disk corev1.UniqueVolumeName) bool {
	return slices.ContainsFunc(n.Status.VolumesAttached, func(a corev1.AttachedVolume) bool { return a.Name == disk })
}

// diskRemoved reports whether an iSCSI disk in the status of old is not in the status of cur any more.
func diskRemoved(old, cur *corev1.Node) bool {
	return slices.ContainsFunc(old.Status.VolumesAttached, func(a corev1.AttachedVolume) bool {
		return strings.HasPrefix(string(a.Name), diskPrefix) && !hasDisk(cur, a.Name)
	})
}

// desiredDisks returns the iSCSI disks that the status of the node n should list as attached. It keeps listed disks
// that the node's pods use (wanted) or that cannot be detached yet (see mayRemove). It adds wanted disks, except those
// that only one node may use and that another node has.
func (c *Controller) desiredDisks(n *corev1.Node, wanted map[corev1.UniqueVolumeName]*desiredVolume) *attachedVolumes {
	next := &attachedVolumes{users: map[corev1.UniqueVolumeName]*desiredVolume{}}
	id := func(disk corev1.UniqueVolumeName) string { return n.Name + " " + string(disk) }
	for _, a := range n.Status.VolumesAttached {
		if !strings.HasPrefix(string(a.Name), diskPrefix) {
			continue
		}
		c.releaseReservation(string(a.Name), id(a.Name))
		if wanted[a.Name] == nil && c.mayRemove(n, id(a.Name), a.Name) {
			c.markUsed(id(a.Name))
			continue
		}
		next.add(a.Name, wanted[a.Name])
	}
	for disk, w := range wanted {
		c.markUsed(id(disk))
		if hasDisk(n, disk) || w.pv != nil && exclusive(w.pv) && !c.reserveDisk(n, disk, id(disk), w) {
			continue
		}
		next.add(disk, w)
	}
	return next
}

// reserveDisk reports whether an exclusive disk can be attached to a node, and reserves it. If another node has it, it
// emits an event on the pods. id identifies the attachment.
func (c *Controller) reserveDisk(n *corev1.Node, disk corev1.UniqueVolumeName, id string, w *desiredVolume) bool {
	// The cache may not contain yet a disk that was just attached to another node.
	if !c.reserve(string(disk), n.Name, id) {
		c.AddAfter(n.Name, pendingTimeout)
		return false
	}
	all, err := c.nodes.List(labels.Everything())
	if err == nil && !slices.ContainsFunc(all, func(o *corev1.Node) bool { return o.Name != n.Name && hasDisk(o, disk) }) {
		return true
	}
	c.releaseReservation(string(disk), id)
	w.emitMultiAttachError(c.env.Events)
	return false
}
