package pods

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

	"hyperkube/components/kubelet/pod/podmachine"
	"hyperkube/internal/host/cgroup"
)

func cpuMemory(cpu, memory string) v1.ResourceList {
	l := v1.ResourceList{}
	if cpu != "" {
		l[v1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory != "" {
		l[v1.ResourceMemory] = resource.MustParse(memory)
	}
	return l
}

// podWithLevel returns a pod with pod-level resources and containers with the given resources.
func podWithLevel(whole *v1.ResourceRequirements, each ...v1.ResourceRequirements) *v1.Pod {
	p := &v1.Pod{}
	p.UID, p.Spec.Resources = "u", whole
	for i, r := range each {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: string(rune('a' + i)), Resources: r})
	}
	return p
}

// TestContainersOfLimitedPod checks that a container without a limit is bounded by the pod-level
// limit.
func TestContainersOfLimitedPod(t *testing.T) {
	h := newHost(Config{Limits: Limits{CPUQuota: true, CPUQuotaPeriod: 100 * time.Millisecond, MemoryCapacity: 1000 << 20}})
	pod := podWithLevel(&v1.ResourceRequirements{Requests: cpuMemory("", "300Mi"), Limits: cpuMemory("500m", "400Mi")},
		v1.ResourceRequirements{}, v1.ResourceRequirements{Requests: cpuMemory("100m", "100Mi"), Limits: cpuMemory("200m", "100Mi")})
	for i, want := range []struct{ shares, quota, memory, oom int64 }{{512, 50000, 400 << 20, 900}, {102, 20000, 100 << 20, 800}} {
		r := h.limits.containerResources(pod, &pod.Spec.Containers[i])
		if r.CpuShares != want.shares || r.CpuQuota != want.quota || r.MemoryLimitInBytes != want.memory || r.OomScoreAdj != want.oom {
			t.Errorf("%d: %v, want %+v", i, r, want)
		}
	}
	if len(pod.Spec.Containers[0].Resources.Limits) > 0 {
		t.Error("the pod was changed")
	}
	// If only one pod-level limit is set, the other is left to the containers.
	pod.Spec.Resources.Limits = cpuMemory("500m", "")
	if r := h.limits.podResources(pod); r.CPUQuota != 50000 || r.MemoryLimit != 0 {
		t.Errorf("%+v", r)
	}
}

// TestOOMScoreOfSidecar checks that a sidecar is not killed before the containers that it serves.
func TestOOMScoreOfSidecar(t *testing.T) {
	always := v1.ContainerRestartPolicyAlways
	pod := podWithLevel(nil, v1.ResourceRequirements{Requests: cpuMemory("", "300Mi")}, v1.ResourceRequirements{Requests: cpuMemory("", "200Mi")})
	side := v1.Container{Name: "s", RestartPolicy: &always, Resources: v1.ResourceRequirements{Requests: cpuMemory("", "100Mi")}}
	pod.Spec.InitContainers = []v1.Container{side}
	if got := oomScore(pod, &side, 1000<<20); got != 800 {
		t.Errorf("%d", got)
	}
}

func TestPodLevelStatus(t *testing.T) {
	h := newHost(Config{Limits: Limits{CPUQuota: true, CPUQuotaPeriod: 100 * time.Millisecond}})
	whole := &v1.ResourceRequirements{Requests: cpuMemory("100m", "50Mi"), Limits: cpuMemory("200m", "80Mi")}
	larger := &v1.ResourceRequirements{Requests: cpuMemory("150m", "50Mi"), Limits: cpuMemory("300m", "80Mi")}
	some := v1.ResourceRequirements{Requests: cpuMemory("10m", "20Mi"), Limits: cpuMemory("", "30Mi")}
	for name, tc := range map[string]struct {
		pod   *v1.Pod
		last  v1.PodStatus
		kind  v1.PodConditionType
		has   v1.ResourceRequirements
		given v1.ResourceList
		off   bool
	}{
		"whole":       {pod: podWithLevel(whole, some), last: v1.PodStatus{Phase: v1.PodRunning}, has: *whole, given: whole.Requests},
		"parts":       {pod: podWithLevel(nil, some), last: v1.PodStatus{Phase: v1.PodRunning}, has: v1.ResourceRequirements{Requests: some.Requests, Limits: some.Limits}, given: some.Requests},
		"part":        {pod: podWithLevel(nil, some, v1.ResourceRequirements{}), last: v1.PodStatus{Phase: v1.PodRunning}, has: v1.ResourceRequirements{Requests: some.Requests}, given: some.Requests},
		"not started": {pod: podWithLevel(nil, some, v1.ResourceRequirements{}), has: some, given: some.Requests},
		"nothing":     {pod: podWithLevel(nil, v1.ResourceRequirements{}), last: v1.PodStatus{Phase: v1.PodRunning}},
		"resized":     {pod: podWithLevel(larger, some), last: v1.PodStatus{Phase: v1.PodRunning, Resources: whole}, kind: v1.PodResizeInProgress, has: *whole, given: larger.Requests, off: true},
		"deferred":    {pod: podWithLevel(larger, some), last: v1.PodStatus{Phase: v1.PodRunning, Resources: whole}, kind: v1.PodResizePending, has: *whole, given: whole.Requests, off: true},
	} {
		tc.pod.Status = tc.last
		w := newWorker(newHost(Config{Log: slog.New(slog.DiscardHandler), Limits: Limits{CPUQuota: h.Limits.CPUQuota, CPUQuotaPeriod: h.Limits.CPUQuotaPeriod}}), tc.pod)
		if tc.kind != "" {
			w.machine.Resize.State = &podmachine.ResizeState{Kind: tc.kind}
		}
		has, given := w.report.statusResources()
		if !apiequality.Semantic.DeepEqual(*has, tc.has) || !apiequality.Semantic.DeepEqual(given, tc.given) {
			t.Errorf("%s: actual %v, allocated %v; want %v and %v", name, has, given, tc.has, tc.given)
		}
		if off := w.machine.Resize.Actual(tc.pod) != tc.pod; off != tc.off {
			t.Errorf("%s: to be resized: %v", name, !tc.off)
		}
	}
}

// measured are cgroups with fixed statistics.
type measured struct {
	Cgroups
	stats cgroup.Stats
}

func (m measured) Stats(string) (cgroup.Stats, error) { return m.stats, nil }

// TestShrinkBelowUsage checks that a pod's memory limit is not decreased below its usage.
func TestShrinkBelowUsage(t *testing.T) {
	for name, tc := range map[string]struct {
		had, used uint64
		want      string
	}{
		"below current usage": {had: 100, used: 60, want: "attempting to set pod memory limit (50) below current usage (60)"},
		"first limit":         {used: 60, want: "attempting to set pod memory limit (50) below current usage (60)"},
		"enough":              {had: 100, used: 40},
		"more":                {had: 40, used: 60},
	} {
		h := newHost(Config{Limits: Limits{Cgroups: measured{stats: cgroup.Stats{MemoryLimit: tc.had, MemoryUsage: tc.used}}}})
		err := h.resizer.checkMemoryUsage(context.Background(), &v1.Pod{}, cgroup.Resources{MemoryLimit: 50}, nil, false)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
