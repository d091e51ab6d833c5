package integration

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"

	"hyperkube/components/apiserver"
)

// TestNodeAddressNotAllowed registers nodes whose addresses lead to the API server's own machine, and checks that no
// request to a node connects there.
func TestNodeAddressNotAllowed(t *testing.T) {
	local := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	connected := make(chan string, 100)
	local.Config.ConnState = func(conn net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connected <- conn.RemoteAddr().String()
		}
	}
	local.StartTLS()
	defer local.Close()
	port := local.Listener.Addr().(*net.TCPAddr).Port
	s := startServer(t, apiserver.Config{})
	kube := kubeOf(t, s, protobuf)
	ctx := contextOf(t)

	for name, addr := range map[string]corev1.NodeAddress{
		"ip":          {Type: corev1.NodeInternalIP, Address: "127.0.0.1"},
		"other":       {Type: corev1.NodeExternalIP, Address: "127.1.2.3"},
		"mapped":      {Type: corev1.NodeInternalIP, Address: "::ffff:127.0.0.1"},
		"unspecified": {Type: corev1.NodeInternalIP, Address: "0.0.0.0"},
		"hostname":    {Type: corev1.NodeHostName, Address: "localhost"},
		"dns":         {Type: corev1.NodeInternalDNS, Address: "localhost"},
	} {
		t.Run(name, func(t *testing.T) {
			nodeAt(t, ctx, kube, name, addr, port)
			core := kube.CoreV1().RESTClient()
			refused := func(what string, err error) {
				t.Helper()
				if err == nil || !strings.Contains(err.Error(), "address not allowed") {
					t.Errorf("%s: %v, want an address that is not allowed", what, err)
				}
			}
			for _, id := range []string{name, name + ":" + strconv.Itoa(port), "https:" + name + ":" + strconv.Itoa(port), "https:" + name + ":1"} {
				refused("proxy of "+id, core.Get().Resource("nodes").Name(id).SubResource("proxy").Suffix("api/v1/secrets").Do(ctx).Error())
			}
			refused("logs", core.Get().Namespace("default").Resource("pods").Name(name).SubResource("log").Do(ctx).Error())
			for _, sub := range []string{"exec", "attach"} {
				req := core.Post().Namespace("default").Resource("pods").Name(name).SubResource(sub)
				if sub == "exec" {
					req.VersionedParams(&corev1.PodExecOptions{Stdout: true, Command: []string{"true"}}, scheme.ParameterCodec)
				} else {
					req.VersionedParams(&corev1.PodAttachOptions{Stdout: true}, scheme.ParameterCodec)
				}
				for what, newExecutor := range map[string]func() (remotecommand.Executor, error){
					"SPDY": func() (remotecommand.Executor, error) {
						return remotecommand.NewSPDYExecutor(admin(s), "POST", req.URL())
					},
					"WebSocket": func() (remotecommand.Executor, error) {
						return remotecommand.NewWebSocketExecutor(admin(s), "GET", req.URL().String())
					},
				} {
					executor, err := newExecutor()
					if err != nil {
						t.Fatal(err)
					}
					if err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &strings.Builder{}}); err == nil {
						t.Errorf("%s by %s succeeded", sub, what)
					}
				}
			}
			err := core.Post().Namespace("default").Resource("pods").Name(name).SubResource("portforward").
				SetHeader("Connection", "Upgrade").SetHeader("Upgrade", "SPDY/3.1").Do(ctx).Error()
			refused("port-forward", err)
		})
	}
	select {
	case from := <-connected:
		t.Errorf("%s connected to a loopback address", from)
	default:
	}
}

// nodeAt creates a node with one address and the port of its kubelet, and a pod of the same name on it.
func nodeAt(t *testing.T, ctx context.Context, kube kubernetes.Interface, name string, addr corev1.NodeAddress, port int) {
	t.Helper()
	node, err := kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Addresses = []corev1.NodeAddress{addr}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
	if _, err := kube.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := somePod(name)
	pod.Spec.NodeName = name
	if _, err := kube.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}
