package dashboard

import (
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestConnections reads the pods that a policy selects.
func TestConnections(t *testing.T) {
	at := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "a", Name: name} }
	kube := fake.NewClientset(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, &corev1.Pod{ObjectMeta: at("web")}, &corev1.Pod{ObjectMeta: at("db")},
		&networkingv1.NetworkPolicy{ObjectMeta: at("p"), Spec: networkingv1.NetworkPolicySpec{
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}}},
		}},
	)
	got, err := connections(t.Context(), kube, "a", "web")
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Ingress.Rules) != 1 || len(got.Ingress.Rules[0].Pods) != 2 || len(got.Egress.Policies) != 0 {
		t.Errorf("the connections are %+v", got)
	}
}

// TestShowConnections requests connections of pods that do not exist or that the user may not read.
func TestShowConnections(t *testing.T) {
	p := start(t, false)
	p.loginOnce()
	for _, c := range []struct {
		query string
		code  int
	}{{"namespace=default&name=none", 404}, {"namespace=default&name=secret", 403}, {"namespace=default", 400}} {
		if resp, body := p.do(http.MethodGet, "/connections?"+c.query, "", nil); resp.StatusCode != c.code {
			t.Errorf("%s: %s, expected %d: %s", c.query, resp.Status, c.code, body)
		}
	}
}
