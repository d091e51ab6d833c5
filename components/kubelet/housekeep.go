package kubelet

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/images"
	"hyperkube/components/kubelet/nodestatus"
	"hyperkube/components/kubelet/podlogs"
	"hyperkube/components/kubelet/pods"
	"hyperkube/components/kubelet/stats"
)

// How often the house is looked at. The kernel and the runtime have no events
// for what is looked for here.
const (
	lookEvery   = 10 * time.Second
	imagesEvery = 5 * time.Minute
	// pressureStays is how long a pressure is told after it has passed.
	pressureStays = 5 * time.Minute
)

// housekeep rotates logs, removes dead containers and unused images, and ends
// pods when memory or disk run short.
func (k *Kubelet) housekeep(ctx context.Context) error {
	rotation := podlogs.Rotation{MaxSize: k.cfg.LogMaxSize, MaxFiles: k.cfg.LogMaxFiles}
	collector := &images.Collector{
		CRI: k.cri, High: k.cfg.ImageGCHigh, Low: k.cfg.ImageGCLow, MinAge: k.cfg.ImageMinAge, Log: k.log, Path: k.cfg.Layout.Data,
	}
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	var lastImages time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			if err := k.manager.Tidy(ctx, rotation); err != nil && ctx.Err() == nil {
				k.log.Warn("tidying up containers failed", "error", err)
			}
			if now.Sub(lastImages) >= imagesEvery {
				lastImages = now
				if err := collector.Collect(ctx, false); err != nil && ctx.Err() == nil {
					k.log.Warn("removing unused images failed", "error", err)
				}
			}
			k.relieve(ctx, collector, now)
		}
	}
}

// pressure remembers what ran short, and when last.
type pressure struct {
	mu                sync.Mutex
	memory, disk, pid time.Time
}

func (p *pressure) get() nodestatus.Pressure {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	recent := func(t time.Time) bool { return !t.IsZero() && now.Sub(t) < pressureStays }
	return nodestatus.Pressure{Memory: recent(p.memory), Disk: recent(p.disk), PID: recent(p.pid)}
}

// relieve looks whether something runs short and, if so, makes room: images
// first when it is the disk, then one pod.
func (k *Kubelet) relieve(ctx context.Context, collector *images.Collector, now time.Time) {
	before := k.pressure.get()
	short, signal, left, limit := k.shortOf(now)
	if short == "" {
		if k.pressure.get() != before {
			k.keeper.Changed()
		}
		return
	}
	k.pressure.mu.Lock()
	if short == v1.ResourceMemory {
		k.pressure.memory = now
	} else {
		k.pressure.disk = now
	}
	k.pressure.mu.Unlock()
	k.keeper.Changed()
	k.log.Warn("the node runs short", "signal", signal, "available", left, "threshold", limit)
	if short != v1.ResourceMemory {
		if err := collector.Collect(ctx, true); err != nil {
			k.log.Warn("removing unused images failed", "error", err)
		}
		if again, _, _, _ := k.shortOf(now); again == "" {
			return
		}
	}
	k.evictOne(ctx, short, left, limit)
}

// shortOf tells what is below its threshold, empty if nothing is.
func (k *Kubelet) shortOf(now time.Time) (short v1.ResourceName, signal string, left, limit int64) {
	if value, ok := k.cfg.EvictionHard["memory.available"]; ok {
		if info, err := nodestatus.MemInfo(); err == nil {
			t, err := parseThreshold("memory.available", value)
			if limit = t.of(info["MemTotal"]); err == nil && info["MemAvailable"] < limit {
				return v1.ResourceMemory, "memory.available", info["MemAvailable"], limit
			}
		}
	}
	fs := stats.FileSystem(k.cfg.Layout.Kubelet, now)
	if fs == nil {
		return "", "", 0, 0
	}
	if value, ok := k.cfg.EvictionHard["nodefs.available"]; ok {
		t, err := parseThreshold("nodefs.available", value)
		if limit = t.of(int64(*fs.CapacityBytes)); err == nil && int64(*fs.AvailableBytes) < limit {
			return v1.ResourceEphemeralStorage, "nodefs.available", int64(*fs.AvailableBytes), limit
		}
	}
	if value, ok := k.cfg.EvictionHard["nodefs.inodesFree"]; ok && *fs.Inodes > 0 {
		t, err := parseThreshold("nodefs.inodesFree", value)
		if limit = t.of(int64(*fs.Inodes)); err == nil && int64(*fs.InodesFree) < limit {
			return "inodes", "nodefs.inodesFree", int64(*fs.InodesFree), limit
		}
	}
	return "", "", 0, 0
}

// evictOne ends the pod that is to go first: those that use more than they
// asked for, then the lower priority, then what exceeds its request most.
func (k *Kubelet) evictOne(ctx context.Context, short v1.ResourceName, left, limit int64) {
	provider := &stats.Provider{CRI: k.cri, Root: k.cfg.Layout.Kubelet, Pods: k.manager.Pods}
	summary, err := provider.Summary(ctx)
	if err != nil {
		k.log.Warn("measuring pods failed", "error", err)
		return
	}
	use := map[string]int64{}
	for i := range summary.Pods {
		p := &summary.Pods[i]
		if short == v1.ResourceMemory && p.Memory != nil && p.Memory.WorkingSetBytes != nil {
			use[p.PodRef.UID] = int64(*p.Memory.WorkingSetBytes)
		}
		if short != v1.ResourceMemory && p.EphemeralStorage != nil && p.EphemeralStorage.UsedBytes != nil {
			use[p.PodRef.UID] = int64(*p.EphemeralStorage.UsedBytes)
		}
	}
	type candidate struct {
		pod      *v1.Pod
		over     int64
		priority int32
	}
	var list []candidate
	for _, pod := range k.manager.Active() {
		if critical(pod) {
			continue
		}
		c := candidate{pod: pod}
		if pod.Spec.Priority != nil {
			c.priority = *pod.Spec.Priority
		}
		var asked int64
		for i := range pod.Spec.Containers {
			q := pod.Spec.Containers[i].Resources.Requests[short]
			asked += q.Value()
		}
		c.over = use[string(pod.UID)] - asked
		list = append(list, c)
	}
	if len(list) == 0 {
		return
	}
	slices.SortStableFunc(list, func(a, b candidate) int {
		if (a.over > 0) != (b.over > 0) {
			if a.over > 0 {
				return -1
			}
			return 1
		}
		if a.priority != b.priority {
			return cmp.Compare(a.priority, b.priority)
		}
		return cmp.Compare(b.over, a.over)
	})
	pod := list[0].pod
	zero := int64(0)
	message := fmt.Sprintf("The node was low on resource: %s. Threshold quantity: %d, available: %d. ", short, limit, left)
	k.host.Events.Event(&v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		v1.EventTypeWarning, "Evicted", message)
	k.manager.End(pod.UID, &pods.Verdict{
		Reason: "Evicted", Message: message, Grace: &zero,
		Conditions: []v1.PodCondition{{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet, Message: message,
		}},
	})
}

func critical(pod *v1.Pod) bool {
	return pods.IsStatic(pod) || pods.IsMirror(pod) || (pod.Spec.Priority != nil && *pod.Spec.Priority >= 2000000000)
}

// runtimeFacts asks the runtime once for its name and its cgroup driver.
func (k *Kubelet) runtimeFacts(ctx context.Context) error {
	v, err := k.cri.Runtime.Version(ctx, &runtimeapi.VersionRequest{}, cri.Wait())
	if err != nil {
		return fmt.Errorf("asking the runtime for its version: %w", err)
	}
	k.host.RuntimeName = v.RuntimeName
	if resp, err := k.cri.Runtime.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{}); err == nil {
		k.host.Systemd = resp.GetLinux().GetCgroupDriver() == runtimeapi.CgroupDriver_SYSTEMD && resp.Linux != nil
	}
	return nil
}
