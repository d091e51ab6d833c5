package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// TestBehaviours checks small behaviours of Kubernetes that the conformance suite requires and that
// no other test here checks.
func TestBehaviours(t *testing.T) {
	for name, f := range map[string]func(*space){
		"termination message": terminationMessage,
		"subpath":             missingSubPath,
		"init containers":     initWaits,
		"host ports":          hostPortRefused,
		"extended resource":   resourceKept,
		"proxied root":        proxiedRoot,
		"event":               eventPatched,
		"quick deletion":      quickDeletion,
		"log by WebSocket":    logBySocket,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSpace(t)
			s.needBusybox()
			f(s)
		})
	}
}

func (s *space) pod(name string, spec corev1.PodSpec) *corev1.Pod {
	s.Helper()
	for i := range spec.Containers {
		spec.Containers[i].Name, spec.Containers[i].Image = "c", busybox
	}
	for i := range spec.InitContainers {
		spec.InitContainers[i].Name, spec.InitContainers[i].Image = fmt.Sprint("init", i+1), busybox
	}
	spec.TerminationGracePeriodSeconds = new(int64)
	p, err := s.kube.CoreV1().Pods(s.name).Create(s.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return p
}

// becomes waits until ok returns true for a pod.
func (s *space) becomes(name string, ok func(*corev1.Pod) bool) (p *corev1.Pod) {
	s.Helper()
	s.eventually(30*time.Second, func() (err error) {
		if p, err = s.kube.CoreV1().Pods(s.name).Get(s.ctx, name, metav1.GetOptions{}); err == nil && !ok(p) {
			err = fmt.Errorf("status %+v", p.Status)
		}
		return err
	})
	return p
}

func waiting(list []corev1.ContainerStatus, i int) string {
	if i >= len(list) || list[i].State.Waiting == nil {
		return ""
	}
	return list[i].State.Waiting.Reason
}

// terminationMessage: no newline is added to a termination message without one.
func terminationMessage(s *space) {
	s.pod("p", corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{
		Command:                  []string{"sh", "-c", "echo -n DONE; false"},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}}})
	p := s.becomes("p", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if got := p.Status.ContainerStatuses[0].State.Terminated.Message; got != "DONE" {
		s.Errorf("message %q", got)
	}
}

// missingSubPath: a subPath expression refers to an annotation that does not exist yet.
func missingSubPath(s *space) {
	s.pod("p", corev1.PodSpec{
		Containers: []corev1.Container{{
			Command:      []string{"sleep", "1000"},
			Env:          []corev1.EnvVar{{Name: "SUB", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['sub']"}}}},
			VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v", SubPathExpr: "$(SUB)"}},
		}},
		Volumes: []corev1.Volume{{Name: "v"}},
	})
	s.becomes("p", func(p *corev1.Pod) bool {
		return waiting(p.Status.ContainerStatuses, 0) == "CreateContainerConfigError"
	})
	s.do("annotate", "pod", "p", "sub=here")
	s.becomes("p", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
}

func initWaits(s *space) {
	s.pod("p", corev1.PodSpec{
		InitContainers: []corev1.Container{{Command: []string{"sleep", "1000"}}, {Command: []string{"true"}}},
		Containers:     []corev1.Container{{Command: []string{"true"}}},
	})
	p := s.becomes("p", func(p *corev1.Pod) bool {
		return len(p.Status.InitContainerStatuses) == 2 && p.Status.InitContainerStatuses[0].State.Running != nil
	})
	if a, b := waiting(p.Status.InitContainerStatuses, 1), waiting(p.Status.ContainerStatuses, 0); a != "PodInitializing" || b != a {
		s.Errorf("the others wait for %q and %q", a, b)
	}
}

// hostPortRefused: the kubelet rejects a pod whose host port is in use.
func hostPortRefused(s *space) {
	node := s.do("get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
	spec := corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
		Command: []string{"sleep", "1000"},
		Ports:   []corev1.ContainerPort{{ContainerPort: 80, HostPort: 21017}},
	}}}
	s.pod("first", *spec.DeepCopy())
	s.becomes("first", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	s.pod("second", spec)
	p := s.becomes("second", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if p.Status.Reason != "NodePorts" {
		s.Errorf("reason %q, %q", p.Status.Reason, p.Status.Message)
	}
}

// resourceKept: the kubelet keeps extended resources that other clients add to its Node.
func resourceKept(s *space) {
	nodes := s.kube.CoreV1().Nodes()
	node := s.do("get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
	patch := func(value string) {
		s.Helper()
		body := fmt.Sprintf(`{"status":{"capacity":{"example.com/thing":%s},"allocatable":{"example.com/thing":%s}}}`, value, value)
		if _, err := nodes.Patch(s.ctx, node, types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{}, "status"); err != nil {
			s.Fatal(err)
		}
	}
	patch(`"5"`)
	defer patch("null")
	time.Sleep(time.Second) // the kubelet handles each change of its Node
	s.eventually(5*time.Second, func() error {
		n, err := nodes.Get(s.ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		capacity, allocatable := n.Status.Capacity["example.com/thing"], n.Status.Allocatable["example.com/thing"]
		if capacity.Value() != 5 || allocatable.Value() != 5 {
			return fmt.Errorf("%s of %s", &allocatable, &capacity)
		}
		return nil
	})
}

func proxiedRoot(s *space) {
	config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig)
	if err != nil {
		s.Fatal(err)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		s.Fatal(err)
	}
	req, err := http.NewRequestWithContext(s.ctx, http.MethodGet, config.Host+"/api/v1/namespaces/default/services/https:kubernetes:443/proxy?a=b", nil)
	if err != nil {
		s.Fatal(err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		s.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		s.Error(err)
	}
	if to := resp.Header.Get("Location"); resp.StatusCode != http.StatusMovedPermanently || to != req.URL.Path+"/?a=b" {
		s.Errorf("%s to %q", resp.Status, to)
	}
}

func eventPatched(s *space) {
	events := s.kube.EventsV1().Events(s.name)
	if _, err := events.Create(s.ctx, &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "e"}, Regarding: corev1.ObjectReference{Namespace: s.name}, EventTime: metav1.NowMicro(),
		Note: "before", Action: "Do", Reason: "Test", Type: "Normal", ReportingController: "tester", ReportingInstance: "t",
	}, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	patch := fmt.Appendf(nil, `{"series":{"count":2,"lastObservedTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro))
	e, err := events.Patch(s.ctx, "e", types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err == nil && (e.Series == nil || e.Series.Count != 2) {
		err = fmt.Errorf("series %+v", e.Series)
	}
	if err != nil {
		s.Error(err)
	}
}

// quickDeletion deletes pods while they are being created: nothing of them may remain.
func quickDeletion(s *space) {
	pods := s.kube.CoreV1().Pods(s.name)
	grace := int64(1)
	for i := range 10 {
		p := s.pod(fmt.Sprint("p", i), corev1.PodSpec{Containers: []corev1.Container{{Command: []string{"sleep", "1000"}}}})
		s.becomes(p.Name, func(p *corev1.Pod) bool { return p.Spec.NodeName != "" })
		time.Sleep(time.Duration(i) * 2 * time.Millisecond)
		if err := pods.Delete(s.ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
			s.Fatal(err)
		}
	}
	s.eventually(20*time.Second, func() error {
		list, err := pods.List(s.ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d pods still exist", len(list.Items))
		}
		return err
	})
}

func logBySocket(s *space) {
	s.pod("p", corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Command: []string{"echo", "alive"}}}})
	s.becomes("p", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
	config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig)
	if err != nil {
		s.Fatal(err)
	}
	url := strings.Replace(config.Host, "https", "wss", 1) + "/api/v1/namespaces/" + s.name + "/pods/p/log"
	socket, err := websocket.NewConfig(url, "http://localhost")
	if err != nil {
		s.Fatal(err)
	}
	if socket.TlsConfig, err = rest.TLSConfigFor(config); err != nil {
		s.Fatal(err)
	}
	socket.Protocol = []string{"binary.k8s.io"}
	conn, err := websocket.DialConfig(socket)
	if err != nil {
		s.Fatal(err)
	}
	var all, message []byte
	for err == nil {
		all = append(all, message...)
		err = websocket.Message.Receive(conn, &message)
	}
	if string(all) != "alive\n" {
		s.Errorf("%q, then %v", all, err)
	}
	_ = conn.Close() // the server has closed it already
}
