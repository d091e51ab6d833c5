package attachdetach

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// diskPrefix begins the names that nodes have for disks of iSCSI targets.
const diskPrefix = "kubernetes.io/iscsi/"

// diskOf is how nodes speak of a volume that is a disk of a target; empty if it is
// none. pv is what a claim is bound to, nil for a volume that is there without one.
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

// hasDisks tells whether a pod has disks of targets without a claim.
func hasDisks(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.ISCSI != nil })
}

func hasDisk(n *corev1.Node, disk corev1.UniqueVolumeName) bool {
	return slices.ContainsFunc(n.Status.VolumesAttached, func(a corev1.AttachedVolume) bool { return a.Name == disk })
}

// disksTaken tells whether a node has lost a disk.
func disksTaken(old, cur *corev1.Node) bool {
	return slices.ContainsFunc(old.Status.VolumesAttached, func(a corev1.AttachedVolume) bool {
		return strings.HasPrefix(string(a.Name), diskPrefix) && !hasDisk(cur, a.Name)
	})
}

// give returns the disks that a node is to have: those that it uses or has mounted
// yet, and those that its pods want and no other node keeps from it.
func (c *Controller) give(n *corev1.Node, wanted map[corev1.UniqueVolumeName]*want) *statement {
	next := &statement{wants: map[corev1.UniqueVolumeName]*want{}}
	id := func(disk corev1.UniqueVolumeName) string { return n.Name + " " + string(disk) }
	for _, a := range n.Status.VolumesAttached {
		if !strings.HasPrefix(string(a.Name), diskPrefix) {
			continue
		}
		c.seen(string(a.Name), id(a.Name))
		if wanted[a.Name] == nil && c.mayTake(n, id(a.Name), a.Name) {
			c.keep(id(a.Name))
			continue
		}
		next.add(a.Name, wanted[a.Name])
	}
	for disk, w := range wanted {
		c.keep(id(disk))
		if hasDisk(n, disk) || w.pv != nil && exclusive(w.pv) && !c.claimDisk(n, disk, id(disk), w) {
			continue
		}
		next.add(disk, w)
	}
	return next
}

// claimDisk tells whether a disk that one node may have can be given to a node, and
// tells the pods if not.
func (c *Controller) claimDisk(n *corev1.Node, disk corev1.UniqueVolumeName, id string, w *want) bool {
	// The cache may lack what another node was given a moment ago.
	if !c.reserve(string(disk), n.Name, id) {
		c.AddAfter(n.Name, unseen)
		return false
	}
	all, err := c.nodes.List(labels.Everything())
	if err == nil && !slices.ContainsFunc(all, func(o *corev1.Node) bool { return o.Name != n.Name && hasDisk(o, disk) }) {
		return true
	}
	c.seen(string(disk), id)
	w.tellTaken(c.env.Events)
	return false
}
