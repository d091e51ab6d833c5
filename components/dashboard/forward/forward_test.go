package forward

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
)

// TestResolve resolves ports of Services to ports of ready pods.
func TestResolve(t *testing.T) {
	labels := map[string]string{"app": "web"}
	pod := func(name string, ready corev1.ConditionStatus) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, Labels: labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8081}}}}},
			Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
		}
	}
	service := func(name, ip string, selector map[string]string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}, Spec: corev1.ServiceSpec{ClusterIP: ip, Selector: selector, Ports: []corev1.ServicePort{
			{Port: 53, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(5353)}, {Port: 80, TargetPort: intstr.FromInt32(8080)},
			{Port: 81, TargetPort: intstr.FromString("http")}, {Port: 82, TargetPort: intstr.FromString("none")}, {Port: 83},
		}}}
	}
	kube := fake.NewClientset(pod("broken", corev1.ConditionFalse), pod("good", corev1.ConditionTrue), service("web", "10.0.0.1", labels),
		service("headless", corev1.ClusterIPNone, labels), service("external", "10.0.0.2", nil), service("empty", "10.0.0.3", map[string]string{"app": "none"}))
	for _, c := range []struct {
		name     string
		req      Request
		pod      string
		port     int
		errorHas string
	}{
		{"pod", Request{Kind: KindPod, Name: "any", Port: 5}, "any", 5, ""},
		{"number", Request{Kind: KindService, Name: "web", Port: 80}, "good", 8080, ""},
		{"name", Request{Kind: KindService, Name: "web", Port: 81}, "good", 8081, ""},
		{"same port", Request{Kind: KindService, Name: "web", Port: 83}, "good", 83, ""},
		{"headless", Request{Kind: KindService, Name: "headless", Port: 80}, "good", 80, ""},
		{"unknown name", Request{Kind: KindService, Name: "web", Port: 82}, "", 0, `no port "none"`},
		{"UDP", Request{Kind: KindService, Name: "web", Port: 53}, "", 0, "no TCP port 53"},
		{"without a selector", Request{Kind: KindService, Name: "external", Port: 80}, "", 0, "no selector"},
		{"without pods", Request{Kind: KindService, Name: "empty", Port: 80}, "", 0, "no pod of the Service is ready"},
		{"missing", Request{Kind: KindService, Name: "none", Port: 80}, "", 0, "not found"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.req.Namespace = "a"
			pod, port, err := resolve(t.Context(), kube, c.req)
			if c.errorHas != "" {
				if err == nil || !strings.Contains(err.Error(), c.errorHas) {
					t.Errorf("error %v, expected %q", err, c.errorHas)
				}
				return
			}
			if err != nil || pod != c.pod || port != c.port {
				t.Errorf("pod %s port %d, %v", pod, port, err)
			}
		})
	}
}

// TestStartFails starts forwards that are invalid, whose local port is used, and that the API server rejects. None is listed.
func TestStartFails(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"pods is forbidden"}`))
	}))
	t.Cleanup(api.Close)
	f, err := New(&rest.Config{Host: api.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	used, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer used.Close()
	for _, c := range []struct {
		req      Request
		errorHas string
	}{
		{Request{Kind: "Node", Namespace: "a", Name: "p", Port: 80}, "pods and Services only"},
		{Request{Kind: KindPod, Name: "p", Port: 80}, "namespace"},
		{Request{Kind: KindPod, Namespace: "a", Name: "p"}, "from 1 to 65535"},
		{Request{Kind: KindPod, Namespace: "a", Name: "p", Port: 80, LocalPort: -1}, "local port"},
		{Request{Kind: KindPod, Namespace: "a", Name: "p", Port: 80, LocalPort: used.Addr().(*net.TCPAddr).Port}, "select another one"},
		{Request{Kind: KindPod, Namespace: "a", Name: "p", Port: 80}, "forbidden"},
		{Request{Kind: KindService, Namespace: "a", Name: "s", Port: 80}, "forbidden"},
	} {
		if _, err := f.Start(t.Context(), c.req); err == nil || !strings.Contains(err.Error(), c.errorHas) {
			t.Errorf("%+v: error %v, expected %q", c.req, err, c.errorHas)
		}
	}
	if s := f.Wait(t.Context(), 0); len(s.Forwards) != 0 {
		t.Errorf("forwards: %+v", s.Forwards)
	}
	if f.Stop(1) {
		t.Error("a forward that does not exist was stopped")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if s := f.Wait(ctx, f.version); s.Version != f.version {
		t.Errorf("version %d", s.Version)
	}
}
