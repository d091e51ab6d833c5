package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	deviceapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	resourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
	firstresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"
)

const kubeletRoot = "/var/lib/kubelet"

// TestKubelet tests what the kubelet does for pods in addition to running them.
func TestKubelet(t *testing.T) {
	for name, f := range map[string]func(*space){
		"storage limit":           storageLimit,
		"device plugin":           devicePlugin,
		"resize":                  resizeInPlace,
		"configuration":           effectiveConfig,
		"rejected by the kubelet": rejectedByKubelet,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSpace(t)
			s.needBusybox()
			f(s)
		})
	}
}

// storageLimit: a pod whose emptyDir exceeds its size limit is evicted.
func storageLimit(s *space) {
	size := resource.MustParse("1Mi")
	s.pod("full", corev1.PodSpec{
		Containers: []corev1.Container{{
			Command:      []string{"sh", "-c", "dd if=/dev/zero of=/v/x bs=1M count=3; sleep 1000"},
			VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}},
		}},
		Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &size}}}},
	})
	p := s.becomes("full", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if p.Status.Reason != "Evicted" || p.Status.Message != `Usage of EmptyDir volume "v" exceeds the limit "1Mi". ` {
		s.Errorf("reason %q, message %q", p.Status.Reason, p.Status.Message)
	}
	// The pod exceeds its own limit, which is not a disruption.
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.DisruptionTarget {
			s.Errorf("conditions %+v", p.Status.Conditions)
		}
	}
}

// things is a device plugin with two devices.
type things struct {
	deviceapi.UnimplementedDevicePluginServer
}

// GetDevicePluginOptions returns no options.
func (things) GetDevicePluginOptions(context.Context, *deviceapi.Empty) (*deviceapi.DevicePluginOptions, error) {
	return &deviceapi.DevicePluginOptions{}, nil
}

func (things) ListAndWatch(_ *deviceapi.Empty, stream grpc.ServerStreamingServer[deviceapi.ListAndWatchResponse]) error {
	if err := stream.Send(&deviceapi.ListAndWatchResponse{Devices: []*deviceapi.Device{{ID: "one", Health: deviceapi.Healthy}, {ID: "two", Health: deviceapi.Healthy}}}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (things) Allocate(_ context.Context, r *deviceapi.AllocateRequest) (*deviceapi.AllocateResponse, error) {
	return &deviceapi.AllocateResponse{ContainerResponses: []*deviceapi.ContainerAllocateResponse{{
		Envs:    map[string]string{"THINGS": strings.Join(r.ContainerRequests[0].DevicesIds, "+")},
		Devices: []*deviceapi.DeviceSpec{{ContainerPath: "/dev/thing", HostPath: "/dev/null", Permissions: "rw"}},
	}}}, nil
}

// devicePlugin: a pod gets devices, the pod resources API lists them, and a pod that requests more
// than available is rejected.
func devicePlugin(s *space) {
	const name = "e2e.example.com/thing"
	socket := filepath.Join(kubeletRoot, "device-plugins", "e2e.sock")
	_ = os.Remove(socket)
	l, err := net.Listen("unix", socket)
	if err != nil {
		s.Fatal(err)
	}
	server := grpc.NewServer()
	deviceapi.RegisterDevicePluginServer(server, things{})
	go func() { _ = server.Serve(l) }()
	s.Cleanup(server.Stop)
	dial := func(path string) *grpc.ClientConn {
		conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			s.Fatal(err)
		}
		s.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	_, err = deviceapi.NewRegistrationClient(dial(filepath.Join(kubeletRoot, "device-plugins", "kubelet.sock"))).Register(s.ctx, &deviceapi.RegisterRequest{
		Version: deviceapi.Version, Endpoint: "e2e.sock", ResourceName: name, Options: &deviceapi.DevicePluginOptions{},
	})
	if err != nil {
		s.Fatal(err)
	}
	wants := corev1.ResourceRequirements{Limits: corev1.ResourceList{name: resource.MustParse("2")}}
	s.pod("user", corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{
		Command: []string{"sh", "-c", "test -c /dev/thing && echo things $THINGS; sleep 1000"}, Resources: wants,
	}}})
	p := s.becomes("user", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	s.eventually(10*time.Second, func() error {
		if got := s.do("logs", "user"); strings.TrimSpace(got) != "things one+two" {
			return fmt.Errorf("the pod printed %q", got)
		}
		return nil
	})
	if h := p.Status.ContainerStatuses[0].AllocatedResourcesStatus; len(h) != 1 || len(h[0].Resources) != 2 || h[0].Resources[0].Health != corev1.ResourceHealthStatusHealthy {
		s.Errorf("health %+v", h)
	}
	resp, err := resourcesapi.NewPodResourcesListerClient(dial(filepath.Join(kubeletRoot, "pod-resources", "kubelet.sock"))).Get(s.ctx, &resourcesapi.GetPodResourcesRequest{PodName: "user", PodNamespace: s.name})
	if err != nil || len(resp.PodResources.Containers) != 1 || len(resp.PodResources.Containers[0].Devices) != 2 || len(resp.PodResources.Containers[0].Devices[0].DeviceIds) != 1 {
		s.Errorf("resources %v, %v", resp, err)
	}
	first, err := firstresourcesapi.NewPodResourcesListerClient(dial(filepath.Join(kubeletRoot, "pod-resources", "kubelet.sock"))).List(s.ctx, &firstresourcesapi.ListPodResourcesRequest{})
	if i := slices.IndexFunc(first.GetPodResources(), func(p *firstresourcesapi.PodResources) bool { return p.Name == "user" && p.Namespace == s.name }); err != nil || i < 0 ||
		len(first.PodResources[i].Containers[0].Devices) != 2 {
		s.Errorf("resources in the first version %v, %v", first, err)
	}
	if raw, err := os.ReadFile(filepath.Join(kubeletRoot, "device-plugins", "kubelet_internal_checkpoint")); err != nil || !strings.Contains(string(raw), `"DeviceIDs":{"-1":["one","two"]}`) {
		s.Errorf("the checkpoint is %s, %v", raw, err)
	}
	s.pod("late", corev1.PodSpec{NodeName: p.Spec.NodeName, Containers: []corev1.Container{{Command: []string{"sleep", "1000"}, Resources: wants}}})
	late := s.becomes("late", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if late.Status.Reason != "UnexpectedAdmissionError" || !strings.Contains(late.Status.Message, "Requested: 2, Available: 0") {
		s.Errorf("reason %q, message %q", late.Status.Reason, late.Status.Message)
	}
}

// resizeInPlace: a container gets another limit without a restart. A resize that does not fit is
// reported.
func resizeInPlace(s *space) {
	limits := func(cpu string) corev1.ResourceRequirements {
		list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("32Mi")}
		return corev1.ResourceRequirements{Limits: list, Requests: list}
	}
	s.pod("sized", corev1.PodSpec{Containers: []corev1.Container{{Command: []string{"sleep", "1000"}, Resources: limits("100m")}}})
	s.becomes("sized", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	resize := func(cpu string) error {
		patch := fmt.Sprintf(`{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":%q},"limits":{"cpu":%q}}}]}}`, cpu, cpu)
		_, err := s.kube.CoreV1().Pods(s.name).Patch(s.ctx, "sized", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "resize")
		return err
	}
	if err := resize("200m"); err != nil {
		s.Fatal(err)
	}
	p := s.becomes("sized", func(p *corev1.Pod) bool {
		r := p.Status.ContainerStatuses[0].Resources
		return r != nil && r.Limits.Cpu().MilliValue() == 200 && condition(p, corev1.PodResizeInProgress) == nil
	})
	if p.Status.ContainerStatuses[0].RestartCount != 0 {
		s.Error("the container was restarted")
	}
	// A resize beyond the node's capacity is rejected; one that conflicts with other pods is
	// deferred.
	if err := resize("1000"); !apierrors.HasStatusCause(err, "NodeCapacity") || !apierrors.IsForbidden(err) {
		s.Errorf("to a thousand CPUs: %v", err)
	}
	node, err := s.kube.CoreV1().Nodes().Get(s.ctx, p.Spec.NodeName, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	if err := resize(node.Status.Allocatable.Cpu().String()); err != nil {
		s.Fatal(err)
	}
	p = s.becomes("sized", func(p *corev1.Pod) bool { return condition(p, corev1.PodResizePending) != nil })
	if c := condition(p, corev1.PodResizePending); c.Reason != corev1.PodReasonDeferred || !strings.Contains(c.Message, "cpu") {
		s.Errorf("condition %+v", c)
	}
}

func condition(p *corev1.Pod, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == t {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// effectiveConfig: configz contains defaults and configured values.
func effectiveConfig(s *space) {
	node := s.do("get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
	s.contains(s.do("get", "--raw", "/api/v1/nodes/"+node+"/proxy/configz"), `"memory.available":"100Mi"`, `"maxPods":110`, `"enforceNodeAllocatable":["pods"]`, `"evictionPressureTransitionPeriod":"5m0s"`)
}

// rejectedByKubelet: the kubelet rejects a pod that is bound to a node without sufficient resources.
func rejectedByKubelet(s *space) {
	node := s.do("get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
	s.pod("huge", corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
		Command: []string{"true"}, Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("5000")}},
	}}})
	p := s.becomes("huge", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if p.Status.Reason != "OutOfcpu" || !strings.HasPrefix(p.Status.Message, "Pod was rejected: Node didn't have enough resource: cpu") || len(p.Status.ContainerStatuses) != 0 {
		s.Errorf("status %+v", p.Status)
	}
	s.eventually(10*time.Second, func() error {
		if !strings.Contains(s.do("get", "events"), "OutOfcpu") {
			return errors.New("no event")
		}
		return nil
	})
}
