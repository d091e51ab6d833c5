package compose_test

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	apiregistrationclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"hyperkube/internal/testing/testextension"
	"hyperkube/internal/testing/testwait"
)

// TestAggregation runs an extension server behind the API server, registered by an APIService.
func TestAggregation(t *testing.T) {
	e := start(t)
	ctx := t.Context()
	cfg, err := clientcmd.BuildConfigFromFlags("", e.conf)
	if err != nil {
		t.Fatal(err)
	}
	kube := kubernetes.NewForConfigOrDie(cfg)
	services := apiregistrationclient.NewForConfigOrDie(cfg).APIServices()

	// The server's built-in groups
	testwait.Succeed(t, "own APIServices", func() error {
		s, err := services.Get(ctx, "v1.apps", metav1.GetOptions{})
		if err != nil {
			return err
		}
		c := helper.GetAPIServiceConditionByType(s, apiregistrationv1.Available)
		if s.Labels["kube-aggregator.kubernetes.io/automanaged"] != "onstart" || s.Spec.GroupPriorityMinimum != 17800 || c == nil || c.Reason != "Local" || len(s.ManagedFields) == 0 || s.ManagedFields[0].Manager != "kube-apiserver" {
			return fmt.Errorf("got %+v", s)
		}
		return nil
	})

	var server *testextension.Server
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	testwait.Succeed(t, "extension server", func() error {
		server, err = testextension.Start(ctx, testextension.Config{
			Kube: kube, Dir: t.TempDir(), Namespace: "default", Service: "wardle", Listener: listener,
		})
		return err
	})
	t.Cleanup(func() { server.Close() })
	port := int32(listener.Addr().(*net.TCPAddr).Port)
	s := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: testextension.Version + "." + testextension.Group},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: testextension.Group, Version: testextension.Version, GroupPriorityMinimum: 2000, VersionPriority: 200,
			CABundle: server.CA(), Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "wardle", Port: &port},
		},
	}
	if _, err := services.Create(ctx, s, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	reason := func(want string) {
		t.Helper()
		testwait.Succeed(t, "reason "+want, func() error {
			got, err := services.Get(ctx, s.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if c := helper.GetAPIServiceConditionByType(got, apiregistrationv1.Available); c == nil || c.Reason != want {
				return fmt.Errorf("condition %+v", c)
			}
			return nil
		})
	}
	reason("ServiceNotFound")
	const flunders = "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders"
	raw := func(c kubernetes.Interface, path string) (string, error) {
		data, err := c.CoreV1().RESTClient().Get().RequestURI(path).DoRaw(ctx)
		return string(data), err
	}
	if _, err := raw(kube, flunders); err == nil || !strings.Contains(err.Error(), "the server is currently unable to handle the request") {
		t.Errorf("what is not available answers %v", err)
	}
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "wardle"}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"no": "body"}, Ports: []corev1.ServicePort{{Port: 9}},
	}}
	if svc, err = kube.CoreV1().Services("default").Create(ctx, svc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	reason("ServicePortError")
	svc.Spec.Ports[0].Port = port
	if svc, err = kube.CoreV1().Services("default").Update(ctx, svc, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	reason("EndpointsNotFound")
	svc.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}
	if _, err = kube.CoreV1().Services("default").Update(ctx, svc, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	reason("Passed")

	transport, err := rest.TransportFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	const base = "/apis/wardle.example.com/v1alpha1"
	for _, tc := range []struct {
		path string
		code int
		want string
	}{
		{base + "/namespaces/default/flunders", 200, "FlunderList"},
		{base + "/elsewhere", 502, "the backend attempted to redirect this request, which is not permitted"},
		{base + "/never/a?timeout=1s", 504, `"message":"Timeout: request did not complete within the allotted timeout","reason":"Timeout"`},
	} {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, cfg.Host+tc.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		id, seen := resp.Header.Get("Audit-Id"), resp.Header.Get("Seen-Audit-Id")
		if resp.StatusCode != tc.code || !strings.Contains(string(text), tc.want) || resp.Header.Get("Location") != "" || tc.code == 200 && (id == "" || id != seen) {
			t.Errorf("%s: %d %v %.300s; want %d %s", tc.path, resp.StatusCode, resp.Header, text, tc.code, tc.want)
		}
	}

	// Complete discovery
	testwait.Succeed(t, "discovery", func() error {
		_, lists, err := kube.Discovery().ServerGroupsAndResources()
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(lists, func(l *metav1.APIResourceList) bool {
			return l.GroupVersion == "wardle.example.com/v1alpha1" && len(l.APIResources) == 1 && l.APIResources[0].Kind == "Flunder"
		}) {
			return fmt.Errorf("no flunders in %v", lists)
		}
		return nil
	})
	for path, want := range map[string]string{
		"/apis":                    `"name":"wardle.example.com"`,
		"/apis/wardle.example.com": `"preferredVersion":{"groupVersion":"wardle.example.com/v1alpha1"`,
		"/openapi/v3":              "openapi/v3/apis/wardle.example.com/v1alpha1?hash=1",
		"/openapi/v3/apis/wardle.example.com/v1alpha1": "The spec of a flunder.",
		"/openapi/v2": "com.example.wardle.v1alpha1.Flunder",
	} {
		if got, err := raw(kube, path); err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: %v: no %s in %.300s", path, err, want, got)
		}
	}
	var groups metav1.APIGroupList
	all, err := raw(kube, "/apis")
	if err != nil || json.Unmarshal([]byte(all), &groups) != nil {
		t.Fatal(err)
	}
	if groups.Groups[0].Name != "apiregistration.k8s.io" || groups.Groups[1].Name != "apps" || groups.Groups[len(groups.Groups)-1].Name != testextension.Group {
		t.Errorf("groups in the order of %v", groups.Groups)
	}

	// Requests are proxied with the identity of the user.
	create := func(c kubernetes.Interface, name string) error {
		return c.CoreV1().RESTClient().Post().RequestURI(flunders).SetHeader("Content-Type", "application/json").
			Body([]byte(`{"kind":"Flunder","apiVersion":"wardle.example.com/v1alpha1","metadata":{"name":"` + name + `"}}`)).Do(ctx).Error()
	}
	if err := create(kube, "one"); err != nil {
		t.Fatal(err)
	}
	if got, err := raw(kube, flunders+"/one"); err != nil || !strings.Contains(got, "one-uid") {
		t.Errorf("get: %s %v", got, err)
	}
	as := rest.CopyConfig(cfg)
	as.Impersonate = rest.ImpersonationConfig{UserName: "bob", UID: "7", Groups: []string{"g"}, Extra: map[string][]string{"example.com/x": {"y"}}}
	bob := kubernetes.NewForConfigOrDie(as)
	if err := create(bob, "two"); err == nil || !strings.Contains(err.Error(), "forbidden") && !strings.Contains(err.Error(), "bob") {
		t.Errorf("who may not creates: %v", err)
	}
	if _, err := e.kubectl("", "create", "clusterrole", "flunder", "--verb=create,get,list,watch", "--resource=flunders.wardle.example.com"); err != nil {
		t.Fatal(err)
	}
	if out, err := e.kubectl("", "create", "clusterrolebinding", "flunder", "--clusterrole=flunder", "--user=bob"); err != nil {
		t.Fatal(out)
	}
	testwait.Succeed(t, "bob's flunder", func() error { return create(bob, "two") })
	if !slices.ContainsFunc(server.Seen(), func(u userInfo) bool {
		return u.Username == "bob" && u.UID == "7" && slices.Contains(u.Groups, "system:authenticated") && len(u.Extra["example.com/x"]) == 1
	}) {
		t.Errorf("users %+v", server.Seen())
	}
	stream, err := bob.CoreV1().RESTClient().Get().RequestURI(flunders + "?watch=1").Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stream)
	for _, name := range []string{"one", "two"} {
		if !lines.Scan() || !strings.Contains(lines.Text(), name) {
			t.Errorf("watch: no %s: %s %v", name, lines.Text(), lines.Err())
		}
	}
	stream.Close()
	upgrade(t, cfg, flunders+"/one")

	// Front proxy headers that a client sends are ignored.
	forged := rest.CopyConfig(cfg)
	forged.TLSClientConfig = rest.TLSClientConfig{CAData: cfg.CAData, CAFile: cfg.CAFile}
	forged.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			req.Header.Set("X-Remote-User", "admin")
			req.Header.Set("X-Remote-Group", "system:masters")
			return rt.RoundTrip(req)
		})
	})
	if err := create(kubernetes.NewForConfigOrDie(forged), "three"); err == nil {
		t.Error("forged headers are trusted")
	}

	// The server stops, and then its APIService is deleted.
	server.Close()
	s, err = services.Get(ctx, s.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Spec.VersionPriority++ // triggers a check
	if _, err := services.Update(ctx, s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	reason("FailedDiscoveryCheck")
	if err := services.Delete(ctx, s.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.Succeed(t, "group to be removed", func() error {
		if got, err := raw(kube, "/apis"); err != nil || strings.Contains(got, testextension.Group) {
			return fmt.Errorf("%w %s", err, got)
		}
		return nil
	})
}

// upgrade upgrades a connection through the proxy.
func upgrade(t *testing.T, cfg *rest.Config, path string) {
	t.Helper()
	tlsConfig, err := rest.TLSConfigFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	tlsConfig.NextProtos = []string{"http/1.1"}
	conn, err := dialTLS(strings.TrimPrefix(cfg.Host, "https://"), tlsConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(2 * time.Minute))
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n", path)
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("upgrade: %+v %v", resp, err)
	}
	fmt.Fprint(conn, "hello\n")
	if line, err := r.ReadString('\n'); line != "hello\n" {
		t.Errorf("echo %q %v", line, err)
	}
}

type userInfo = authenticationv1.UserInfo

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func dialTLS(host string, cfg *tls.Config) (net.Conn, error) { return tls.Dial("tcp", host, cfg) }

// TestAggregationShutdown checks that the server stops while an APIService's probe is running. The
// cleanup of start fails otherwise.
func TestAggregationShutdown(t *testing.T) {
	e := start(t)
	cfg, err := clientcmd.BuildConfigFromFlags("", e.conf)
	if err != nil {
		t.Fatal(err)
	}
	services := apiregistrationclient.NewForConfigOrDie(cfg).APIServices()
	s := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1.nowhere.example.com"},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: "nowhere.example.com", Version: "v1", GroupPriorityMinimum: 2000, VersionPriority: 200, InsecureSkipTLSVerify: true,
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "nowhere"},
		},
	}
	if _, err := services.Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.Succeed(t, "condition", func() error {
		got, err := services.Get(t.Context(), s.Name, metav1.GetOptions{})
		if err == nil && helper.GetAPIServiceConditionByType(got, apiregistrationv1.Available) == nil {
			err = errors.New("not reconciled")
		}
		return err
	})
}
