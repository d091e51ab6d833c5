package plugins

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
)

// VolumeRestrictions prevents two pods from using the same ReadWriteOncePod claim, and two pods on a node from using
// the same disk in a conflicting way.
type VolumeRestrictions struct{}

// Name returns the name of the plugin in configuration files.
func (VolumeRestrictions) Name() string { return "VolumeRestrictions" }

// Wakes implements framework.Waker. After one of the returned events in the cluster, the scheduler tries a pod again
// that this plugin has rejected.
func (VolumeRestrictions) Wakes() framework.Event {
	return framework.NodeAdded | framework.PodRemoved | framework.ClaimChanged
}

// Filter rejects all nodes while another pod uses a ReadWriteOncePod claim of the pod, and nodes with a pod whose disk
// conflicts. It rejects no node and returns nil if the pod has no such volumes.
func (VolumeRestrictions) Filter(c *framework.Cycle) (*framework.Check, error) {
	pod := c.Pod.Object
	sole, disks := map[string]bool{}, false
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		disks = disks || v.ISCSI != nil || v.RBD != nil || v.GCEPersistentDisk != nil || v.AWSElasticBlockStore != nil
		if v.PersistentVolumeClaim == nil || c.Volumes == nil {
			continue
		}
		pvc := c.Volumes.Claim(pod.Namespace, v.PersistentVolumeClaim.ClaimName)
		if pvc != nil && slices.Contains(pvc.Spec.AccessModes, corev1.ReadWriteOncePod) {
			sole[pvc.Name] = true
		}
	}
	if len(sole) == 0 && !disks {
		return nil, nil
	}
	shares := func(p *state.Pod) bool {
		return p.Object.Namespace == pod.Namespace && p.Object.UID != pod.UID &&
			slices.ContainsFunc(p.Object.Spec.Volumes, func(v corev1.Volume) bool {
				return v.PersistentVolumeClaim != nil && sole[v.PersistentVolumeClaim.ClaimName]
			})
	}
	var users int64
	if len(sole) > 0 {
		for _, n := range c.State.Nodes() {
			for _, p := range n.Pods {
				if shares(p) {
					users++
				}
			}
		}
	}
	return &framework.Check{
		Node: func(n *state.Node) []framework.Reason {
			if disks {
				for _, p := range n.Pods {
					if diskConflict(pod, p.Object) {
						return reason("node(s) had no available disk", false)
					}
				}
			}
			if users > 0 {
				return reason("node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod", false)
			}
			return nil
		},
		Moved: func(p *state.Pod, _ *state.Node, by int64) {
			if len(sole) > 0 && shares(p) {
				users += by
			}
		},
	}, nil
}

// diskConflict reports whether two pods use the same in-tree disk so that they must not run on the same node.
func diskConflict(a, b *corev1.Pod) bool {
	for i := range a.Spec.Volumes {
		for j := range b.Spec.Volumes {
			if sameDisk(&a.Spec.Volumes[i], &b.Spec.Volumes[j]) {
				return true
			}
		}
	}
	return false
}

// sameDisk reports whether two volumes are the same disk, unless both are read-only. AWS disks conflict even then.
func sameDisk(v, w *corev1.Volume) bool {
	switch {
	case v.GCEPersistentDisk != nil && w.GCEPersistentDisk != nil:
		a, b := v.GCEPersistentDisk, w.GCEPersistentDisk
		return a.PDName == b.PDName && !(a.ReadOnly && b.ReadOnly)
	case v.AWSElasticBlockStore != nil && w.AWSElasticBlockStore != nil:
		return v.AWSElasticBlockStore.VolumeID == w.AWSElasticBlockStore.VolumeID
	case v.ISCSI != nil && w.ISCSI != nil:
		a, b := v.ISCSI, w.ISCSI
		return a.IQN == b.IQN && !(a.ReadOnly && b.ReadOnly)
	case v.RBD != nil && w.RBD != nil:
		a, b := v.RBD, w.RBD
		return a.RBDPool == b.RBDPool && a.RBDImage == b.RBDImage && !(a.ReadOnly && b.ReadOnly) &&
			slices.ContainsFunc(a.CephMonitors, func(m string) bool { return slices.Contains(b.CephMonitors, m) })
	}
	return false
}
