package e2e

import (
	"context"
	"encoding/json"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"hyperkube/internal/testing/testextension"
)

// TestAggregatedServer runs an extension API server on the host, behind a Service without a
// selector. The server's only credential is the token of a service account.
func TestAggregatedServer(t *testing.T) {
	if shared == nil {
		t.Skip("needs the shared cluster")
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	const ns = "aggregation"
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	kubectl := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, shared.kubectl, append([]string{"--kubeconfig", shared.kubeconfig, "-n", ns}, args...)...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	core := shared.kube.CoreV1()
	_, err := core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{})
	must(err)
	account := []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: ns, Name: "extension"}}
	_, err = core.ServiceAccounts(ns).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "extension"}}, metav1.CreateOptions{})
	must(err)
	rbac := shared.kube.RbacV1()
	_, err = rbac.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "e2e-extension"}, Subjects: account,
		RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "system:auth-delegator"},
	}, metav1.CreateOptions{})
	must(err)
	_, err = rbac.RoleBindings("kube-system").Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "e2e-extension"}, Subjects: account,
		RoleRef: rbacv1.RoleRef{Kind: "Role", Name: "extension-apiserver-authentication-reader"},
	}, metav1.CreateOptions{})
	must(err)
	t.Cleanup(func() {
		ctx := context.Background()
		_ = rbac.ClusterRoleBindings().Delete(ctx, "e2e-extension", metav1.DeleteOptions{})
		_ = rbac.RoleBindings("kube-system").Delete(ctx, "e2e-extension", metav1.DeleteOptions{})
		_ = core.Namespaces().Delete(ctx, ns, metav1.DeleteOptions{})
	})
	token, err := core.ServiceAccounts(ns).CreateToken(ctx, "extension", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(err)
	cfg, err := clientcmd.BuildConfigFromFlags("", shared.kubeconfig)
	must(err)
	own := *cfg
	own.CertData, own.CertFile, own.KeyData, own.KeyFile = nil, "", nil, ""
	own.BearerToken = token.Status.Token

	nodes, err := core.Nodes().List(ctx, metav1.ListOptions{})
	must(err)
	address := ""
	for _, a := range nodes.Items[0].Status.Addresses {
		if a.Type == corev1.NodeInternalIP && address == "" {
			address = a.Address
		}
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	must(err)
	port := int32(listener.Addr().(*net.TCPAddr).Port)
	server, err := testextension.Start(ctx, testextension.Config{
		Kube: kubernetes.NewForConfigOrDie(&own), Dir: t.TempDir(), Namespace: ns, Service: "api", Listener: listener,
	})
	must(err)
	t.Cleanup(func() { server.Close() })
	_, err = core.Services(ns).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "api"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 443}}},
	}, metav1.CreateOptions{})
	must(err)
	name := "https"
	_, err = shared.kube.DiscoveryV1().EndpointSlices(ns).Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "api-1", Labels: map[string]string{discoveryv1.LabelServiceName: "api"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}},
		Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
	}, metav1.CreateOptions{})
	must(err)
	ca, err := json.Marshal(server.CA())
	must(err)
	apply := func(text string) {
		t.Helper()
		cmd := exec.CommandContext(ctx, shared.kubectl, "--kubeconfig", shared.kubeconfig, "-n", ns, "create", "-f", "-")
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("create: %v\n%s", err, out)
		}
	}
	apply(`{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1alpha1.wardle.example.com"},
		"spec": {"group": "wardle.example.com", "version": "v1alpha1", "groupPriorityMinimum": 2000, "versionPriority": 200,
		"caBundle": ` + string(ca) + `, "service": {"namespace": "` + ns + `", "name": "api"}}}`)
	t.Cleanup(func() {
		_ = exec.Command(shared.kubectl, "--kubeconfig", shared.kubeconfig, "delete", "apiservice", "v1alpha1.wardle.example.com").Run()
	})
	if out, err := kubectl("wait", "--for=condition=Available", "--timeout=180s", "apiservice/v1alpha1.wardle.example.com"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	apply(`{"apiVersion": "wardle.example.com/v1alpha1", "kind": "Flunder", "metadata": {"name": "one"}}`)
	for _, step := range []struct {
		args, want string
		fails      bool
	}{
		{"get apiservice v1alpha1.wardle.example.com", "aggregation/api", false},
		{"get flunders -o name", "flunder.wardle.example.com/one", false},
		{"get fl one -o jsonpath={.metadata.uid}", "one-uid", false},
		{"api-resources --api-group=wardle.example.com", "Flunder", false},
		{"explain flunder.spec", "The spec of a flunder.", false},
		{"get flunders --as=stranger", `User "stranger" cannot`, true},
		{"auth can-i list flunders.wardle.example.com --as=stranger", "no", true},
	} {
		out, err := kubectl(strings.Fields(step.args)...)
		if (err != nil) != step.fails || !strings.Contains(out, step.want) {
			t.Errorf("kubectl %s: %v\n%s", step.args, err, out)
		}
	}
}
