package dashboard

import (
	"context"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"hyperkube/components/dashboard/policy"
)

// showConnections responds with the connections of a pod that NetworkPolicies allow. The parameters are namespace and name. The user needs
// the permission to list NetworkPolicies of the namespace, and all pods and namespaces.
func showConnections(w http.ResponseWriter, r *http.Request, one *session) {
	answer(w, r, one, connections)
}

// connections reads the objects that policy.Allowed needs. Without NetworkPolicies, it does not list pods and namespaces.
func connections(ctx context.Context, kube kubernetes.Interface, namespace, name string) (policy.Connections, error) {
	pod, err := kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return policy.Connections{}, err
	}
	policies, err := kube.NetworkingV1().NetworkPolicies(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return policy.Connections{}, err
	}
	namespaces, pods := &corev1.NamespaceList{}, &corev1.PodList{}
	if len(policies.Items) > 0 {
		if namespaces, err = kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{}); err != nil {
			return policy.Connections{}, err
		}
		if pods, err = kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{}); err != nil {
			return policy.Connections{}, err
		}
	}
	return policy.Allowed(pod, policies.Items, namespaces.Items, pods.Items)
}
