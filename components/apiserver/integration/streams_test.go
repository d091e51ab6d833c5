package integration

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"hyperkube/components/apiserver"
)

// fakeKubelet implements the streaming endpoints of a kubelet.
type fakeKubelet struct{}

// ExecInContainer simulates a program that copies its input and exits with code 3.
func (fakeKubelet) ExecInContainer(_ context.Context, _, _, container string, cmd []string, in io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	fmt.Fprintf(out, "%s runs %s\n", container, strings.Join(cmd, " "))
	if in != nil {
		_, _ = io.Copy(out, in)
	}
	return utilexec.CodeExitError{Err: fmt.Errorf("ends"), Code: 3}
}

// PortForward echoes its input.
func (fakeKubelet) PortForward(_ context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	line, err := bufio.NewReader(stream).ReadString('\n')
	if err != nil {
		return err
	}
	fmt.Fprintf(stream, "%d got %s", port, line)
	return stream.Close()
}

func (k fakeKubelet) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	switch parts[0] {
	case "containerLogs":
		fmt.Fprintf(w, "log of %s %s\n", parts[3], req.URL.RawQuery)
	case "exec":
		opts, err := remotecommand.NewOptions(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		remotecommand.ServeExec(w, req, k, parts[2], "", parts[3], req.URL.Query()["command"], opts, time.Minute, time.Minute, remotecommand.SupportedStreamingProtocols)
	case "portForward":
		portforward.ServePortForward(w, req, k, parts[2], "", &portforward.V4Options{}, time.Minute, time.Minute, portforward.SupportedProtocols)
	default:
		fmt.Fprintf(w, "kubelet at %s", req.URL.Path)
	}
}

func TestStreams(t *testing.T) {
	kubelet := httptest.NewUnstartedServer(fakeKubelet{})
	kubelet.EnableHTTP2 = false
	kubelet.StartTLS()
	defer kubelet.Close()
	at, err := url.Parse(kubelet.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(at.Port())
	if err != nil {
		t.Fatal(err)
	}
	k, s := newKubectl(t, apiserver.Config{Kubelet: apiserver.KubeletConfig{Dial: (&net.Dialer{}).DialContext}})
	ctx := contextOf(t)
	kube := kubeOf(t, s, protobuf)
	node, err := kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: at.Hostname()}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
	if _, err := kube.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := somePod("a")
	pod.Spec.NodeName = "n1"
	if pod, err = kube.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", Image: "i", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	if _, err := kube.CoreV1().Pods("default").UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}

	t.Run("logs", func(t *testing.T) {
		if out := k.run("", "logs", "a", "--tail=5"); out != "log of c tailLines=5\n" {
			t.Errorf("%q", out)
		}
	})
	for _, protocol := range []string{"true", "false"} {
		t.Setenv("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", protocol)
		t.Setenv("KUBECTL_PORT_FORWARD_WEBSOCKETS", protocol)
		t.Run("exec websocket "+protocol, func(t *testing.T) {
			out, err := k.try("hello", "exec", "-i", "a", "--", "cat", "x")
			if err == nil || !strings.Contains(out, "c runs cat x\nhello") || !strings.Contains(out, "exit code 3") {
				t.Errorf("%v %q", err, out)
			}
		})
		t.Run("port-forward websocket "+protocol, func(t *testing.T) {
			cmd := exec.CommandContext(ctx, k.binary, "--kubeconfig", k.config, "port-forward", "pod/a", ":80")
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			}()
			line, err := bufio.NewReader(stdout).ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			local := strings.Fields(line)[2] // Forwarding from 127.0.0.1:1234 -> 80
			conn, err := net.Dial("tcp", local)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			fmt.Fprintln(conn, "hello")
			got, err := bufio.NewReader(conn).ReadString('\n')
			if err != nil || got != "80 got hello\n" {
				t.Errorf("%q %v", got, err)
			}
		})
	}
	t.Run("proxy", func(t *testing.T) {
		if out := k.run("", "get", "--raw", "/api/v1/nodes/n1/proxy/stats/summary"); out != "kubelet at /stats/summary" {
			t.Errorf("%q", out)
		}
	})
	// EndpointSlices may be written later than Endpoints, by another controller.
	t.Run("service with Endpoints only", func(t *testing.T) {
		l := listenOutside(t)
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { fmt.Fprintf(w, "service at %s", req.URL.Path) })}
		go server.Serve(l) //nolint:errcheck // Close stops it
		defer server.Close()
		at := l.Addr().(*net.TCPAddr)
		ports := []corev1.ServicePort{{Name: "web", Port: 80}, {Name: "other", Port: 81}}
		_, err := kube.CoreV1().Services("default").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: corev1.ServiceSpec{Ports: ports}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if out, err := k.try("", "get", "--raw", "/api/v1/namespaces/default/services/s:web/proxy/a"); err == nil || !strings.Contains(out, `no endpoints available for service "s"`) {
			t.Errorf("without endpoints: %q %v", out, err)
		}
		//nolint:staticcheck // what older clients know
		_, err = kube.CoreV1().Endpoints("default").Create(ctx, &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Subsets: []corev1.EndpointSubset{{
			Addresses: []corev1.EndpointAddress{{IP: at.IP.String()}}, Ports: []corev1.EndpointPort{{Name: "web", Port: int32(at.Port)}},
		}}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, port := range []string{"web", "80"} {
			if out := k.run("", "get", "--raw", "/api/v1/namespaces/default/services/s:"+port+"/proxy/a"); out != "service at /a" {
				t.Errorf("port %s: %q", port, out)
			}
		}
		if out, err := k.try("", "get", "--raw", "/api/v1/namespaces/default/services/s:other/proxy/a"); err == nil {
			t.Errorf("another port: %q", out)
		}
	})
}

// listenOutside listens at a non-loopback address, because proxies reject loopback addresses.
func listenOutside(t *testing.T) net.Listener {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok || n.IP.To4() == nil || n.IP.IsLoopback() || n.IP.IsLinkLocalUnicast() {
			continue
		}
		if l, err := net.Listen("tcp4", net.JoinHostPort(n.IP.String(), "0")); err == nil {
			return l
		}
	}
	t.Skip("this machine has no address but loopback's")
	return nil
}
