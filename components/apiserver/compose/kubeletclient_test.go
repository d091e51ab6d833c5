package compose_test

import (
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"hyperkube/internal/credentials/pki"
)

// TestKubeletClientGroup checks that the group of the API servers' client certificate has the kubelet API, for which
// kubelets ask the API server, and nothing else.
func TestKubeletClientGroup(t *testing.T) {
	e := start(t)
	client, err := kubernetes.NewForConfig(e.server.ClientConfig("kube-apiserver-kubelet-client", pki.KubeletClientGroup))
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if _, err := client.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("listing Secrets: %v", err)
	}
	if _, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("listing Nodes: %v", err)
	}
	admin, err := kubernetes.NewForConfig(e.server.ClientConfig("admin", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"get", "create", "update", "patch", "delete"} {
		for _, sub := range []string{"proxy", "stats", "metrics", "log", "checkpoint", "healthz", "statusz", "configz", "pods"} {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: "kube-apiserver-kubelet-client", Groups: []string{pki.KubeletClientGroup, "system:authenticated"},
				ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Resource: "nodes", Subresource: sub, Name: "n1"},
			}}
			if review, err = admin.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if !review.Status.Allowed {
				t.Errorf("%s nodes/%s is denied: %s", verb, sub, review.Status.Reason)
			}
		}
	}
}
