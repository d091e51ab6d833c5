package kubelet

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/eviction"
	"hyperkube/components/kubelet/nodestatus"
	"hyperkube/components/kubelet/oomwatch"
	"hyperkube/components/kubelet/podlogs"
	"hyperkube/components/kubelet/pods"
	"hyperkube/components/kubelet/stats"
)

// newEviction makes what ends pods when the node runs short.
func (k *Kubelet) newEviction(events record.EventRecorder) *eviction.Manager {
	cfg := eviction.Config{
		NodeName: k.cfg.NodeName, Thresholds: slices.Clone(k.cfg.thresholds),
		Transition: k.cfg.EvictionTransition, MaxGrace: k.cfg.EvictionMaxGrace,
		Measure: k.measure, Pods: k.manager.Active, Critical: critical, Usage: k.usage, Storage: k.storage,
		Evict: k.evict, FreeDisk: k.freeDisk, Changed: k.keeper.Changed, Events: events, Log: k.log,
	}
	if k.cfg.NoStorageLimits {
		cfg.Storage = nil
	}
	if k.cgroups == nil {
		return eviction.New(cfg)
	}
	// All pods together have a limit of their own, and the same is to be left
	// of that.
	for _, t := range k.cfg.thresholds {
		if t.Signal == eviction.MemoryAvailable && t.Grace == 0 && k.cfg.enforces(enforcePods) {
			t.Signal = eviction.AllocatableMemoryAvailable
			cfg.Thresholds = append(cfg.Thresholds, t)
		}
	}
	root := ""
	if !k.cgroups.Unified() {
		root = k.cgroups.Dir("memory", "/")
	}
	cfg.Watch = eviction.NewMemoryWatch(root)
	return eviction.New(cfg)
}

// pressure is what the Node tells of it.
func (k *Kubelet) pressure() nodestatus.Pressure {
	return nodestatus.Pressure{
		Memory: k.eviction.Pressure(v1.NodeMemoryPressure), Disk: k.eviction.Pressure(v1.NodeDiskPressure), PID: k.eviction.Pressure(v1.NodePIDPressure),
	}
}

// kubepods is the cgroup of all pods.
func (k *Kubelet) kubepods() string {
	name := "kubepods"
	if k.host.Systemd {
		name = "kubepods.slice"
	}
	return filepath.Join("/", k.cfg.Layout.CgroupRoot, name)
}

// measure tells what is left of everything.
func (k *Kubelet) measure(context.Context) (map[eviction.Signal]eviction.Observation, error) {
	info, err := nodestatus.MemInfo()
	if err != nil {
		return nil, err
	}
	out := map[eviction.Signal]eviction.Observation{
		eviction.MemoryAvailable: {Available: info["MemAvailable"], Capacity: info["MemTotal"]},
	}
	if running, most, err := stats.Processes(); err == nil {
		out[eviction.PIDAvailable] = eviction.Observation{Available: most - running, Capacity: most}
	}
	disk := func(path string, bytes, inodes []eviction.Signal) error {
		var fs unix.Statfs_t
		if err := unix.Statfs(path, &fs); err != nil {
			return fmt.Errorf("measuring the disk of %s: %w", path, err)
		}
		for _, s := range bytes {
			out[s] = eviction.Observation{Available: int64(fs.Bavail) * fs.Bsize, Capacity: int64(fs.Blocks) * fs.Bsize}
		}
		// Some file systems make inodes as they go.
		for _, s := range inodes {
			if fs.Files > 0 {
				out[s] = eviction.Observation{Available: int64(fs.Ffree), Capacity: int64(fs.Files)}
			}
		}
		return nil
	}
	err = errors.Join(
		disk(k.cfg.Layout.Kubelet, []eviction.Signal{eviction.NodeFsAvailable}, []eviction.Signal{eviction.NodeFsInodesFree}),
		disk(k.cfg.Layout.Data, []eviction.Signal{eviction.ImageFsAvailable, eviction.ContainerFsAvailable},
			[]eviction.Signal{eviction.ImageFsInodesFree, eviction.ContainerFsInodesFree}),
	)
	if k.cgroups != nil && k.cfg.enforces(enforcePods) {
		if s, err := k.cgroups.Stats(k.kubepods()); err == nil && s.MemoryLimit > 0 {
			out[eviction.AllocatableMemoryAvailable] = eviction.Observation{
				Available: int64(s.MemoryLimit) - int64(s.MemoryWorkingSet), Capacity: int64(s.MemoryLimit),
			}
		}
	}
	return out, err
}

// usage measures all pods.
func (k *Kubelet) usage(ctx context.Context) (map[types.UID]*eviction.Candidate, error) {
	summary, err := k.stats.Summary(ctx)
	if err != nil {
		return nil, err
	}
	number := func(p *uint64) int64 {
		if p == nil {
			return 0
		}
		return int64(*p)
	}
	written := func(list ...*statsv1alpha1.FsStats) (bytes, inodes int64) {
		for _, f := range list {
			if f != nil {
				bytes, inodes = bytes+number(f.UsedBytes), inodes+number(f.InodesUsed)
			}
		}
		return bytes, inodes
	}
	out := map[types.UID]*eviction.Candidate{}
	for i := range summary.Pods {
		p := &summary.Pods[i]
		c := &eviction.Candidate{Measured: true}
		if p.Memory != nil {
			c.Memory = number(p.Memory.WorkingSetBytes)
		}
		c.Disk, c.Inodes = written(p.EphemeralStorage)
		if p.ProcessStats != nil {
			c.Processes = number(p.ProcessStats.ProcessCount)
		}
		for j := range p.Containers {
			one := &p.Containers[j]
			u := eviction.Usage{Name: one.Name}
			if one.Memory != nil {
				u.Memory = number(one.Memory.WorkingSetBytes)
			}
			u.Disk, u.Inodes = written(one.Rootfs, one.Logs)
			c.Containers = append(c.Containers, u)
		}
		out[types.UID(p.PodRef.UID)] = c
	}
	return out, nil
}

// storage measures what pods have on the disk.
func (k *Kubelet) storage(ctx context.Context, list []*v1.Pod) (map[types.UID]eviction.Storage, error) {
	out := map[types.UID]eviction.Storage{}
	for _, pod := range list {
		s := eviction.Storage{Containers: map[string]int64{}, EmptyDirs: map[string]int64{}}
		for i := range pod.Spec.Volumes {
			if pod.Spec.Volumes[i].EmptyDir != nil {
				name := pod.Spec.Volumes[i].Name
				used, _ := stats.DiskUsage(k.stats.EmptyDir(string(pod.UID), name))
				s.EmptyDirs[name] = int64(used)
			}
		}
		resp, err := k.cri.Runtime.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{
			Filter: &runtimeapi.ContainerStatsFilter{LabelSelector: map[string]string{cri.LabelPodUID: string(pod.UID)}},
		})
		if err != nil {
			return nil, fmt.Errorf("measuring containers: %w", err)
		}
		for _, c := range resp.Stats {
			s.Containers[c.GetAttributes().GetMetadata().GetName()] += int64(c.GetWritableLayer().GetUsedBytes().GetValue())
		}
		for i := range pod.Spec.Containers {
			name := pod.Spec.Containers[i].Name
			used, _ := stats.DiskUsage(k.stats.LogDir(pod.Namespace, pod.Name, string(pod.UID), name))
			s.Containers[name] += int64(used)
		}
		out[pod.UID] = s
	}
	return out, nil
}

// evict ends a pod.
func (k *Kubelet) evict(pod *v1.Pod, grace int64, message string) <-chan struct{} {
	k.manager.End(pod.UID, &pods.Verdict{
		Reason: "Evicted", Message: message, Grace: &grace,
		Conditions: []v1.PodCondition{{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet, Message: message,
		}},
	})
	return k.manager.Cleaned(pod.UID)
}

// freeDisk removes dead containers and unused images.
func (k *Kubelet) freeDisk(ctx context.Context) error {
	_, err := k.manager.Tidy(ctx, podlogs.Rotation{MaxSize: k.cfg.LogMaxSize, MaxFiles: k.cfg.LogMaxFiles})
	return errors.Join(err, k.collector.Collect(ctx, true))
}

func critical(pod *v1.Pod) bool {
	return pods.IsStatic(pod) || pods.IsMirror(pod) || (pod.Spec.Priority != nil && *pod.Spec.Priority >= 2000000000)
}

// followOOM tells of processes that the kernel ends for want of memory anywhere. A
// machine that keeps its log to itself has no such events.
func (k *Kubelet) followOOM(ctx context.Context) error {
	events := k.events.NewRecorder(scheme.Scheme, v1.EventSource{Component: "kubelet", Host: k.cfg.NodeName})
	node := &v1.ObjectReference{Kind: "Node", Name: k.cfg.NodeName, UID: types.UID(k.cfg.NodeName)}
	err := oomwatch.Watch(ctx, oomwatch.Log, func(v oomwatch.Victim) {
		events.Event(node, v1.EventTypeWarning, "SystemOOM", v.Message())
	})
	if err != nil {
		k.log.Warn("what the kernel ends for want of memory is not told of", "error", err)
	}
	return nil
}
