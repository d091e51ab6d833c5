package plugins

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
	"hyperkube/internal/api/podrefs"
)

// VolumeZone restricts pods to the zones and regions in their volumes' labels.
type VolumeZone struct{}

// Name returns the name of the plugin in configuration files.
func (VolumeZone) Name() string { return "VolumeZone" }

// Wakes implements framework.Waker. After one of the returned events in the cluster, the scheduler tries a pod again
// that this plugin has rejected.
func (VolumeZone) Wakes() framework.Event {
	return framework.NodeAdded | framework.NodeLabelsChanged | framework.ClaimChanged | framework.VolumeChanged | framework.ClassChanged
}

// zoneLabels are the zone and region labels of volumes, each with the alternative name that a node may use for it.
var zoneLabels = [][2]string{
	{corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaZone},
	{corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaRegion},
	{corev1.LabelFailureDomainBetaZone, corev1.LabelTopologyZone},
	{corev1.LabelFailureDomainBetaRegion, corev1.LabelTopologyRegion},
}

// zoneRequirement is a topology label of a volume. A node must have one of the values under keys[0], or under keys[1]
// if it does not have keys[0].
type zoneRequirement struct {
	keys   [2]string
	values []string
}

// Filter rejects nodes whose zone or region label is not among those in the labels of the pod's volumes. Nodes without
// any such label are accepted. It rejects no node and returns nil if no volume has a topology label.
func (VolumeZone) Filter(c *framework.Cycle) (*framework.Check, error) {
	pod := c.Pod.Object
	if c.Volumes == nil {
		return nil, nil
	}
	var places []zoneRequirement
	for i := range pod.Spec.Volumes {
		name := podrefs.ClaimName(pod, &pod.Spec.Volumes[i])
		if name == "" {
			continue
		}
		pvc := c.Volumes.Claim(pod.Namespace, name)
		if pvc == nil || pvc.Spec.VolumeName == "" {
			continue // VolumeBinding handles such claims
		}
		pv := c.Volumes.Volume(pvc.Spec.VolumeName)
		if pv == nil {
			continue
		}
		for _, keys := range zoneLabels {
			if value, ok := pv.Labels[keys[0]]; ok && value != "" {
				places = append(places, zoneRequirement{keys, strings.Split(value, "__")})
			}
		}
	}
	if len(places) == 0 {
		return nil, nil
	}
	return &framework.Check{Node: func(n *state.Node) []framework.Reason {
		has := n.Object.Labels
		if !slices.ContainsFunc(zoneLabels, func(keys [2]string) bool { _, ok := has[keys[0]]; return ok }) {
			return nil // the node has no topology labels
		}
		for _, p := range places {
			value, ok := has[p.keys[0]]
			if !ok {
				value, ok = has[p.keys[1]]
			}
			if !ok || !slices.Contains(p.values, value) {
				return reason("node(s) had no available volume zone", true)
			}
		}
		return nil
	}}, nil
}
