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

	"hyperkube/components/kubelet/pods"
	"hyperkube/components/kubelet/stats"
	"hyperkube/components/kubelet/telemetry"
	"hyperkube/internal/cgroup"
)

// timedCgroups times what is done to the cgroups of pods.
type timedCgroups struct {
	pods.Cgroups
	metrics *telemetry.Metrics
}

func (t timedCgroups) timed(operation string, began time.Time) {
	t.metrics.Cgroup(operation, time.Since(began))
}

// Create implements pods.Cgroups.
func (t timedCgroups) Create(name string, r cgroup.Resources) error {
	defer t.timed("create", time.Now())
	return t.Cgroups.Create(name, r)
}

// Set implements pods.Cgroups.
func (t timedCgroups) Set(name string, r cgroup.Resources) error {
	defer t.timed("update", time.Now())
	return t.Cgroups.Set(name, r)
}

// Remove implements pods.Cgroups.
func (t timedCgroups) Remove(ctx context.Context, name string) error {
	defer t.timed("destroy", time.Now())
	return t.Cgroups.Remove(ctx, name)
}

// runtimePID is the process that made the runtime's socket.
func (k *Kubelet) runtimePID() (pid int, err error) {
	conn, err := net.DialTimeout("unix", strings.TrimPrefix(k.cfg.Endpoint, "unix://"), time.Second)
	if err != nil {
		return 0, fmt.Errorf("asking which process the runtime is: %w", err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("asking which process the runtime is: %w", err)
	}
	var peer *unix.Ucred
	var asked error
	if err := raw.Control(func(fd uintptr) { peer, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, fmt.Errorf("asking which process the runtime is: %w", err)
	}
	if asked != nil {
		return 0, fmt.Errorf("asking which process the runtime is: %w", asked)
	}
	return int(peer.Pid), nil
}

// nodeStarted tells how long the node's start took.
func (k *Kubelet) nodeStarted(asked, registered, ready time.Time) {
	k.metrics.NodeStarted(telemetry.Startup{Boot: bootTime(), Kubelet: k.began, Asked: asked, Registered: registered, Ready: ready})
}

// bootTime is when the machine was started; zero if nobody knows.
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

// kubeletMetrics are what is counted when somebody asks.
type kubeletMetrics struct{ k *Kubelet }

// Describe implements prometheus.Collector; nothing is told beforehand.
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
	gauge("kubelet_metrics_provider", "Who measures containers: the runtime, asked by CRI.", 1, "provider", "cri")
	m.census(gauge)
	m.logs(gauge)
	m.volumes(gauge)
	m.own(gauge)
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

// census tells how many pods and containers there are.
func (m kubeletMetrics) census(gauge gauges) {
	c := m.k.manager.Census()
	gauge("kubelet_running_pods", "Number of pods that have a running pod sandbox", float64(c.Sandboxes))
	for state, n := range c.Containers {
		gauge("kubelet_running_containers", "Number of containers currently running", float64(n), "container_state", state)
	}
	gauge("kubelet_managed_ephemeral_containers", "Current number of ephemeral containers in pods managed by this kubelet.", float64(c.Ephemeral))
	for i, static := range []string{"", "true"} {
		gauge("kubelet_desired_pods", "The number of pods the kubelet is being instructed to run. static is true if the pod is not from the apiserver.", float64(c.Desired[i]), "static", static)
		gauge("kubelet_active_pods", "The number of pods that have not ended and count when others are admitted. static is true if the pod is not from the apiserver.", float64(c.Active[i]), "static", static)
	}
	mirrors := 0
	if m.k.mirrors != nil {
		for _, pod := range m.k.manager.Active() {
			if pods.IsStatic(pod) && m.k.mirrors.Of(pod) != nil {
				mirrors++
			}
		}
	}
	gauge("kubelet_mirror_pods", "The number of mirror pods: one per admitted static pod", float64(mirrors))
	for w, n := range c.Working {
		gauge("kubelet_working_pods", "Number of pods that something is left of, by how far they are, whether they are desired, orphaned, or known by the runtime alone, and whether they are static.",
			float64(n), "lifecycle", w.Lifecycle, "config", w.Config, "static", w.Static)
	}
	for r, n := range c.Pending {
		gauge("kubelet_pod_pending_resizes", "Number of resizes of pods that wait, by why and by the priority of the pod.", float64(n), "reason", r.Reason, "priority_bucket", r.Priority)
	}
	gauge("kubelet_pod_in_progress_resizes", "Number of in-progress resizes for pods.", float64(c.InProgress))
}

// logs tells what the logs of containers take.
func (m kubeletMetrics) logs(gauge gauges) {
	for _, pod := range m.k.manager.Active() {
		for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses} {
			for i := range list {
				used, _ := stats.DiskUsage(m.k.stats.LogDir(pod.Namespace, pod.Name, string(pod.UID), list[i].Name))
				gauge("kubelet_container_log_filesystem_used_bytes", "Bytes used by the container's logs on the filesystem.", float64(used),
					"uid", string(pod.UID), "namespace", pod.Namespace, "pod", pod.Name, "container", list[i].Name)
			}
		}
	}
}

// volumes tells how many there are, and shall be, by what makes them.
func (m kubeletMetrics) volumes(gauge gauges) {
	type key struct{ plugin, state string }
	count := map[key]int{}
	for _, pod := range m.k.manager.Active() {
		made := m.k.manager.Volumes(pod.UID)
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

// own tells of what containers have for themselves.
func (m kubeletMetrics) own(gauge gauges) {
	shared, own := 0, 0
	if m.k.cpus != nil {
		var byNode map[int]int
		shared, own, byNode = m.k.cpus.Use()
		for node, n := range byNode {
			gauge("kubelet_cpu_manager_allocation_per_numa", "Number of CPUs allocated per NUMA node", float64(n), "numa_node", strconv.Itoa(node))
		}
	}
	gauge("kubelet_cpu_manager_shared_pool_size_millicores", "The size of the shared CPU pool for non-guaranteed QoS pods, in millicores.", float64(shared*1000))
	gauge("kubelet_cpu_manager_exclusive_cpu_allocation_count", "The total number of CPUs exclusively allocated to containers running on this node", float64(own))
	for driver, n := range m.k.claims.InUse() {
		gauge("dra_resource_claims_in_use", "The number of ResourceClaims that are used on the node, by driver; <any> are all.", float64(n), "driver_name", driver)
	}
}

// plugins tells of the sockets by which plugins register, and of those that have.
func (m kubeletMetrics) plugins(gauge gauges) {
	const name, help = "plugin_manager_total_plugins", "Number of plugins in Plugin Manager"
	for path, registered := range m.k.plugins.Sockets() {
		gauge(name, help, 1, "socket_path", path, "state", "desired_state_of_world")
		if registered {
			gauge(name, help, 1, "socket_path", path, "state", "actual_state_of_world")
		}
	}
}

// records tells how much is remembered of pulls.
func (m kubeletMetrics) records(gauge gauges) {
	r := m.k.host.Images.Puller.Records
	if r == nil {
		return
	}
	begun, pulled, err := r.Count()
	if err != nil {
		m.k.log.Warn("counting the records of pulls failed", "error", err)
		return
	}
	gauge("kubelet_imagemanager_ondisk_pullintents", "Number of ImagePullIntents stored on disk.", float64(begun))
	gauge("kubelet_imagemanager_ondisk_pulledrecords", "Number of ImagePulledRecords stored on disk.", float64(pulled))
}

// podCertificates tells how the certificates of pods are.
func (m kubeletMetrics) podCertificates(gauge gauges) {
	type key struct{ signer, state string }
	count, now := map[key]int{}, time.Now()
	for _, pod := range m.k.manager.Pods() {
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

// certificate tells for how long the certificate that is shown is good, unless
// whoever keeps it does.
func (m kubeletMetrics) certificate(gauge gauges) {
	if m.k.cfg.Server.Certificate == nil || m.k.cfg.Server.CertificateKept {
		return
	}
	left := math.Inf(1)
	if c, err := m.k.cfg.Server.Certificate(); err == nil && c.Leaf != nil {
		left = math.Trunc(time.Until(c.Leaf.NotAfter).Seconds())
	}
	gauge("kubelet_certificate_manager_server_ttl_seconds", "For how many seconds the kubelet's serving certificate is good; negative when it has expired, +Inf when there is none.", left)
}
