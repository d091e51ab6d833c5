// Package kubeletmetrics computes the metrics of the kubelet that depend on its current state.
package kubeletmetrics

import (
	"crypto/tls"
	"log/slog"
	"math"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"hyperkube/components/kubelet/node/shutdown"
	"hyperkube/components/kubelet/node/stats"
	"hyperkube/components/kubelet/pod/images"
	"hyperkube/components/kubelet/pod/podcerts"
	"hyperkube/components/kubelet/pod/pods"
	"hyperkube/components/kubelet/pod/volume"
)

// Pods lists and counts the pods of the node. Its methods must be safe for concurrent use.
type Pods interface {
	Pods() []*v1.Pod
	// Active returns the pods that have not terminated.
	Active() []*v1.Pod
	// Count counts pods and containers.
	Count() pods.Counts
	// Volumes returns the volumes of a pod by name.
	Volumes(uid types.UID) map[string]volume.Result
}

// Resources has the allocations of CPUs and claims. Its methods must be safe for concurrent use.
type Resources interface {
	// CPUUsage returns the number of shared and of exclusively allocated CPUs, and the latter by NUMA node.
	CPUUsage() (shared, exclusive int, byNode map[int]int)
	// ClaimsInUse returns the number of prepared claims by driver.
	ClaimsInUse() map[string]int
}

// Collector is a Prometheus collector that computes metrics from the kubelet's current state on each scrape.
// All fields are required unless their comment says otherwise.
type Collector struct {
	NodeName string
	Pods     Pods
	// IsMirrored reports whether a static pod has a mirror pod.
	IsMirrored func(static *v1.Pod) bool
	// LogDir returns the log directory of a container.
	LogDir func(namespace, pod, uid, container string) string
	// VolumePlugin returns the plugin of a volume that is not set up.
	VolumePlugin func(*v1.Volume) string
	Resources    Resources
	// Plugins returns the registration sockets of plugins, and whether the plugin at each is registered.
	Plugins func() map[string]bool
	// Records are the records of image pulls. They may be nil.
	Records *images.Records
	// PodCertificates has the state of pod certificates.
	PodCertificates *podcerts.Issuer
	// Certificate returns the serving certificate. It is nil if another collector has its metrics.
	Certificate func() (*tls.Certificate, error)
	// Shutdown is nil if graceful node shutdown is disabled.
	Shutdown *shutdown.Manager
	Log      *slog.Logger
}

// Describe sends nothing, because the labels of the metrics depend on the state. Prometheus then does not
// check them.
func (Collector) Describe(chan<- *prometheus.Desc) {}

// Collect computes the metrics from the current state of the kubelet and sends them to ch.
func (m Collector) Collect(ch chan<- prometheus.Metric) {
	put := func(kind prometheus.ValueType, name, help string, value float64, pairs ...string) {
		var keys, values []string
		for i := 0; i+1 < len(pairs); i += 2 {
			keys, values = append(keys, pairs[i]), append(values, pairs[i+1])
		}
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, "[ALPHA] "+help, keys, nil), kind, value, values...)
	}
	gauge := func(name, help string, value float64, pairs ...string) {
		put(prometheus.GaugeValue, name, help, value, pairs...)
	}
	gauge("kubelet_node_name", "The node's name. The count is always 1.", 1, "node", m.NodeName)
	gauge("kubelet_metrics_provider", "The provider of container statistics. The count is always 1.", 1, "provider", "cri")
	m.podCounts(gauge)
	m.logs(gauge)
	m.volumes(gauge)
	m.allocations(gauge)
	m.plugins(gauge)
	m.records(gauge)
	m.podCertificates(gauge)
	m.certificate(gauge)
	if m.Shutdown != nil {
		for name, at := range m.shutdownTimes() {
			gauge("kubelet_graceful_shutdown_"+name+"_time_seconds", "Last graceful shutdown "+name+" time since unix epoch in seconds", at)
		}
	}
}

// gauges sends a gauge. pairs are the keys and values of its labels.
type gauges func(name, help string, value float64, pairs ...string)

// podCounts sends the numbers of pods, containers and pending resizes by state.
func (m Collector) podCounts(gauge gauges) {
	c := m.Pods.Count()
	gauge("kubelet_running_pods", "Number of pods that have a running pod sandbox", float64(c.Sandboxes))
	for state, n := range c.Containers {
		gauge("kubelet_running_containers", "Number of containers currently running", float64(n), "container_state", state)
	}
	gauge("kubelet_managed_ephemeral_containers", "Current number of ephemeral containers in pods managed by this kubelet.", float64(c.Ephemeral))
	for i, static := range []string{"", "true"} {
		gauge("kubelet_desired_pods", "The number of pods the kubelet is being instructed to run. static is true if the pod is not from the apiserver.", float64(c.Desired[i]), "static", static)
		gauge("kubelet_active_pods", "The number of pods the kubelet considers active and which are being considered when admitting new pods. static is true if the pod is not from the apiserver.", float64(c.Active[i]), "static", static)
	}
	mirrors := 0
	for _, pod := range m.Pods.Active() {
		if pods.IsStatic(pod) && m.IsMirrored(pod) {
			mirrors++
		}
	}
	gauge("kubelet_mirror_pods", "The number of mirror pods the kubelet will try to create (one per admitted static pod)", float64(mirrors))
	for w, n := range c.Working {
		gauge("kubelet_working_pods", "Number of pods the kubelet is actually running, broken down by lifecycle phase, whether the pod is desired, orphaned, or runtime only (also orphaned), and whether the pod is static. An orphaned pod has been removed from local configuration or force deleted in the API and consumes resources that are not otherwise visible.",
			float64(n), "lifecycle", w.Lifecycle, "config", w.Config, "static", w.Static)
	}
	for r, n := range c.Pending {
		gauge("kubelet_pod_pending_resizes", "Number of pending resizes for pods, by reason and by the priority of the pod.", float64(n), "reason", r.Reason, "priority_bucket", r.Priority)
	}
	gauge("kubelet_pod_in_progress_resizes", "Number of in-progress resizes for pods.", float64(c.InProgress))
}

// logs sends the disk usage of the logs of each container.
func (m Collector) logs(gauge gauges) {
	for _, pod := range m.Pods.Active() {
		for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses} {
			for i := range list {
				used, _ := stats.DiskUsage(m.LogDir(pod.Namespace, pod.Name, string(pod.UID), list[i].Name))
				gauge("kubelet_container_log_filesystem_used_bytes", "Bytes used by the container's logs on the filesystem.", float64(used),
					"uid", string(pod.UID), "namespace", pod.Namespace, "pod", pod.Name, "container", list[i].Name)
			}
		}
	}
}

// volumes sends the number of volumes that are set up and that pods specify, by plugin.
func (m Collector) volumes(gauge gauges) {
	type key struct{ plugin, state string }
	count := map[key]int{}
	for _, pod := range m.Pods.Active() {
		made := m.Pods.Volumes(pod.UID)
		for i := range pod.Spec.Volumes {
			v := &pod.Spec.Volumes[i]
			r, there := made[v.Name]
			plugin := r.Plugin
			if !there || plugin == "" {
				plugin = m.VolumePlugin(v)
			}
			count[key{plugin, "desired_state_of_world"}]++
			if there {
				count[key{plugin, "actual_state_of_world"}]++
			}
		}
	}
	for of, n := range count {
		gauge("volume_manager_total_volumes", "Number of volumes in Volume Manager", float64(n), "plugin_name", of.plugin, "state", of.state)
	}
}

// allocations sends the numbers of exclusively allocated CPUs and of claims in use.
func (m Collector) allocations(gauge gauges) {
	shared, own, byNode := m.Resources.CPUUsage()
	for node, n := range byNode {
		gauge("kubelet_cpu_manager_allocation_per_numa", "Number of CPUs allocated per NUMA node", float64(n), "numa_node", strconv.Itoa(node))
	}
	gauge("kubelet_cpu_manager_shared_pool_size_millicores", "The size of the shared CPU pool for non-guaranteed QoS pods, in millicores.", float64(shared*1000))
	gauge("kubelet_cpu_manager_exclusive_cpu_allocation_count", "The total number of CPUs exclusively allocated to containers running on this node", float64(own))
	for driver, n := range m.Resources.ClaimsInUse() {
		gauge("dra_resource_claims_in_use", "The number of ResourceClaims that are currently in use on the node, by driver name (driver_name label value) and across all drivers (special value <any> for driver_name).", float64(n), "driver_name", driver)
	}
}

// plugins sends the registration sockets of plugins, and which of these plugins have registered.
func (m Collector) plugins(gauge gauges) {
	const name, help = "plugin_manager_total_plugins", "Number of plugins in Plugin Manager"
	for path, registered := range m.Plugins() {
		gauge(name, help, 1, "socket_path", path, "state", "desired_state_of_world")
		if registered {
			gauge(name, help, 1, "socket_path", path, "state", "actual_state_of_world")
		}
	}
}

// records sends the number of image pull records. Without records it sends nothing.
func (m Collector) records(gauge gauges) {
	r := m.Records
	if r == nil {
		return
	}
	begun, pulled, err := r.Count()
	if err != nil {
		m.Log.Warn("counting ImagePullIntent and ImagePulledRecord files failed; the metrics kubelet_imagemanager_ondisk_* are missing in this scrape, nothing else is affected", "err", err)
		return
	}
	gauge("kubelet_imagemanager_ondisk_pullintents", "Number of ImagePullIntents stored on disk.", float64(begun))
	gauge("kubelet_imagemanager_ondisk_pulledrecords", "Number of ImagePulledRecords stored on disk.", float64(pulled))
}

// podCertificates sends the number of pod certificates by signer and state.
func (m Collector) podCertificates(gauge gauges) {
	type key struct{ signer, state string }
	count, now := map[key]int{}, time.Now()
	for _, pod := range m.Pods.Pods() {
		for i := range pod.Spec.Volumes {
			v := &pod.Spec.Volumes[i]
			if v.Projected == nil {
				continue
			}
			for source := range v.Projected.Sources {
				p := v.Projected.Sources[source].PodCertificate
				if p == nil {
					continue
				}
				if state := m.PodCertificates.State(pod.UID, v.Name, source, now); state != "" {
					count[key{p.SignerName, state}]++
				}
			}
		}
	}
	for of, n := range count {
		gauge("kubelet_podcertificate_states", "Gauge vector reporting the number of pod certificate projected volume sources, faceted by signer_name and state.",
			float64(n), "signer_name", of.signer, "state", of.state)
	}
}

// certificate sends the remaining validity of the serving certificate, or infinity if it is unknown. Without the
// field Certificate it sends nothing.
func (m Collector) certificate(gauge gauges) {
	if m.Certificate == nil {
		return
	}
	left := math.Inf(1)
	if c, err := m.Certificate(); err == nil && c.Leaf != nil {
		left = math.Trunc(time.Until(c.Leaf.NotAfter).Seconds())
	}
	gauge("kubelet_certificate_manager_server_ttl_seconds", "Gauge of the shortest TTL (time-to-live) of the Kubelet's serving certificate. The value is in seconds until certificate expiry (negative if already expired). If serving certificate is invalid or unused, the value will be +INF.", left)
}

// shutdownTimes returns the start and end of the last shutdown of the machine in seconds since the epoch, or
// 0 for never. Shutdown must not be nil.
func (m Collector) shutdownTimes() map[string]float64 {
	start, end := m.Shutdown.Times()
	seconds := func(t time.Time) float64 {
		if t.IsZero() {
			return 0
		}
		return float64(t.UnixNano()) / 1e9
	}
	return map[string]float64{"start": seconds(start), "end": seconds(end)}
}
