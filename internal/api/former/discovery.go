package former

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	discoveryv1beta1 "k8s.io/api/discovery/v1beta1"
)

// discoveryVersions returns the reader of EndpointSlices in v1beta1, where the topology map of an
// endpoint contained its zone and node.
func discoveryVersions() []version {
	return []version{
		{"EndpointSlice", discoveryv1.SchemeGroupVersion, discoveryv1beta1.SchemeGroupVersion, convertByName(func(old *discoveryv1beta1.EndpointSlice, now *discoveryv1.EndpointSlice) error {
			for i := range old.Endpoints {
				e := &now.Endpoints[i]
				topology := maps.Clone(old.Endpoints[i].Topology)
				if zone, ok := topology[corev1.LabelTopologyZone]; ok {
					e.Zone = &zone
					delete(topology, corev1.LabelTopologyZone)
				}
				// Keep a hostname that differs from the node name.
				if host, ok := topology[corev1.LabelHostname]; ok && e.NodeName != nil && *e.NodeName == host {
					delete(topology, corev1.LabelHostname)
				}
				if len(topology) == 0 {
					topology = nil
				}
				e.DeprecatedTopology = topology
			}
			return nil
		})},
	}
}
