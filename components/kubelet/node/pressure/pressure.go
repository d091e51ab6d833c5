// Package pressure connects node-pressure eviction to the node: it measures the eviction signals and the usage
// of pods, evicts pods, and removes what is unused.
package pressure

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/node/eviction"
	"hyperkube/components/kubelet/node/nodestatus"
	"hyperkube/components/kubelet/node/stats"
	"hyperkube/components/kubelet/pod/podlogs"
	"hyperkube/components/kubelet/pod/pods"
	"hyperkube/internal/host/cgroup"
)

// Pods lists and terminates the pods of the node. Its methods must be safe for concurrent use.
type Pods interface {
	// Active returns the pods that have not terminated.
	Active() []*v1.Pod
	// Terminate terminates a pod.
	Terminate(uid types.UID, v *pods.Verdict)
	// Emptied returns a channel that is closed when the containers and logs of a terminated pod are removed.
	Emptied(uid types.UID) <-chan struct{}
	// Discard removes the containers and logs of terminated pods.
	Discard(ctx context.Context) error
}

// Garbage removes exited containers and rotates the logs of running ones, to free disk space before pods are
// evicted.
type Garbage interface {
	Collect(ctx context.Context, rotation podlogs.Rotation) (rotated bool, err error)
}

// Images removes unused images.
type Images interface {
	Collect(ctx context.Context, all bool) error
}

// Config is the configuration of node-pressure eviction. All fields are required unless their comment says
// otherwise.
type Config struct {
	NodeName string
	// Root is the kubelet's root directory.
	Root string
	// Thresholds are the configured thresholds.
	Thresholds []eviction.Threshold
	// Transition is how long a pressure condition is kept after the pressure has ended. MaxGrace is the
	// maximum termination grace period, in seconds, when a soft threshold is met.
	Transition time.Duration
	MaxGrace   int64
	// StorageLimits enforces local storage limits.
	StorageLimits bool
	// Rotation is the rotation of container logs.
	Rotation podlogs.Rotation

	// Cgroups is nil if pods have no cgroups. Names names the cgroups of pods. PodsLimited reports whether
	// the memory of all pods together is limited.
	Cgroups     *cgroup.Manager
	Names       pods.CgroupNames
	PodsLimited bool

	CRI         *cri.Client
	Pods        Pods
	Garbage     Garbage
	Images      Images
	Stats       *stats.Provider
	FileSystems *stats.FileSystems
	// Changed is called when a pressure condition has changed.
	Changed func()
	Events  record.EventRecorder
	Log     *slog.Logger
}

// node has the functions by which the eviction manager measures this node, evicts pods and frees disk space: those
// of eviction.Config.
type node struct{ Config }

// New returns the manager of node-pressure eviction of this node. containerfs thresholds are ignored. If the
// memory of all pods together is limited, the hard memory threshold also applies within that limit.
func New(c Config) *eviction.Manager {
	n := node{c}
	thresholds, ignored := eviction.WithoutContainerFs(c.Thresholds)
	if ignored {
		c.Log.Warn("containerfs eviction thresholds in the kubelet configuration are ignored, because the thresholds of nodefs or imagefs cover the writable layers: remove them")
	}
	cfg := eviction.Config{
		NodeName: c.NodeName, Thresholds: thresholds, Disks: n.disks,
		Transition: c.Transition, MaxGrace: c.MaxGrace,
		Measure: n.measure, Pods: c.Pods.Active, Critical: pods.IsCritical, Usage: n.usage, Storage: n.storage,
		Evict: n.evict, FreeDisk: n.freeDisk, Changed: c.Changed, Events: c.Events, Log: c.Log,
	}
	if !c.StorageLimits {
		cfg.Storage = nil
	}
	if c.Cgroups == nil {
		return eviction.New(cfg)
	}
	// The same amount of memory must be available within the memory limit of all pods.
	for _, t := range c.Thresholds {
		if t.Signal == eviction.MemoryAvailable && t.Grace == 0 && c.PodsLimited {
			t.Signal = eviction.AllocatableMemoryAvailable
			cfg.Thresholds = append(cfg.Thresholds, t)
		}
	}
	root := ""
	if !c.Cgroups.Unified() {
		root = c.Cgroups.Dir("memory", "/")
	}
	cfg.Watch = eviction.NewMemoryWatch(root)
	return eviction.New(cfg)
}

// measure returns the measured value of each eviction signal. It returns an error if memory or a file system
// cannot be measured; other signals that cannot be measured are missing.
func (n node) measure(ctx context.Context) (map[eviction.Signal]eviction.Observation, error) {
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
	images, _, err := n.FileSystems.Paths(ctx)
	if err == nil {
		err = disk(images, eviction.ImageFsAvailable, eviction.ImageFsInodesFree)
	}
	err = errors.Join(err, disk(n.Root, eviction.NodeFsAvailable, eviction.NodeFsInodesFree))
	if n.Cgroups != nil && n.PodsLimited {
		if s, err := n.Cgroups.Stats(n.Names.OfClass(v1.PodQOSGuaranteed)); err == nil && s.MemoryLimit > 0 {
			out[eviction.AllocatableMemoryAvailable] = eviction.Observation{
				Available: int64(s.MemoryLimit) - int64(s.MemoryWorkingSet), Capacity: int64(s.MemoryLimit),
			}
		}
	}
	return out, err
}

// usage returns the resource usage of all pods that have a sandbox, by UID, to rank them.
func (n node) usage(ctx context.Context) (map[types.UID]*eviction.Candidate, error) {
	summary, err := n.Stats.Summary(ctx)
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

// storage returns the local storage usage of the pods in list, by UID, to enforce their limits. Writable layers
// on a separate image file system count for the pod, but not for their container.
func (n node) storage(ctx context.Context, list []*v1.Pod) (map[types.UID]eviction.Storage, error) {
	disks, err := n.disks(ctx)
	if err != nil {
		return nil, err
	}
	out := map[types.UID]eviction.Storage{}
	for _, pod := range list {
		s := eviction.Storage{Containers: map[string]int64{}, EmptyDirs: map[string]int64{}, Rest: n.Stats.OtherFiles(string(pod.UID))}
		for i := range pod.Spec.Volumes {
			if pod.Spec.Volumes[i].EmptyDir != nil {
				name := pod.Spec.Volumes[i].Name
				used, _ := stats.DiskUsage(n.Stats.EmptyDir(string(pod.UID), name))
				s.EmptyDirs[name] = int64(used)
			}
		}
		resp, err := n.CRI.Runtime.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{
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
			used, _ := stats.DiskUsage(n.Stats.LogDir(pod.Namespace, pod.Name, string(pod.UID), name))
			s.Containers[name] += int64(used)
		}
		out[pod.UID] = s
	}
	return out, nil
}

// containers iterates over the names of the init, app and ephemeral containers of a pod.
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

// evict terminates a pod with the reason Evicted, the message, and a grace period in seconds. The returned channel
// is closed when the pod's containers and logs are removed. With disrupted, the pod gets the condition
// DisruptionTarget.
func (n node) evict(pod *v1.Pod, grace int64, message string, disrupted bool) <-chan struct{} {
	verdict := &pods.Verdict{Reason: "Evicted", Message: message, Grace: &grace, Discard: true}
	if disrupted {
		verdict.Conditions = []v1.PodCondition{{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet, Message: message,
		}}
	}
	n.Pods.Terminate(pod.UID, verdict)
	return n.Pods.Emptied(pod.UID)
}

// discardTimeout is the timeout for the removal of the containers of terminated pods.
const discardTimeout = 30 * time.Second

// freeDisk removes the files that what selects: with Containers, exited containers and the containers and logs of
// terminated pods; with Images, unused images. It returns the errors of all steps.
func (n node) freeDisk(ctx context.Context, what eviction.Reclaim) error {
	var err error
	if what.Containers {
		_, err = n.Garbage.Collect(ctx, n.Rotation)
		ctx, cancel := context.WithTimeout(ctx, discardTimeout)
		err = errors.Join(err, n.Pods.Discard(ctx))
		cancel()
	}
	if what.Images {
		err = errors.Join(err, n.Images.Collect(ctx, true))
	}
	return err
}

// disks returns how images and writable layers are distributed over the file systems of the node.
func (n node) disks(ctx context.Context) (eviction.Disks, error) {
	images, layers, err := n.FileSystems.Compare(ctx)
	return eviction.Disks{Images: images, Layers: layers}, err
}

// Conditions returns which pressure conditions the eviction manager m has set, such as MemoryPressure, for the
// status of the Node.
func Conditions(m *eviction.Manager) nodestatus.Pressure {
	return nodestatus.Pressure{
		Memory: m.Pressure(v1.NodeMemoryPressure), Disk: m.Pressure(v1.NodeDiskPressure), PID: m.Pressure(v1.NodePIDPressure),
	}
}
