package controlplane

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/command"
)

// checkNameFree returns an error if a ready node has the name, because two machines with one name would update the same
// Node object. own are the addresses of this machine: a node with one of them is this machine, which may join again. It
// returns nil if the client may not read the Node.
func checkNameFree(ctx context.Context, kube kubernetes.Interface, name string, own []netip.Addr) error {
	node, err := kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	// Clusters made by other tools may not permit this request.
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("getting node %q: %w", name, err)
	}
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP && slices.Contains(clusterconfig.Strings(own), a.Address) {
			return nil
		}
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return command.PreflightError(fmt.Errorf("a Node with name %q and status %q already exists in the cluster: "+
				"delete it, or specify another name with --node-name", name, corev1.NodeReady))
		}
	}
	return nil
}
