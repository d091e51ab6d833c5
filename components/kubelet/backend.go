package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/node/stats"
	"hyperkube/components/kubelet/pod/pods"
	"hyperkube/components/kubelet/pod/podstate"
	"hyperkube/components/kubelet/resources/cpumanager"
	"hyperkube/components/kubelet/server"
	"hyperkube/internal/serving/componentmetrics"
	"hyperkube/internal/serving/plainhttp"
)

// backend implements the data source of the kubelet's HTTPS server.
type backend struct {
	k       *Kubelet
	stats   *stats.Provider
	volumes *stats.Volumes
	metrics map[string]prometheus.Gatherer
}

func (k *Kubelet) newBackend() *backend {
	b := &backend{k: k, stats: k.stats, metrics: map[string]prometheus.Gatherer{}}
	b.volumes = stats.NewVolumes(k.pods)
	registry := func(list ...prometheus.Collector) prometheus.Gatherer {
		r := prometheus.NewRegistry()
		r.MustRegister(list...)
		return r
	}
	own := []prometheus.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), kubeletMetrics{k}, k.metrics, componentmetrics.Build(k.cfg.Gates), b.volumes,
	}
	own = append(own, k.eviction.Metrics()...)
	own = append(own, k.deps.Metrics...)
	if c := k.deps.Clients; c != nil && c.Requests != nil {
		own = append(own, c.Requests)
	}
	if k.cri.Metrics != nil {
		own = append(own, k.cri.Metrics)
	}
	b.metrics["/metrics"] = registry(own...)
	b.metrics["/metrics/resource"] = registry(b.stats.Resource())
	b.metrics["/metrics/cadvisor"] = registry(b.stats.Cadvisor(k.hardware()))
	b.metrics["/metrics/probes"] = registry(k.host.Prober.Metrics)
	return b
}

// hardware returns the machine's properties for the stats endpoints.
func (k *Kubelet) hardware() stats.Hardware {
	m := k.machine
	h := stats.Hardware{
		BootID: m.Boot, MachineID: m.MachineID, SystemUUID: m.SystemUUID, Kernel: m.Kernel, OS: m.OSImage, CPUs: m.CPUs, Cores: m.CPUs, Sockets: 1, MemoryBytes: m.MemoryBytes, SwapBytes: m.SwapBytes,
		CgroupOf: func(uid string) string { return k.pods.Cgroup(types.UID(uid)) },
	}
	if top, err := cpumanager.Read("/sys/devices/system/cpu"); err == nil {
		h.Cores, h.Sockets = top.Count()
	}
	return h
}

// server opens the listeners and returns the function that serves them.
func (k *Kubelet) server() (func(context.Context) error, error) {
	certificate := k.cfg.Server.Certificate
	if certificate == nil {
		self := server.NewSelfSigned(k.cfg.NodeName, k.ips)
		if _, err := self.Certificate(); err != nil {
			return nil, err
		}
		certificate = self.Certificate
	}
	l, err := net.Listen("tcp", net.JoinHostPort(k.cfg.Server.Address, strconv.Itoa(k.cfg.Server.Port)))
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	b := k.newBackend()
	logs := "/var/log"
	if k.cfg.Server.NoNodeLogs {
		logs = ""
	}
	var readOnly net.Listener
	if k.cfg.Server.ReadOnlyPort > 0 {
		if readOnly, err = net.Listen("tcp", net.JoinHostPort(k.cfg.Server.Address, strconv.Itoa(k.cfg.Server.ReadOnlyPort))); err != nil {
			l.Close()
			return nil, fmt.Errorf("listening on the read-only port: %w", err)
		}
	}
	s := server.New(server.Config{
		ReadOnly: readOnly,
		NoDebug:  k.cfg.Server.NoDebug, NoProfiling: k.cfg.Server.NoProfiling, MinVersion: k.cfg.Server.TLSMinVersion, CipherSuites: k.cfg.Server.CipherSuites,
		Curves: k.cfg.Server.Curves, StreamIdle: k.cfg.Server.StreamIdle, Flags: k.deps.Flags, Level: k.deps.Level,
		Listener: l, Certificate: certificate, ClientCA: k.cfg.Access.ClientCA, NodeLogs: logs, NodeLogQuery: k.cfg.Server.NodeLogQuery, Backend: b, Metrics: k.metrics, Log: k.log,
		Wrap: func(h http.Handler) http.Handler { return k.traces.Handler(h) },
		Auth: &server.Auth{
			Kube: k.kube, NodeName: k.cfg.NodeName, Anonymous: k.cfg.Access.Anonymous, AlwaysAllow: k.cfg.Access.AlwaysAllow, NoTokens: k.cfg.Access.NoTokens,
			TokenTTL: k.cfg.Access.TokenTTL, AllowTTL: k.cfg.Access.AllowTTL, DenyTTL: k.cfg.Access.DenyTTL,
		},
	})
	if k.cfg.Server.HealthzPort < 0 {
		return s.Serve, nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", server.Healthz(b.Healthy))
	health, err := plainhttp.Serve(net.JoinHostPort(k.cfg.Server.HealthzAddress, strconv.Itoa(k.cfg.Server.HealthzPort)), mux)
	if err != nil {
		l.Close()
		if readOnly != nil {
			readOnly.Close()
		}
		return nil, fmt.Errorf("starting the health check server: %w", err)
	}
	return func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, health.Close)
		defer stop()
		defer health.Close()
		return s.Serve(ctx)
	}, nil
}

// notFound wraps err so that the server responds with 404 if the pod does not exist.
func notFound(err error) error {
	if errors.Is(err, pods.ErrNoPod) {
		return fmt.Errorf("%w: %w", err, server.ErrNotFound)
	}
	return err
}

func (b *backend) Pods() []*v1.Pod { return b.k.pods.Pods() }

func (b *backend) RunningPods(ctx context.Context) ([]*v1.Pod, error) {
	boxes, err := b.k.cri.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{
		Filter: &runtimeapi.PodSandboxFilter{State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY}},
	})
	if err != nil {
		return nil, err
	}
	containers, err := b.k.cri.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}},
	})
	if err != nil {
		return nil, err
	}
	var out []*v1.Pod
	for _, box := range boxes.Items {
		pod := &v1.Pod{}
		pod.Name, pod.Namespace, pod.UID = box.GetMetadata().GetName(), box.GetMetadata().GetNamespace(), types.UID(box.GetMetadata().GetUid())
		for _, c := range containers.Containers {
			if c.PodSandboxId == box.Id {
				pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Name: c.GetMetadata().GetName(), Image: c.GetImage().GetImage()})
			}
		}
		out = append(out, pod)
	}
	return out, nil
}

func (b *backend) Container(namespace, pod string, uid types.UID, container string, previous bool) (*v1.Pod, podstate.Container, error) {
	p, c, err := b.k.pods.Container(namespace, pod, uid, container, previous)
	if err == nil && c.LogPath != "" && !filepath.IsAbs(c.LogPath) {
		c.LogPath = filepath.Join(b.k.host.Logs.Dir(p), c.LogPath)
	}
	return p, c, notFound(err)
}

func (b *backend) Exited(ctx context.Context, id string) <-chan struct{} {
	return b.k.manager.Exited(ctx, id)
}

func (b *backend) CancelExited(id string, ch <-chan struct{}) { b.k.manager.CancelExited(id, ch) }

func (b *backend) Exec(ctx context.Context, id string, o server.StreamOptions) (*url.URL, error) {
	resp, err := b.k.cri.Runtime.Exec(ctx, &runtimeapi.ExecRequest{
		ContainerId: id, Cmd: o.Command, Tty: o.TTY, Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr,
	})
	if err != nil {
		return nil, errors.New(cri.Message(err))
	}
	return url.Parse(resp.Url)
}

func (b *backend) Checkpoint(ctx context.Context, id, file string, timeout int64) (string, error) {
	dir := filepath.Join(b.k.cfg.Layout.Kubelet, "checkpoints")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("creating the checkpoint directory: %w", err)
	}
	path := filepath.Join(dir, file)
	_, err := b.k.cri.Runtime.CheckpointContainer(ctx, &runtimeapi.CheckpointContainerRequest{ContainerId: id, Location: path, Timeout: timeout})
	return path, err
}

func (b *backend) Attach(ctx context.Context, id string, o server.StreamOptions) (*url.URL, error) {
	resp, err := b.k.cri.Runtime.Attach(ctx, &runtimeapi.AttachRequest{
		ContainerId: id, Tty: o.TTY, Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr,
	})
	if err != nil {
		return nil, errors.New(cri.Message(err))
	}
	return url.Parse(resp.Url)
}

func (b *backend) PortForward(ctx context.Context, namespace, pod string, uid types.UID, ports []int32) (*url.URL, error) {
	box, err := b.k.pods.Sandbox(namespace, pod, uid)
	if err != nil {
		return nil, notFound(err)
	}
	resp, err := b.k.cri.Runtime.PortForward(ctx, &runtimeapi.PortForwardRequest{PodSandboxId: box, Port: ports})
	if err != nil {
		return nil, errors.New(cri.Message(err))
	}
	return url.Parse(resp.Url)
}

func (b *backend) Run(ctx context.Context, id string, cmd []string) ([]byte, error) {
	code, out, err := b.k.execSync(ctx, id, cmd, 0)
	if err != nil {
		return nil, err
	}
	if code != 0 {
		return nil, fmt.Errorf("command '%v' exited with %d: %s", cmd, code, out)
	}
	return out, nil
}

func (b *backend) Summary(ctx context.Context) (*statsv1alpha1.Summary, error) {
	out, err := b.stats.Summary(ctx)
	if err != nil {
		return nil, err
	}
	if err := b.stats.SetImageUsage(ctx, out); err != nil {
		return nil, err
	}
	volumes := b.volumes.All(ctx)
	for i := range out.Pods {
		out.Pods[i].VolumeStats = volumes[types.UID(out.Pods[i].PodRef.UID)]
	}
	return out, nil
}

// Configz returns the effective configuration as a KubeletConfiguration.
func (b *backend) Configz() any {
	f := b.k.cfg.Effective()
	// The cgroup driver of the runtime overrides the configured one.
	f.CgroupDriver = "cgroupfs"
	if b.k.platform.Systemd() {
		f.CgroupDriver = "systemd"
	}
	return f
}

func (b *backend) Healthy() error { return b.k.manager.Healthy() }

func (b *backend) Metrics(which string) prometheus.Gatherer { return b.metrics[which] }
