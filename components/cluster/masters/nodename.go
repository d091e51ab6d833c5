package masters

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/identity"
)

// checkNameFree refuses the name of a node that is ready: two machines of one name would
// take the node from each other. A machine that comes back, of which the cluster has not seen
// yet that it had left, is known by its address.
func checkNameFree(ctx context.Context, kube kubernetes.Interface, name string, own []netip.Addr) error {
	node, err := kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	// Clusters that others have made may let nobody look.
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking whether there is a node %q: %w", name, err)
	}
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP && slices.Contains(identity.Texts(own), a.Address) {
			return nil
		}
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return command.PreflightError(fmt.Errorf("a Node with name %q and status %q already exists in the cluster: "+
				"delete it, or give this machine another name with --node-name", name, corev1.NodeReady))
		}
	}
	return nil
}
