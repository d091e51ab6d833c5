package pods

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/pod/dnsconf"
	"hyperkube/components/kubelet/pod/env"
	"hyperkube/components/kubelet/pod/objectcache"
	"hyperkube/components/kubelet/pod/podstate"
	"hyperkube/components/kubelet/pod/volume"
	"hyperkube/internal/pod/podutil"
)

// translator translates pods and containers to the configurations of the container runtime interface (CRI).
type translator struct {
	*podEvents
	cri       *cri.Client
	kube      kubernetes.Interface // may be nil
	objects   *objectcache.Store
	volumes   *volume.Set
	resources ResourceManager // may be nil
	node      Node
	security  Security
	logs      Logs
	cgroups   CgroupNames
	limits    *limiter
}

// sandboxConfig returns the CRI configuration of the pod's sandbox with the attempt number. Problems with the
// pod's DNS configuration emit events. An error means that the sandbox cannot be created as the pod requires.
func (t *translator) sandboxConfig(pod *v1.Pod, attempt uint32) (*runtimeapi.PodSandboxConfig, error) {
	warn := func(reason, message string) { t.event(pod, "", true, reason, message) }
	dns, err := t.node.DNS.For(pod, warn)
	if err != nil {
		return nil, err
	}
	security, err := t.sandboxSecurity(pod)
	if err != nil {
		return nil, err
	}
	cfg := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: attempt},
		LogDirectory: t.logs.Dir(pod),
		DnsConfig:    dns,
		Labels:       map[string]string{},
		Annotations:  map[string]string{},
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent:    t.cgroups.parent(pod),
			SecurityContext: security,
			Sysctls:         map[string]string{},
		},
	}
	maps.Copy(cfg.Labels, pod.Labels)
	cfg.Labels[cri.LabelPodName], cfg.Labels[cri.LabelPodNamespace], cfg.Labels[cri.LabelPodUID] = pod.Name, pod.Namespace, string(pod.UID)
	maps.Copy(cfg.Annotations, pod.Annotations)
	if !pod.Spec.HostNetwork || pod.Spec.HostnameOverride != nil {
		host, err := t.hostname(pod)
		if err != nil {
			return nil, err
		}
		cfg.Hostname = host
	}
	if !pod.Spec.HostNetwork {
		for _, c := range portOwners(pod) {
			for _, p := range c.Ports {
				cfg.PortMappings = append(cfg.PortMappings, &runtimeapi.PortMapping{
					Protocol: protocol(p.Protocol), ContainerPort: p.ContainerPort, HostPort: p.HostPort, HostIp: p.HostIP,
				})
			}
		}
	}
	for name, value := range t.security.Sysctls {
		if !hostNamespaced(pod, name) {
			cfg.Linux.Sysctls[name] = value
		}
	}
	if sc := pod.Spec.SecurityContext; sc != nil {
		for _, s := range sc.Sysctls {
			cfg.Linux.Sysctls[s.Name] = s.Value
		}
	}
	cfg.Linux.Resources, cfg.Linux.Overhead = t.limits.sandboxResources(pod)
	return cfg, nil
}

// sandboxResources returns, for the request that creates a sandbox, the total resources of the pod's containers and
// the overhead of its RuntimeClass. overhead is nil for a pod without overhead.
func (l *limiter) sandboxResources(pod *v1.Pod) (own, overhead *runtimeapi.LinuxContainerResources) {
	options := resource.PodResourcesOptions{ExcludeOverhead: true}
	own = l.linuxResources(resource.PodRequests(pod, options), resource.PodLimits(pod, options))
	if len(pod.Spec.Overhead) > 0 {
		overhead = l.linuxResources(pod.Spec.Overhead, pod.Spec.Overhead)
	}
	return own, overhead
}

// hostNamespaced reports whether a sysctl belongs to a namespace that the pod shares with the node. Sysctls
// other than those of the network and user namespaces are assumed to belong to the IPC namespace.
func hostNamespaced(pod *v1.Pod, sysctl string) bool {
	switch name := strings.ReplaceAll(sysctl, "/", "."); {
	case strings.HasPrefix(name, "net."), name == "kernel.domainname":
		return pod.Spec.HostNetwork
	case strings.HasPrefix(name, "user."):
		return pod.Spec.HostUsers == nil || *pod.Spec.HostUsers
	}
	return pod.Spec.HostIPC
}

// portOwners returns the containers whose host ports the runtime maps: the sidecars and the app containers.
func portOwners(pod *v1.Pod) []*v1.Container {
	var out []*v1.Container
	for i := range pod.Spec.InitContainers {
		if podutil.Sidecar(&pod.Spec.InitContainers[i]) {
			out = append(out, &pod.Spec.InitContainers[i])
		}
	}
	for i := range pod.Spec.Containers {
		out = append(out, &pod.Spec.Containers[i])
	}
	return out
}

func protocol(p v1.Protocol) runtimeapi.Protocol {
	switch p {
	case v1.ProtocolUDP:
		return runtimeapi.Protocol_UDP
	case v1.ProtocolSCTP:
		return runtimeapi.Protocol_SCTP
	}
	return runtimeapi.Protocol_TCP
}

// hostname returns the pod's host name: the fully qualified one with setHostnameAsFQDN. It returns an error
// if that is longer than the kernel permits.
func (t *translator) hostname(pod *v1.Pod) (string, error) {
	host, domain, err := dnsconf.Hostname(pod, t.node.DNS.ClusterDomain)
	if err != nil {
		return "", err
	}
	if domain != "" && ptr.Deref(pod.Spec.SetHostnameAsFQDN, false) {
		full := host + "." + domain
		if len(full) > 64 {
			return "", fmt.Errorf("failed to construct FQDN from pod hostname and cluster domain, FQDN %s is too long (64 characters is the max, %d characters requested)", full, len(full))
		}
		return full, nil
	}
	return host, nil
}

// linuxResources converts requests and limits to the CRI's CPU and memory resources. There is no CPU quota if
// CPU limits are not enforced.
func (l *limiter) linuxResources(requests, limits v1.ResourceList) *runtimeapi.LinuxContainerResources {
	period := l.CPUQuotaPeriod.Microseconds()
	r := &runtimeapi.LinuxContainerResources{
		CpuPeriod:          period,
		CpuShares:          shares(cpuRequest(requests, limits)),
		MemoryLimitInBytes: limits.Memory().Value(),
	}
	if l.CPUQuota {
		r.CpuQuota = quota(limits.Cpu().MilliValue(), period)
	}
	return r
}

// cpuRequest returns the CPU request in millicores. If only a limit is set, the request defaults to
// the limit.
func cpuRequest(requests, limits v1.ResourceList) int64 {
	if _, ok := requests[v1.ResourceCPU]; ok {
		return requests.Cpu().MilliValue()
	}
	return limits.Cpu().MilliValue()
}

// containerResources returns the CRI resources of a container: CPU, memory and its protection, swap, huge pages
// and the OOM score. A container with exclusive CPUs has no CPU quota.
func (l *limiter) containerResources(pod *v1.Pod, c *v1.Container) *runtimeapi.LinuxContainerResources {
	limits := limitsOf(pod, c)
	r := l.linuxResources(c.Resources.Requests, limits)
	r.OomScoreAdj = oomScore(pod, c, l.MemoryCapacity)
	if l.HasExclusiveCPUs != nil && l.HasExclusiveCPUs(pod.UID, c.Name) {
		r.CpuQuota = -1
	}
	if l.WholeOOMKill {
		r.Unified = map[string]string{"memory.oom.group": "1"}
	}
	unified := func(file string, value int64) {
		if r.Unified == nil {
			r.Unified = map[string]string{}
		}
		r.Unified[file] = strconv.FormatInt(value, 10)
	}
	for file, value := range l.protection(QOS(pod), c.Resources.Requests.Memory().Value()) {
		if r.Unified == nil {
			r.Unified = map[string]string{}
		}
		r.Unified[file] = value
	}
	if high := l.containerMemoryHigh(pod, c); high > 0 {
		unified(memoryHigh, high)
	}
	if swap, ok := l.swapLimit(pod, c); ok {
		unified(swapFile, swap)
	}
	for name, q := range limits {
		if size, ok := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix); ok {
			r.HugepageLimits = append(r.HugepageLimits, &runtimeapi.HugepageLimit{PageSize: pageSize(size), Limit: uint64(q.Value())})
		}
	}
	return r
}

// pageSize converts a page size such as "2Mi" to the kernel's format, "2MB".
func pageSize(s string) string {
	if trimmed, ok := strings.CutSuffix(s, "i"); ok {
		return trimmed + "B"
	}
	return s
}

// containerInput is the input of containerConfig in addition to the pod.
type containerInput struct {
	container *v1.Container
	attempt   uint32
	image     string // the runtime's image reference
	volumes   map[string]volume.Result
	// ips are the pod's IP addresses, the primary one first.
	ips []string
	// target is the ID of the container whose process namespace an ephemeral container shares.
	target string
}

// containerConfig returns the CRI configuration of a container. It creates files that the container mounts,
// and allocates devices and CPUs to the container. If it returns an error, the container waits with the
// reason CreateContainerConfigError and the creation is retried.
func (t *translator) containerConfig(ctx context.Context, pod *v1.Pod, in containerInput) (*runtimeapi.ContainerConfig, error) {
	c := in.container
	image, err := t.imageStatus(ctx, in.image)
	if err != nil {
		return nil, err
	}
	if err := verifyNonRoot(pod, c, image); err != nil {
		return nil, err
	}
	vars, err := t.environment(ctx, pod, c, in)
	if err != nil {
		return nil, err
	}
	values := make(map[string]string, len(vars))
	cfg := &runtimeapi.ContainerConfig{
		Metadata:   &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: in.attempt},
		Image:      &runtimeapi.ImageSpec{Image: in.image, UserSpecifiedImage: c.Image},
		WorkingDir: c.WorkingDir,
		Labels: map[string]string{
			cri.LabelPodName: pod.Name, cri.LabelPodNamespace: pod.Namespace,
			cri.LabelPodUID: string(pod.UID), cri.LabelContainerName: c.Name,
		},
		Annotations: map[string]string{
			cri.AnnotationHash:                     podstate.Hash(c),
			cri.AnnotationRestartCount:             strconv.Itoa(int(in.attempt)),
			cri.AnnotationTerminationMessagePath:   c.TerminationMessagePath,
			cri.AnnotationTerminationMessagePolicy: string(c.TerminationMessagePolicy),
		},
		LogPath:   filepath.Join(c.Name, strconv.Itoa(int(in.attempt))+".log"),
		Stdin:     c.Stdin,
		StdinOnce: c.StdinOnce,
		Tty:       c.TTY,
	}
	for _, v := range vars {
		values[v.Name] = v.Value
		cfg.Envs = append(cfg.Envs, &runtimeapi.KeyValue{Key: v.Name, Value: []byte(v.Value)})
	}
	cfg.Command = env.ExpandMap(c.Command, values)
	cfg.Args = env.ExpandMap(c.Args, values)
	if pod.Spec.TerminationGracePeriodSeconds != nil {
		cfg.Annotations[cri.AnnotationGracePeriod] = strconv.FormatInt(*pod.Spec.TerminationGracePeriodSeconds, 10)
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		if raw, err := json.Marshal(c.Lifecycle.PreStop); err == nil {
			cfg.Annotations[cri.AnnotationPreStop] = string(raw)
		}
	}
	if len(c.Ports) > 0 {
		if raw, err := json.Marshal(c.Ports); err == nil {
			cfg.Annotations[cri.AnnotationPorts] = string(raw)
		}
	}
	if c.Lifecycle != nil && c.Lifecycle.StopSignal != nil {
		cfg.StopSignal = runtimeapi.Signal(runtimeapi.Signal_value["SIGNAL_"+string(*c.Lifecycle.StopSignal)])
	}
	if cfg.Mounts, err = t.mounts(pod, c, in, values); err != nil {
		return nil, err
	}
	if cfg.Devices, err = volumeDevices(c, in.volumes); err != nil {
		return nil, err
	}
	security, err := t.containerSecurity(pod, c, image, in.target)
	if err != nil {
		return nil, err
	}
	cfg.Linux = &runtimeapi.LinuxContainerConfig{
		Resources:       t.limits.containerResources(pod, c),
		SecurityContext: security,
	}
	if t.resources != nil {
		if err := t.resources.PrepareContainer(ctx, pod, c, cfg); err != nil {
			return nil, err
		}
	}
	return cfg, nil
}

// imageStatus returns the image with the reference ref in the runtime. It returns an error if the image does
// not exist any more.
func (t *translator) imageStatus(ctx context.Context, ref string) (*runtimeapi.Image, error) {
	resp, err := t.cri.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
	if err != nil {
		return nil, fmt.Errorf("getting image status: %s", cri.Message(err))
	}
	if resp.Image == nil {
		return nil, fmt.Errorf("image %q not found", ref)
	}
	return resp.Image, nil
}
