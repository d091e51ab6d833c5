package reviews_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"hyperkube/components/apiserver/compose"
	"hyperkube/components/etcd"
	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/credentials/tokens"
	"hyperkube/internal/testing/testport"
	"hyperkube/internal/testing/testwait"
)

// TestServer tests authentication, authorization and admission in a complete API server over TLS,
// as several users.
func TestServer(t *testing.T) {
	dir := t.TempDir()
	set, err := pki.Ensure(filepath.Join(dir, "pki"), pki.Config{NodeName: "test"})
	if err != nil {
		t.Fatal(err)
	}
	db, err := etcd.New(etcd.Config{DataDir: filepath.Join(dir, "etcd"),
		ListenClientURLs: []string{"http://" + testport.Address(t)}, ListenPeerURLs: []string{"http://" + testport.Address(t)}})
	if err != nil {
		t.Fatal(err)
	}
	run := func(what string, f func(context.Context) error) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- f(ctx) }()
		t.Cleanup(func() { cancel(); <-done })
	}
	run("etcd", db.Run)
	<-db.Ready()
	keys, err := tokens.LoadKeySet(set.ServiceAccountPubFile)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	server, err := compose.New(compose.Config{
		Etcd: db.Client(), Listener: listener, CertFile: set.APIServer.CertFile, KeyFile: set.APIServer.KeyFile,
		ClientCAFile: set.CA.CertFile, FrontProxyCAFile: set.FrontProxyCA.CertFile, Issuers: []string{"https://kubernetes.default.svc"},
		Key: set.ServiceAccountKey, Keys: keys, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		Advertise: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(port)),
	})
	if err != nil {
		t.Fatal(err)
	}
	run("API server", server.Run)
	<-server.Ready()
	way := func(spec pki.Spec, token string) kubernetes.Interface {
		rc := &rest.Config{Host: fmt.Sprintf("https://127.0.0.1:%d", port), TLSClientConfig: rest.TLSClientConfig{CAData: set.CA.CertPEM}, BearerToken: token, QPS: -1}
		if token == "" && spec.CommonName != "" {
			p, err := set.CA.NewPair(spec)
			if err != nil {
				t.Fatal(err)
			}
			rc.CertData, rc.KeyData = p.CertPEM, p.KeyPEM
		}
		return kubernetes.NewForConfigOrDie(rc)
	}
	ctx := t.Context()
	admin, node, unauthenticated := way(pki.Client("admin", "system:masters"), ""), way(pki.Node("n1"), ""), way(pki.Spec{}, "")
	ann := way(pki.Client("ann", "devs"), "")
	check := func(what string, err error, want string) {
		t.Helper()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", what, err, want)
		}
	}
	// eventually retries until the informers have caught up.
	eventually := func(what, want string, try func() error) {
		t.Helper()
		testwait.Succeed(t, what, func() error {
			if err := try(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				return fmt.Errorf("never %q, but %s", want, fmt.Sprint(err))
			}
			return nil
		})
	}
	_, err = unauthenticated.Discovery().ServerVersion()
	check("anonymous version", err, "")
	_, err = unauthenticated.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	check("anonymous pods", err, `pods is forbidden: User "system:anonymous" cannot list resource "pods" in API group "" in the namespace "default"`)
	_, err = ann.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	check("ann pods", err, "forbidden")
	review := func(as string) (string, error) {
		raw, err := ann.AuthenticationV1().RESTClient().Post().Resource("selfsubjectreviews").Body([]byte("{}")).
			SetHeader("Content-Type", "application/json").SetHeader("Accept", "application/json;as="+as+";v=v1;g=meta.k8s.io").DoRaw(ctx)
		return string(raw), err
	}
	text, err := review("PartialObjectMetadata")
	check("metadata of a review", err, "")
	if !strings.HasPrefix(text, `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1"`) {
		t.Errorf("metadata of a review: %s", text)
	}
	_, err = review("Table")
	check("table of a review", err, "unable to respond with a content type that the client supports")
	_, err = admin.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Rules: []rbacv1.PolicyRule{
		{Verbs: []string{"list"}, APIGroups: []string{""}, Resources: []string{"pods"}},
		{Verbs: []string{"create"}, APIGroups: []string{rbacv1.GroupName}, Resources: []string{"clusterroles"}},
	}}, metav1.CreateOptions{})
	check("role", err, "")
	_, err = admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "ann"},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "reader"}, Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "ann"}}}, metav1.CreateOptions{})
	check("bind", err, "")
	eventually("ann's pods once bound", "", func() error {
		_, err := ann.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		return err
	})
	_, err = admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}, metav1.CreateOptions{})
	check("node n2", err, "")
	n, err := node.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"topology.kubernetes.io/zone": "z"}}}, metav1.CreateOptions{})
	check("register", err, "")
	if err == nil && len(n.Spec.Taints) == 0 {
		t.Error("no taint")
	}
	_, err = node.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n3"}}, metav1.CreateOptions{})
	check("register another", err, "is not allowed to modify node")
	_, err = node.CoreV1().Nodes().Get(ctx, "n2", metav1.GetOptions{})
	check("read another", err, "only its own Node object")
	spec := corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "x"}}, Volumes: []corev1.Volume{{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}}}}
	_, err = admin.CoreV1().Pods("absent").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: spec}, metav1.CreateOptions{})
	check("no namespace", err, `namespaces "absent" not found`)
	gone := spec
	gone.ServiceAccountName = "gone"
	_, err = admin.CoreV1().Pods("default").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: gone}, metav1.CreateOptions{})
	check("no account", err, `pods "p" is forbidden: error looking up service account default/gone: serviceaccount "gone" not found`)
	_, err = admin.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	check("account", err, "")
	p, err := admin.CoreV1().Pods("default").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: spec}, metav1.CreateOptions{})
	check("pod", err, "")
	if len(p.Spec.Volumes) != 2 || len(p.Spec.Tolerations) != 2 || p.Spec.Priority == nil || p.Spec.ServiceAccountName != "default" {
		t.Errorf("admitted %+v", p.Spec)
	}
	for _, s := range []string{"s", "other"} {
		_, err = admin.CoreV1().Secrets("default").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: s}}, metav1.CreateOptions{})
		check("secret", err, "")
	}
	_, err = node.CoreV1().Secrets("default").Get(ctx, "s", metav1.GetOptions{})
	check("pod's secret", err, "")
	_, err = node.CoreV1().Secrets("default").Get(ctx, "other", metav1.GetOptions{})
	check("other secret", err, `no relationship found between node 'n1' and this object`)
	tr := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "p", UID: p.UID}}}
	tok, err := node.CoreV1().ServiceAccounts("default").CreateToken(ctx, "default", tr, metav1.CreateOptions{})
	check("token", err, "")
	pod := way(pki.Spec{}, tok.Status.Token)
	who, err := pod.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	check("whoami", err, "")
	if who.Status.UserInfo.Username != "system:serviceaccount:default:default" {
		t.Errorf("whoami %+v", who.Status.UserInfo)
	}
	can, err := pod.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Resource: "pods", Namespace: "default"}}}, metav1.CreateOptions{})
	check("can-i", err, "")
	if can.Status.Allowed {
		t.Errorf("can-i %+v", can.Status)
	}
	rev, err := admin.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: tok.Status.Token}}, metav1.CreateOptions{})
	check("review", err, "")
	if !rev.Status.Authenticated || rev.Status.User.UID == "" {
		t.Errorf("review %+v", rev.Status)
	}
	rules, err := ann.AuthorizationV1().SelfSubjectRulesReviews().Create(ctx, &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "default"}}, metav1.CreateOptions{})
	check("rules", err, "")
	if len(rules.Status.ResourceRules) < 2 {
		t.Errorf("rules %+v", rules.Status)
	}
	_, err = ann.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Rules: []rbacv1.PolicyRule{
		{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}}}}, metav1.CreateOptions{})
	check("escalation", err, "is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\"]}")
	zero := int64(0)
	check("delete pod", admin.CoreV1().Pods("default").Delete(ctx, "p", metav1.DeleteOptions{GracePeriodSeconds: &zero}), "")
	eventually("the token of a pod that is gone", "Unauthorized", func() error {
		_, err := pod.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		return err
	})
	check("delete default", admin.CoreV1().Namespaces().Delete(ctx, "default", metav1.DeleteOptions{}), "this namespace may not be deleted")
	data, err := admin.CoreV1().RESTClient().Get().AbsPath("/.well-known/openid-configuration").DoRaw(ctx)
	check("oidc", err, "")
	if !strings.Contains(string(data), `"id_token_signing_alg_values_supported":["ES256"]`) {
		t.Errorf("oidc %s", data)
	}
}
