package local

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	cloudproviderapi "k8s.io/cloud-provider/api"
	nodeutil "k8s.io/component-helpers/node/util"
)

// addresses returns the addresses of a Node: the internal ones with which its kubelet was started or, without these,
// those that the Node has; its hostname; and those of the machine in the configuration. It returns an error if there is
// no internal address.
func (m *Machine) addresses(node *corev1.Node) ([]corev1.NodeAddress, error) {
	var out []corev1.NodeAddress
	if text, ok := node.Annotations[cloudproviderapi.AnnotationAlphaProvidedIPAddr]; ok {
		ips, err := nodeutil.ParseNodeIPAnnotation(text)
		if err != nil {
			return nil, fmt.Errorf("parsing annotation %s of node %s: %w", cloudproviderapi.AnnotationAlphaProvidedIPAddr, node.Name, err)
		}
		for _, ip := range ips {
			out = append(out, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip.String()})
		}
	} else {
		for _, a := range slices.Concat(m.Addresses, node.Status.Addresses) {
			if a.Type == corev1.NodeInternalIP && !slices.Contains(out, a) {
				out = append(out, a)
			}
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("node %s has no address: start its kubelet with --node-ip, or add addresses of type InternalIP to the configuration of the cloud provider", node.Name)
	}
	out = append(out, corev1.NodeAddress{Type: corev1.NodeHostName, Address: node.Name})
	for _, a := range m.Addresses {
		if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out, nil
}
