package telemetry

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// lines returns the counters, gauges and observation counts of m that are not 0.
func lines(t *testing.T, m *Metrics) map[string]float64 {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(m); err != nil {
		t.Fatal(err)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, one := range f.Metric {
			var labels []string
			for _, l := range one.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			value := one.GetCounter().GetValue() + one.GetGauge().GetValue() + float64(one.GetHistogram().GetSampleCount())
			if value != 0 {
				out[fmt.Sprintf("%s{%s}", f.GetName(), strings.Join(labels, ","))] = value
			}
		}
	}
	return out
}

func TestPodsAreCounted(t *testing.T) {
	m := New()
	no := false
	pod := &v1.Pod{Spec: v1.PodSpec{HostUsers: &no, Containers: []v1.Container{{Name: "c"}}}}
	m.WorkerStarted(pod, time.Second)
	m.PodStarting(pod, errors.New("no"))
	m.PodStarting(pod, nil)
	m.FirstStartFailed(pod)
	m.FirstStartFailed(&v1.Pod{})
	m.ContainerStarting(InitContainer, "")
	m.ContainerStarting(Container, "ErrImagePull")
	m.ImageVolumes(2, nil)
	m.ImageVolumes(1, errors.New("no"))
	m.ImageVolumes(0, errors.New("no"))
	m.PodStarted(pod, 3*time.Second, time.Second)
	pod.Spec.Volumes = []v1.Volume{{VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}}}
	m.PodStarted(pod, 3*time.Second, time.Second)
	for _, reason := range []string{"OutOfcpu", "OutOfexample.com/gpu", "Strange", "NodeAffinity"} {
		m.Rejected(reason)
	}
	ended := v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: 3, Reason: "Error"}}
	status := &v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{Name: "a", State: ended}, {Name: "b", State: ended}}}
	m.StatusChanged(&v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{Name: "a", State: ended}, {Name: "b"}}}, status)
	m.StatusChanged(status, status)
	got := lines(t, m)
	for name, want := range map[string]float64{
		"kubelet_containers_per_pod_count{}":                                                     1,
		"kubelet_started_pods_total{}":                                                           2,
		"kubelet_started_pods_errors_total{}":                                                    1,
		"kubelet_started_user_namespaced_pods_total{}":                                           2,
		"kubelet_started_user_namespaced_pods_errors_total{}":                                    2,
		"kubelet_started_containers_total{container_type=init_container}":                        1,
		"kubelet_started_containers_errors_total{code=ErrImagePull,container_type=container}":    1,
		"kubelet_image_volume_requested_total{}":                                                 3,
		"kubelet_image_volume_mounted_succeed_total{}":                                           2,
		"kubelet_image_volume_mounted_errors_total{}":                                            1,
		"kubelet_pod_start_total_duration_seconds{}":                                             2,
		"kubelet_pod_start_sli_duration_seconds{}":                                               1,
		"kubelet_first_network_pod_start_sli_duration_seconds{}":                                 2,
		"kubelet_admission_rejections_total{reason=OutOfcpu}":                                    1,
		"kubelet_admission_rejections_total{reason=OutOfExtendedResources}":                      1,
		"kubelet_admission_rejections_total{reason=Other}":                                       2,
		"kubelet_terminated_containers_total{container_type=container,exit_code=3,reason=Error}": 1,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
}

func TestResizesAreCounted(t *testing.T) {
	m := New()
	with := func(cpu, memory string) *v1.Pod {
		c := v1.Container{Name: "c", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{}}}
		for name, text := range map[v1.ResourceName]string{v1.ResourceCPU: cpu, v1.ResourceMemory: memory} {
			if text != "" {
				c.Resources.Requests[name] = resource.MustParse(text)
			}
		}
		return &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{c}}}
	}
	m.ResizesRequested(with("1", "1Gi"), with("2", "1Gi"))
	m.ResizesRequested(with("2", "1Gi"), with("1", ""))
	m.ResizesRequested(with("", "1Gi"), with("1", "1Gi"))
	got := lines(t, m)
	for _, labels := range []string{
		"operation=increase,requirement=requests,resource=cpu", "operation=decrease,requirement=requests,resource=cpu",
		"operation=remove,requirement=requests,resource=memory", "operation=add,requirement=requests,resource=cpu",
	} {
		if name := "kubelet_container_requested_resizes_total{" + labels + "}"; got[name] != 1 {
			t.Errorf("%s is %v in %v", name, got[name], got)
		}
	}
}

func TestBuckets(t *testing.T) {
	for size, want := range map[uint64]string{0: "N/A", 1: "0-10MB", 10 << 20: "0-10MB", 11 << 20: "10MB-100MB", 2 << 30: "1GB-5GB", 200 << 30: "GT100GB"} {
		if got := sizeLabel(size); got != want {
			t.Errorf("%d bytes: %s, want %s", size, got, want)
		}
	}
	for priority, want := range map[int32]string{2000001000: "system-critical", 100000: "high", 99999: "medium", 0: "normal", -999: "low", -1000: "very-low"} {
		if got := PriorityBucket(&v1.Pod{Spec: v1.PodSpec{Priority: &priority}}); got != want {
			t.Errorf("priority %d: %s, want %s", priority, got, want)
		}
	}
}

func TestRequestsAreCounted(t *testing.T) {
	m := New()
	h := m.Requests.InstrumentHandler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), "readwrite")
	for _, path := range []string{"/metrics/cadvisor", "/exec/a/b/c", "/strange/path", "/"} {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil))
	}
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("BREW", "/pods", nil))
	got := lines(t, m)
	for labels, want := range map[string]float64{
		"long_running=false,method=GET,path=metrics/cadvisor,server_type=readwrite": 1,
		"long_running=true,method=GET,path=exec,server_type=readwrite":              1,
		"long_running=false,method=GET,path=other,server_type=readwrite":            2,
		"long_running=false,method=other,path=pods,server_type=readwrite":           1,
	} {
		if got["kubelet_http_requests_total{"+labels+"}"] != want || got["kubelet_http_requests_duration_seconds{"+labels+"}"] != want {
			t.Errorf("%s: %v", labels, got)
		}
	}
}

// TestNilCountsNothing checks that the methods of nil Metrics can be called.
func TestNilCountsNothing(t *testing.T) {
	var m *Metrics
	var images *Images
	var node *Node
	var requests *Requests
	var volumes *Volumes
	var hooks *Hooks
	var devices *Devices
	var claims *Claims
	var sockets *Sockets
	var allocation *Allocation
	pod := &v1.Pod{}
	m.OperationFinished(Sync, 0)
	m.WorkerStarted(pod, 0)
	m.PodRunning(0)
	m.PodStarted(pod, 0, 0)
	m.StatusSynced(0)
	m.PodStarting(pod, nil)
	m.ContainerStarting(Container, "x")
	m.StatusChanged(&pod.Status, &pod.Status)
	m.Restarted(true)
	m.Orphaned()
	m.OrphansCleaned(1, 1)
	m.Rejected("x")
	m.Preempted("cpu")
	hooks.HookFallback()
	hooks.SleepTerminatedEarly()
	images.ImagePulled(1, 0)
	images.ImageCollected(true)
	images.ImageRequested("", "", "")
	images.ImageChecked("")
	m.ImageVolumes(1, nil)
	m.SandboxMade("", 0, nil)
	m.PodRelisted(0)
	m.EventReceived(time.Time{})
	m.EventStreamOpened(nil)
	node.Cgroup("create", 0)
	volumes.VolumeOperation("", "", 0, nil)
	volumes.DriverCall("", "", 0, nil)
	devices.PluginRegistered("")
	devices.DevicesAllocated("", 0)
	sockets.PodResourcesRequest("List", "v1", nil)
	sockets.PodsAPIRequest("GetPod", "v1alpha1", "OK")
	sockets.PodsAPIEventDropped()
	allocation.CPUsPinned(nil)
	allocation.MemoryPinned(nil)
	allocation.Aligned(ScopePod, OnNUMANode, true)
	allocation.TopologyAdmission(0, nil)
	claims.Operation("", 0, nil)
	claims.ClaimCall("", "", "", 0)
	m.ResizesRequested(pod, pod)
	m.Resized(0, true)
	m.ResizeInfeasible("")
	m.ResizeAccepted(pod, "", 0)
	node.NodeStarted(Startup{})
	node.CgroupVersion(1)
	if h := http.NotFoundHandler(); requests.InstrumentHandler(h, "") == nil {
		t.Error("no handler")
	}
}

// TestLosingSupport checks that the metric is zero for a runtime with all features.
func TestLosingSupport(t *testing.T) {
	m := New()
	const name = "kubelet_cri_losing_support{version=1.38.0}"
	if got := lines(t, m); got[name] != 0 {
		t.Errorf("before a request: %v", got[name])
	}
	m.Node.LosingSupport()
	m.Node.LosingSupport()
	if got := lines(t, m); got[name] != 1 {
		t.Errorf("old runtime: %v", got[name])
	}
}

func TestNodeStarted(t *testing.T) {
	m := New()
	at := time.Unix(1000, 0)
	m.Node.NodeStarted(Startup{Boot: at, Kubelet: at.Add(10 * time.Second), Ready: at.Add(20 * time.Second)})
	if got := lines(t, m); got["kubelet_node_startup_duration_seconds{}"] != 0 {
		t.Errorf("existing node: %v", got)
	}
	m.Node.NodeStarted(Startup{Boot: at, Kubelet: at.Add(10 * time.Second), RegistrationStarted: at.Add(11 * time.Second), Registered: at.Add(13 * time.Second), Ready: at.Add(20 * time.Second)})
	got := lines(t, m)
	for name, want := range map[string]float64{"": 20, "pre_kubelet_": 10, "pre_registration_": 1, "registration_": 2, "post_registration_": 7} {
		if have := got["kubelet_node_startup_"+name+"duration_seconds{}"]; have != want {
			t.Errorf("%s: %v, want %v", name, have, want)
		}
	}
}

func TestVolumesFoundAreCounted(t *testing.T) {
	m := New()
	m.VolumesFound(3, 0)
	m.VolumesFound(1, 1)
	m.OrphanVolumesCleaned(2, nil)
	m.OrphanVolumesCleaned(1, errors.New("no"))
	var none *Metrics
	none.VolumesFound(1, 1)
	none.OrphanVolumesCleaned(1, nil)
	got := lines(t, m)
	for name, want := range map[string]float64{
		"reconstruct_volume_operations_total{}": 5, "reconstruct_volume_operations_errors_total{}": 1,
		"force_cleaned_failed_volume_operations_total{}": 3, "force_cleaned_failed_volume_operation_errors_total{}": 1,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
}

// TestAdmittedPodsAreCounted checks that pods are counted by the level of their resources.
func TestAdmittedPodsAreCounted(t *testing.T) {
	m := New()
	some := v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}}
	with := v1.Container{Resources: some}
	for _, spec := range []v1.PodSpec{
		{Containers: []v1.Container{{}}},
		{Containers: []v1.Container{with}},
		{Containers: []v1.Container{{}}, InitContainers: []v1.Container{with}},
		{Containers: []v1.Container{{}}, Resources: &some},
		{Containers: []v1.Container{with}, Resources: &some},
	} {
		m.Admitted(&v1.Pod{Spec: spec}, v1.PodQOSBurstable)
	}
	got := lines(t, m)
	for mode, n := range map[string]float64{"": 1, "container_level": 2, "pod_level": 1, "pod_and_container_level": 1} {
		if key := "kubelet_pod_level_resources_admission_total{config_mode=" + mode + ",qos_class=burstable}"; got[key] != n {
			t.Errorf("%s: %v", key, got[key])
		}
	}
}
