package kubelet

import (
	"context"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"hyperkube/components/kubelet/node/nodestatus"
	"hyperkube/components/kubelet/node/stats"
	"hyperkube/components/kubelet/pod/probe"
	"hyperkube/components/kubelet/resources/cpumanager"
	"hyperkube/components/kubelet/server"
	"hyperkube/components/kubelet/server/backend"
	"hyperkube/components/kubelet/server/kubeletmetrics"
	"hyperkube/internal/serving/componentmetrics"
)

// server opens the listeners of the kubelet's HTTP servers, and returns the function that serves requests
// until its context is done. Without a configured certificate it generates a self-signed one.
func (k *Kubelet) server() (func(context.Context) error, error) {
	cfg := k.cfg.Server
	certificate := cfg.Certificate
	if certificate == nil {
		self := server.NewSelfSigned(k.cfg.NodeName, k.ips)
		if _, err := self.Certificate(); err != nil {
			return nil, err
		}
		certificate = self.Certificate
	}
	logs := "/var/log"
	if cfg.NoNodeLogs {
		logs = ""
	}
	listeners, err := server.Listen(server.Addresses{
		Address: cfg.Address, Port: cfg.Port, ReadOnlyPort: cfg.ReadOnlyPort, HealthzAddress: cfg.HealthzAddress, HealthzPort: cfg.HealthzPort,
	}, k.workers.Healthy)
	if err != nil {
		return nil, err
	}
	s := server.New(server.Config{
		Listener: listeners.HTTPS, ReadOnly: listeners.ReadOnly, Certificate: certificate, ClientCA: k.cfg.Access.ClientCA,
		MinVersion: cfg.TLSMinVersion, CipherSuites: cfg.CipherSuites, Curves: cfg.Curves, StreamIdle: cfg.StreamIdle,
		NoDebug: cfg.NoDebug, NoProfiling: cfg.NoProfiling, NodeLogs: logs, NodeLogQuery: cfg.NodeLogQuery,
		Flags: k.deps.Flags, Level: k.deps.Level, Backend: k.newBackend(), Metrics: &k.metrics.Requests, Log: k.log,
		Wrap: func(h http.Handler) http.Handler { return k.traces.Handler(h, "kubelet") },
		Auth: &server.Auth{
			Kube: k.kube, NodeName: k.cfg.NodeName, Anonymous: k.cfg.Access.Anonymous, AlwaysAllow: k.cfg.Access.AlwaysAllow, NoTokens: k.cfg.Access.NoTokens,
			TokenTTL: k.cfg.Access.TokenTTL, AllowTTL: k.cfg.Access.AllowTTL, DenyTTL: k.cfg.Access.DenyTTL,
		},
	})
	return func(ctx context.Context) error { return listeners.Serve(ctx, s) }, nil
}

// newBackend creates the backend, from which the HTTPS server gets pods, statistics and metrics.
func (k *Kubelet) newBackend() *backend.Backend {
	volumes := stats.NewVolumes(k.pods.registry)
	registry := func(list ...prometheus.Collector) prometheus.Gatherer {
		r := prometheus.NewRegistry()
		r.MustRegister(list...)
		return r
	}
	all := []prometheus.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), k.stateMetrics(), k.metrics, componentmetrics.Build(k.cfg.Gates), volumes,
	}
	all = append(all, k.node.eviction.Metrics()...)
	all = append(all, k.deps.Metrics...)
	if c := k.deps.Clients; c != nil && c.Requests != nil {
		all = append(all, c.Requests)
	}
	if k.cri.Metrics != nil {
		all = append(all, k.cri.Metrics)
	}
	return backend.New(backend.Config{
		Root: k.cfg.Layout.Kubelet, Pods: k.pods.registry, Workers: k.workers, CRI: k.cri, Exec: probe.RuntimeExec(k.cri), LogDir: k.logs().Dir,
		Stats: k.node.stats, Volumes: volumes, Configz: k.configz,
		Metrics: map[string]prometheus.Gatherer{
			"/metrics":          registry(all...),
			"/metrics/resource": registry(k.node.stats.Resource()),
			"/metrics/cadvisor": registry(k.node.stats.Cadvisor(hardware(k.machine, k.pods.registry.Cgroup))),
			"/metrics/probes":   registry(k.pods.prober.Metrics),
		},
	})
}

// stateMetrics returns the collector that computes metrics, such as the number of pods and the volumes in use, from
// the kubelet's current state each time Prometheus reads /metrics.
func (k *Kubelet) stateMetrics() kubeletmetrics.Collector {
	m := kubeletmetrics.Collector{
		NodeName: k.cfg.NodeName, Pods: k.pods.registry, LogDir: k.node.stats.LogDir, VolumePlugin: k.pods.volumes.Plugin, Resources: k.resources,
		IsMirrored: func(static *v1.Pod) bool { return k.pods.mirrors != nil && k.pods.mirrors.Of(static) != nil },
		Plugins:    k.plugins.Sockets, Records: k.pods.puller.Records, PodCertificates: k.pods.certificates, Shutdown: k.node.shutdown, Log: k.log,
	}
	if !k.cfg.Server.CertificateHasMetrics {
		m.Certificate = k.cfg.Server.Certificate
	}
	return m
}

// configz returns the effective configuration as a KubeletConfiguration, for /configz.
func (k *Kubelet) configz() any {
	f := k.cfg.Effective()
	// The cgroup driver of the runtime overrides the configured one.
	f.CgroupDriver = "cgroupfs"
	if k.pods.platform.Systemd() {
		f.CgroupDriver = "systemd"
	}
	return f
}

// hardware returns the machine's properties for the stats endpoints. cgroupOf returns the cgroup of a pod by
// its UID.
func hardware(m nodestatus.Machine, cgroupOf func(types.UID) string) stats.Hardware {
	h := stats.Hardware{
		BootID: m.Boot, MachineID: m.MachineID, SystemUUID: m.SystemUUID, Kernel: m.Kernel, OS: m.OSImage, CPUs: m.CPUs, Cores: m.CPUs, Sockets: 1, MemoryBytes: m.MemoryBytes, SwapBytes: m.SwapBytes,
		CgroupOf: func(uid string) string { return cgroupOf(types.UID(uid)) },
	}
	if top, err := cpumanager.Read("/sys/devices/system/cpu"); err == nil {
		h.Cores, h.Sockets = top.Count()
	}
	return h
}
