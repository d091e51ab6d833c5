package plugins

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	volumehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
	"hyperkube/internal/api/podrefs"
)

// NodeVolumeLimits excludes nodes whose CSI drivers cannot attach more volumes.
// https://kubernetes.io/docs/concepts/storage/storage-limits/
type NodeVolumeLimits struct{}

// Name returns the name of the plugin in configuration files.
func (NodeVolumeLimits) Name() string { return "NodeVolumeLimits" }

// Wakes implements framework.Waker. After one of the returned events in the cluster, the scheduler tries a pod again
// that this plugin has rejected.
func (NodeVolumeLimits) Wakes() framework.Event {
	return framework.NodeAdded | framework.CSINodeChanged | framework.PodRemoved | framework.ClaimChanged |
		framework.VolumeChanged | framework.AttachmentChanged
}

// csiVolume identifies a volume of a CSI driver. Several claims and pods on a node may use the same volume, which
// counts once for the limit.
type csiVolume struct{ driver, handle string }

// csiVolumes adds the CSI volumes of a pod's claims to out. A volume that is not provisioned yet is identified by its
// claim; it is ignored if its provisioner is one of kubernetes.io/. Claims that do not exist are ignored.
func csiVolumes(v framework.Volumes, pod *corev1.Pod, out sets.Set[csiVolume]) {
	for i := range pod.Spec.Volumes {
		name := podrefs.ClaimName(pod, &pod.Spec.Volumes[i])
		if name == "" {
			continue
		}
		pvc := v.Claim(pod.Namespace, name)
		if pvc == nil || pod.Spec.Volumes[i].Ephemeral != nil && !metav1.IsControlledBy(pvc, pod) {
			continue
		}
		if pv := v.Volume(pvc.Spec.VolumeName); pvc.Spec.VolumeName != "" && pv != nil {
			if pv.Spec.CSI != nil {
				out.Insert(csiVolume{pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle})
			}
			continue
		}
		if class := v.Class(volumehelpers.GetPersistentVolumeClaimClass(pvc)); class != nil && !strings.HasPrefix(class.Provisioner, "kubernetes.io/") {
			out.Insert(csiVolume{class.Provisioner, "claim " + pvc.Namespace + "/" + pvc.Name})
		}
	}
}

// Filter rejects nodes on which the pod's volumes would exceed the limit of a CSI driver, and nodes without a driver
// that must be installed. It rejects no node and returns nil for a pod without CSI volumes.
func (NodeVolumeLimits) Filter(c *framework.Cycle) (*framework.Check, error) {
	if c.Volumes == nil || !podrefs.HasClaims(c.Pod.Object) {
		return nil, nil
	}
	wanted := sets.New[csiVolume]()
	csiVolumes(c.Volumes, c.Pod.Object, wanted)
	if wanted.Len() == 0 {
		return nil, nil
	}
	needed := neededDrivers(c.Volumes, wanted)
	return &framework.Check{Node: func(n *state.Node) []framework.Reason {
		if driver := missingDriver(c.Volumes.CSINode(n.Name), needed); driver != "" {
			return reason(driver+" CSI driver is not installed on the node", false)
		}
		limits := driverLimits(c.Volumes, n.Name, wanted)
		if len(limits) == 0 {
			return nil
		}
		there := sets.New[csiVolume]()
		for _, p := range n.Pods {
			csiVolumes(c.Volumes, p.Object, there)
		}
		// Volumes that are still attached without a pod count as well.
		for _, a := range c.Volumes.Attachments() {
			if a.Spec.NodeName != n.Name || a.Spec.Source.PersistentVolumeName == nil {
				continue
			}
			if pv := c.Volumes.Volume(*a.Spec.Source.PersistentVolumeName); pv != nil && pv.Spec.CSI != nil {
				there.Insert(csiVolume{pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle})
			}
		}
		fresh := map[string]int32{}
		for w := range wanted.Difference(there) {
			fresh[w.driver]++
		}
		used := map[string]int32{}
		for t := range there {
			used[t.driver]++
		}
		for driver, count := range fresh {
			if limit, ok := limits[driver]; ok && used[driver]+count > limit {
				return reason("node(s) exceed max volume count", false)
			}
		}
		return nil
	}}, nil
}

// neededDrivers returns, sorted, those drivers of the volumes in wanted that must be installed on a node before pods
// are scheduled there, because their CSIDriver has preventPodSchedulingIfMissing set. https://kep.k8s.io/5030
func neededDrivers(v framework.Volumes, wanted sets.Set[csiVolume]) []string {
	needed := sets.New[string]()
	for w := range wanted {
		if d := v.Driver(w.driver); d != nil && ptr.Deref(d.Spec.PreventPodSchedulingIfMissing, false) {
			needed.Insert(w.driver)
		}
	}
	return sets.List(needed)
}

// missingDriver returns one of the needed drivers that is not installed on a node, or "". info is the CSINode of the
// node, or nil if it does not exist.
func missingDriver(info *storagev1.CSINode, needed []string) string {
	for _, driver := range needed {
		if info == nil || !slices.ContainsFunc(info.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == driver }) {
			return driver
		}
	}
	return ""
}

// driverLimits returns how many volumes a node can attach, by driver, for the drivers of wanted that report a limit.
func driverLimits(v framework.Volumes, node string, wanted sets.Set[csiVolume]) map[string]int32 {
	info := v.CSINode(node)
	if info == nil {
		return nil
	}
	limits := map[string]int32{}
	for i := range info.Spec.Drivers {
		d := &info.Spec.Drivers[i]
		if d.Allocatable == nil || d.Allocatable.Count == nil {
			continue
		}
		for w := range wanted {
			if w.driver == d.Name {
				limits[d.Name] = *d.Allocatable.Count
			}
		}
	}
	return limits
}
