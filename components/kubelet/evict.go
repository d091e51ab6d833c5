package kubelet

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"hyperkube/components/kubelet/config"
	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/node/eviction"
	"hyperkube/components/kubelet/node/nodestatus"
	"hyperkube/components/kubelet/node/oomwatch"
	"hyperkube/components/kubelet/node/stats"
	"hyperkube/components/kubelet/pod/podlogs"
	"hyperkube/components/kubelet/pod/pods"
)

// newEviction creates the manager of node-pressure eviction.
func (k *Kubelet) newEviction(events record.EventRecorder) *eviction.Manager {
	thresholds, ignored := eviction.WithoutContainerFs(k.cfg.Eviction.Thresholds())
	if ignored {
		k.log.Warn("containerfs eviction thresholds are ignored because those of nodefs or imagefs apply to writable layers")
	}
	cfg := eviction.Config{
		NodeName: k.cfg.NodeName, Thresholds: thresholds, Disks: k.disks.compare,
		Transition: k.cfg.Eviction.Transition, MaxGrace: k.cfg.Eviction.MaxGrace,
		Measure: k.measure, Pods: k.pods.Active, Critical: pods.IsCritical, Usage: k.usage, Storage: k.storage,
		Evict: k.evict, FreeDisk: k.freeDisk, Changed: k.nodeStatus.Changed, Events: events, Log: k.log,
	}
	if k.cfg.Eviction.NoStorageLimits {
		cfg.Storage = nil
	}
	if k.cgroups == nil {
		return eviction.New(cfg)
	}
	// The same amount of memory must be available within the memory limit of all pods.
	for _, t := range k.cfg.Eviction.Thresholds() {
		if t.Signal == eviction.MemoryAvailable && t.Grace == 0 && k.cfg.Reserved.Enforces(config.EnforcePods) {
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

// pressure returns the pressure conditions of the Node.
func (k *Kubelet) pressure() nodestatus.Pressure {
	return nodestatus.Pressure{
		Memory: k.eviction.Pressure(v1.NodeMemoryPressure), Disk: k.eviction.Pressure(v1.NodeDiskPressure), PID: k.eviction.Pressure(v1.NodePIDPressure),
	}
}

// kubepods returns the cgroup of all pods.
func (k *Kubelet) kubepods() string { return k.cgroupNames().OfClass(v1.PodQOSGuaranteed) }

// cgroupNames returns the names of the cgroups of pods.
func (k *Kubelet) cgroupNames() pods.CgroupNames {
	return pods.CgroupNames{Root: k.cfg.Layout.CgroupRoot, Platform: k.platform}
}

// measure returns the observed value of each eviction signal.
func (k *Kubelet) measure(ctx context.Context) (map[eviction.Signal]eviction.Observation, error) {
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
	disk := func(path string, bytes, inodes eviction.Signal) error {
		var fs unix.Statfs_t
		if err := unix.Statfs(path, &fs); err != nil {
			return fmt.Errorf("getting file system statistics of %s: %w", path, err)
		}
		out[bytes] = eviction.Observation{Available: int64(fs.Bavail) * fs.Bsize, Capacity: int64(fs.Blocks) * fs.Bsize}
		// Some file systems create inodes on demand and report 0.
		if fs.Files > 0 {
			out[inodes] = eviction.Observation{Available: int64(fs.Ffree), Capacity: int64(fs.Files)}
		}
		return nil
	}
	images, _, err := k.disks.paths(ctx)
	if err == nil {
		err = disk(images, eviction.ImageFsAvailable, eviction.ImageFsInodesFree)
	}
	err = errors.Join(err, disk(k.cfg.Layout.Kubelet, eviction.NodeFsAvailable, eviction.NodeFsInodesFree))
	if k.cgroups != nil && k.cfg.Reserved.Enforces(config.EnforcePods) {
		if s, err := k.cgroups.Stats(k.kubepods()); err == nil && s.MemoryLimit > 0 {
			out[eviction.AllocatableMemoryAvailable] = eviction.Observation{
				Available: int64(s.MemoryLimit) - int64(s.MemoryWorkingSet), Capacity: int64(s.MemoryLimit),
			}
		}
	}
	return out, err
}

// usage returns the resource usage of all pods.
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
	files := func(f *statsv1alpha1.FsStats) eviction.Files {
		if f == nil {
			return eviction.Files{}
		}
		return eviction.Files{Bytes: number(f.UsedBytes), Inodes: number(f.InodesUsed)}
	}
	out := map[types.UID]*eviction.Candidate{}
	for i := range summary.Pods {
		p := &summary.Pods[i]
		c := &eviction.Candidate{Measured: true}
		if p.Memory != nil {
			c.Memory = number(p.Memory.WorkingSetBytes)
		}
		c.Volumes = files(p.EphemeralStorage)
		if p.ProcessStats != nil {
			c.Processes = number(p.ProcessStats.ProcessCount)
		}
		for j := range p.Containers {
			one := &p.Containers[j]
			u := eviction.Usage{Name: one.Name}
			if one.Memory != nil {
				u.Memory = number(one.Memory.WorkingSetBytes)
			}
			u.Layer, u.Logs = files(one.Rootfs), files(one.Logs)
			// EphemeralStorage includes the layers and logs.
			c.Volumes.Bytes -= u.Layer.Bytes + u.Logs.Bytes
			c.Volumes.Inodes -= u.Layer.Inodes + u.Logs.Inodes
			c.Containers = append(c.Containers, u)
		}
		out[types.UID(p.PodRef.UID)] = c
	}
	return out, nil
}

// storage returns the local storage usage of pods.
func (k *Kubelet) storage(ctx context.Context, list []*v1.Pod) (map[types.UID]eviction.Storage, error) {
	disks, err := k.disks.compare(ctx)
	if err != nil {
		return nil, err
	}
	out := map[types.UID]eviction.Storage{}
	for _, pod := range list {
		s := eviction.Storage{Containers: map[string]int64{}, EmptyDirs: map[string]int64{}, Rest: k.stats.OtherFiles(string(pod.UID))}
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
			return nil, fmt.Errorf("listing container stats: %w", err)
		}
		for _, c := range cri.Running(resp.Stats) {
			used := int64(c.GetWritableLayer().GetUsedBytes().GetValue())
			if disks.Images {
				s.Rest += used
				continue
			}
			s.Containers[c.GetAttributes().GetMetadata().GetName()] += used
		}
		for name := range containers(pod) {
			used, _ := stats.DiskUsage(k.stats.LogDir(pod.Namespace, pod.Name, string(pod.UID), name))
			s.Containers[name] += int64(used)
		}
		out[pod.UID] = s
	}
	return out, nil
}

// containers iterates over the names of all containers of a pod.
func containers(pod *v1.Pod) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range list {
				if !yield(list[i].Name) {
					return
				}
			}
		}
		for i := range pod.Spec.EphemeralContainers {
			if !yield(pod.Spec.EphemeralContainers[i].Name) {
				return
			}
		}
	}
}

// evict terminates a pod with the reason Evicted.
func (k *Kubelet) evict(pod *v1.Pod, grace int64, message string, disrupted bool) <-chan struct{} {
	verdict := &pods.Verdict{Reason: "Evicted", Message: message, Grace: &grace, Discard: true}
	if disrupted {
		verdict.Conditions = []v1.PodCondition{{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet, Message: message,
		}}
	}
	k.pods.Terminate(pod.UID, verdict)
	return k.pods.Emptied(pod.UID)
}

// discardTimeout is the timeout for the removal of the containers of terminated pods.
const discardTimeout = 30 * time.Second

// freeDisk removes exited containers, all containers of terminated pods, and unused images.
func (k *Kubelet) freeDisk(ctx context.Context, what eviction.Reclaim) error {
	var err error
	if what.Containers {
		_, err = k.garbage.Collect(ctx, podlogs.Rotation{MaxSize: k.cfg.Logs.MaxSize, MaxFiles: k.cfg.Logs.MaxFiles})
		ctx, cancel := context.WithTimeout(ctx, discardTimeout)
		err = errors.Join(err, k.pods.Discard(ctx))
		cancel()
	}
	if what.Images {
		err = errors.Join(err, k.collector.Collect(ctx, true))
	}
	return err
}

// watchOOM emits events for processes that the kernel kills because memory is exhausted. There are
// no events if the kernel's log is not readable.
func (k *Kubelet) watchOOM(ctx context.Context) error {
	events := k.events
	node := &v1.ObjectReference{Kind: "Node", Name: k.cfg.NodeName, UID: types.UID(k.cfg.NodeName)}
	err := oomwatch.Watch(ctx, oomwatch.Log, func(v oomwatch.Victim) {
		events.Event(node, v1.EventTypeWarning, "SystemOOM", v.Message())
	})
	if err != nil {
		k.log.Warn("watching for OOM kills failed", "err", err)
	}
	return nil
}
