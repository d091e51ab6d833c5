package kubelet

import (
	"context"
	"fmt"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/node/stats"
	"hyperkube/components/kubelet/pod/pods"
	"hyperkube/components/kubelet/telemetry"
	"hyperkube/internal/host/cgroup"
)

// timedCgroups records the duration of operations on pods' cgroups.
type timedCgroups struct {
	pods.Cgroups
	metrics *telemetry.Metrics
}

func (t timedCgroups) observe(operation string, began time.Time) {
	t.metrics.Cgroup(operation, time.Since(began))
}

// Create implements pods.Cgroups.
func (t timedCgroups) Create(name string, r cgroup.Resources) error {
	defer t.observe("create", time.Now())
	return t.Cgroups.Create(name, r)
}

// Set implements pods.Cgroups.
func (t timedCgroups) Set(name string, r cgroup.Resources) error {
	defer t.observe("update", time.Now())
	return t.Cgroups.Set(name, r)
}

// Remove implements pods.Cgroups.
func (t timedCgroups) Remove(ctx context.Context, name string) error {
	defer t.observe("destroy", time.Now())
	return t.Cgroups.Remove(ctx, name)
}

// runtimePID returns the ID of the process that listens on the runtime's socket.
func (k *Kubelet) runtimePID() (pid int, err error) {
	conn, err := net.DialTimeout("unix", strings.TrimPrefix(k.cfg.Runtime.Endpoint, "unix://"), time.Second)
	if err != nil {
		return 0, fmt.Errorf("getting the process ID of the runtime: %w", err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("getting the process ID of the runtime: %w", err)
	}
	var peer *unix.Ucred
	var asked error
	if err := raw.Control(func(fd uintptr) { peer, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, fmt.Errorf("getting the process ID of the runtime: %w", err)
	}
	if asked != nil {
		return 0, fmt.Errorf("getting the process ID of the runtime: %w", asked)
	}
	return int(peer.Pid), nil
}

// nodeStarted records the metrics of the node's startup.
func (k *Kubelet) nodeStarted(asked, registered, ready time.Time) {
	k.metrics.NodeStarted(telemetry.Startup{Boot: bootTime(), Kubelet: k.started, RegistrationStarted: asked, Registered: registered, Ready: ready})
}

// bootTime returns when the machine was booted; zero if unknown.
func bootTime() time.Time {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return time.Time{}
	}
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, "btime "); ok {
			if n, err := strconv.ParseInt(strings.TrimSpace(rest), 10, 64); err == nil {
				return time.Unix(n, 0)
			}
		}
	}
	return time.Time{}
}

// kubeletMetrics are the metrics that are computed on each scrape.
type kubeletMetrics struct{ k *Kubelet }

// Describe implements prometheus.Collector. It sends nothing because the metrics are not known in
// advance.
func (kubeletMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m kubeletMetrics) Collect(ch chan<- prometheus.Metric) {
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
	gauge("kubelet_node_name", "The node's name. The count is always 1.", 1, "node", m.k.cfg.NodeName)
	gauge("kubelet_metrics_provider", "The provider of container statistics. The count is always 1.", 1, "provider", "cri")
	m.podCounts(gauge)
	m.logs(gauge)
	m.volumes(gauge)
	m.allocations(gauge)
	m.plugins(gauge)
	m.records(gauge)
	m.podCertificates(gauge)
	m.certificate(gauge)
	if m.k.shutdown != nil {
		for name, at := range m.k.shutdownTimes() {
			gauge("kubelet_graceful_shutdown_"+name+"_time_seconds", "Last graceful shutdown "+name+" time since unix epoch in seconds", at)
		}
	}
}

type gauges func(name, help string, value float64, pairs ...string)

// podCounts reports the number of pods and containers.
func (m kubeletMetrics) podCounts(gauge gauges) {
	c := m.k.pods.Count()
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
	if m.k.mirrors != nil {
		for _, pod := range m.k.pods.Active() {
			if pods.IsStatic(pod) && m.k.mirrors.Of(pod) != nil {
				mirrors++
			}
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

// logs reports the disk usage of container logs.
func (m kubeletMetrics) logs(gauge gauges) {
	for _, pod := range m.k.pods.Active() {
		for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses} {
			for i := range list {
				used, _ := stats.DiskUsage(m.k.stats.LogDir(pod.Namespace, pod.Name, string(pod.UID), list[i].Name))
				gauge("kubelet_container_log_filesystem_used_bytes", "Bytes used by the container's logs on the filesystem.", float64(used),
					"uid", string(pod.UID), "namespace", pod.Namespace, "pod", pod.Name, "container", list[i].Name)
			}
		}
	}
}

// volumes reports the actual and desired number of volumes by plugin.
func (m kubeletMetrics) volumes(gauge gauges) {
	type key struct{ plugin, state string }
	count := map[key]int{}
	for _, pod := range m.k.pods.Active() {
		made := m.k.pods.Volumes(pod.UID)
		for i := range pod.Spec.Volumes {
			v := &pod.Spec.Volumes[i]
			r, there := made[v.Name]
			plugin := r.Plugin
			if !there || plugin == "" {
				plugin = m.k.host.Volumes.Plugin(v)
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

// allocations reports exclusively allocated resources.
func (m kubeletMetrics) allocations(gauge gauges) {
	shared, own := 0, 0
	if m.k.cpus != nil {
		var byNode map[int]int
		shared, own, byNode = m.k.cpus.Usage()
		for node, n := range byNode {
			gauge("kubelet_cpu_manager_allocation_per_numa", "Number of CPUs allocated per NUMA node", float64(n), "numa_node", strconv.Itoa(node))
		}
	}
	gauge("kubelet_cpu_manager_shared_pool_size_millicores", "The size of the shared CPU pool for non-guaranteed QoS pods, in millicores.", float64(shared*1000))
	gauge("kubelet_cpu_manager_exclusive_cpu_allocation_count", "The total number of CPUs exclusively allocated to containers running on this node", float64(own))
	for driver, n := range m.k.claims.InUse() {
		gauge("dra_resource_claims_in_use", "The number of ResourceClaims that are currently in use on the node, by driver name (driver_name label value) and across all drivers (special value <any> for driver_name).", float64(n), "driver_name", driver)
	}
}

// plugins reports the registration sockets of plugins, and which plugins have registered.
func (m kubeletMetrics) plugins(gauge gauges) {
	const name, help = "plugin_manager_total_plugins", "Number of plugins in Plugin Manager"
	for path, registered := range m.k.plugins.Sockets() {
		gauge(name, help, 1, "socket_path", path, "state", "desired_state_of_world")
		if registered {
			gauge(name, help, 1, "socket_path", path, "state", "actual_state_of_world")
		}
	}
}

// records reports the number of image pull records.
func (m kubeletMetrics) records(gauge gauges) {
	r := m.k.host.Images.Puller.Records
	if r == nil {
		return
	}
	begun, pulled, err := r.Count()
	if err != nil {
		m.k.log.Warn("counting image pull records failed", "err", err)
		return
	}
	gauge("kubelet_imagemanager_ondisk_pullintents", "Number of ImagePullIntents stored on disk.", float64(begun))
	gauge("kubelet_imagemanager_ondisk_pulledrecords", "Number of ImagePulledRecords stored on disk.", float64(pulled))
}

// podCertificates reports the state of pod certificates.
func (m kubeletMetrics) podCertificates(gauge gauges) {
	type key struct{ signer, state string }
	count, now := map[key]int{}, time.Now()
	for _, pod := range m.k.pods.Pods() {
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
				if state := m.k.podCerts.State(pod.UID, v.Name, source, now); state != "" {
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

// certificate reports the remaining validity of the serving certificate, unless Config.Metrics
// includes it.
func (m kubeletMetrics) certificate(gauge gauges) {
	if m.k.cfg.Server.Certificate == nil || m.k.cfg.Server.CertificateHasMetrics {
		return
	}
	left := math.Inf(1)
	if c, err := m.k.cfg.Server.Certificate(); err == nil && c.Leaf != nil {
		left = math.Trunc(time.Until(c.Leaf.NotAfter).Seconds())
	}
	gauge("kubelet_certificate_manager_server_ttl_seconds", "Gauge of the shortest TTL (time-to-live) of the Kubelet's serving certificate. The value is in seconds until certificate expiry (negative if already expired). If serving certificate is invalid or unused, the value will be +INF.", left)
}
