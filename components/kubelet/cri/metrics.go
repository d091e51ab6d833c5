package cri

import (
	"context"
	"path"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
)

// Metrics has the Prometheus metrics of CRI calls. It is a prometheus.Collector.
type Metrics struct {
	total, failed *prometheus.CounterVec
	duration      *prometheus.HistogramVec
}

// NewMetrics returns the metrics of a new client, with no calls counted. Dial calls it.
func NewMetrics() *Metrics {
	return &Metrics{
		total:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubelet_runtime_operations_total", Help: "Cumulative number of runtime operations by operation type."}, []string{"operation_type"}),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubelet_runtime_operations_errors_total", Help: "Cumulative number of runtime operation errors by operation type."}, []string{"operation_type"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_runtime_operations_duration_seconds", Help: "Duration in seconds of runtime operations. Broken down by operation type.",
			Buckets: prometheus.ExponentialBuckets(.005, 2.5, 14),
		}, []string{"operation_type"}),
	}
}

// Describe sends the descriptions of the metrics to ch.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	m.total.Describe(ch)
	m.failed.Describe(ch)
	m.duration.Describe(ch)
}

// Collect sends the current counts and durations of CRI calls to ch.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.total.Collect(ch)
	m.failed.Collect(ch)
	m.duration.Collect(ch)
}

// operations are upstream's operation types, which are metrics labels, by CRI method. Other methods are not
// counted.
var operations = map[string]string{
	"Version": "version", "Status": "status", "RunPodSandbox": "run_podsandbox", "StopPodSandbox": "stop_podsandbox", "RemovePodSandbox": "remove_podsandbox",
	"PodSandboxStatus": "podsandbox_status", "ListPodSandbox": "list_podsandbox", "CreateContainer": "create_container", "StartContainer": "start_container",
	"StopContainer": "stop_container", "RemoveContainer": "remove_container", "ListContainers": "list_containers", "ContainerStatus": "container_status",
	"UpdateContainerResources": "update_container", "ReopenContainerLog": "reopen_container_log", "ExecSync": "exec_sync", "Exec": "exec", "Attach": "attach",
	"PortForward": "port_forward", "ContainerStats": "container_stats", "ListContainerStats": "list_container_stats", "PodSandboxStats": "podsandbox_stats",
	"ListPodSandboxStats": "list_podsandbox_stats", "UpdateRuntimeConfig": "update_runtime_config", "UpdatePodSandboxResources": "update_podsandbox_resources", "ListMetricDescriptors": "list_metric_descriptors",
	"ListPodSandboxMetrics": "list_podsandbox_metrics", "RuntimeConfig": "runtime_config", "ListImages": "list_images", "ImageStatus": "image_status",
	"PullImage": "pull_image", "RemoveImage": "remove_image", "ImageFsInfo": "image_fs_info",
}

// intercept is the gRPC interceptor of the connection to the runtime. It makes the call and, if upstream has
// metrics for it, records its duration and result.
func (m *Metrics) intercept(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	began := time.Now()
	err := invoke(ctx, method, req, reply, conn, opts...)
	name, ok := operations[path.Base(method)]
	if !ok {
		return err
	}
	m.total.WithLabelValues(name).Inc()
	m.duration.WithLabelValues(name).Observe(time.Since(began).Seconds())
	if err != nil {
		m.failed.WithLabelValues(name).Inc()
	}
	return err
}
