package pods

import (
	"slices"
	"strconv"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"hyperkube/components/kubelet/cri/crifake"
	"hyperkube/components/kubelet/pod/podmachine"
	"hyperkube/internal/host/cgroup"
	"hyperkube/internal/pod/podutil"
)

// recorded are Cgroups that record writes.
type recorded struct {
	Cgroups
	mu   sync.Mutex
	sets []string
}

func (r *recorded) Create(string, cgroup.Resources) error { return nil }

func (r *recorded) Set(name string, res cgroup.Resources) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sets = append(r.sets, name+" "+strconv.FormatUint(res.CPUShares, 10))
	return nil
}

func asking(uid, cpu, memory, limit string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: uid, Namespace: "default", UID: types.UID(uid)}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c"}}}}
	r := &pod.Spec.Containers[0].Resources
	r.Requests, r.Limits = v1.ResourceList{}, v1.ResourceList{}
	for _, q := range []struct {
		list  v1.ResourceList
		name  v1.ResourceName
		value string
	}{{r.Requests, v1.ResourceCPU, cpu}, {r.Requests, v1.ResourceMemory, memory}, {r.Limits, v1.ResourceMemory, limit}} {
		if q.value != "" {
			q.list[q.name] = resource.MustParse(q.value)
		}
	}
	return pod
}

// TestBurstableWeight checks that the weight of Burstable pods is their total CPU request.
func TestBurstableWeight(t *testing.T) {
	groups := &recorded{}
	b := newBench(t, crifake.New())
	h := newHost(Config{Limits: Limits{Cgroups: groups, Root: "/below"}, Log: b.host.Log})
	add := func(pod *v1.Pod) {
		h.Registry.add(newWorker(h, pod))
		h.weights.update()
	}
	h.weights.update()
	add(asking("a", "250m", "", ""))
	add(asking("b", "750m", "1Gi", "2Gi"))
	add(asking("c", "", "1Gi", "")) // no CPU request
	add(asking("d", "", "", ""))    // BestEffort
	guaranteed := asking("e", "2", "1Gi", "1Gi")
	guaranteed.Spec.Containers[0].Resources.Limits[v1.ResourceCPU] = resource.MustParse("2")
	add(guaranteed)
	h.Registry.worker("b").machine.Stage = podmachine.Stopped
	h.weights.update()
	want := []string{"/below/kubepods/burstable 2", "/below/kubepods/burstable 256", "/below/kubepods/burstable 1024", "/below/kubepods/burstable 256"}
	if !slices.Equal(groups.sets, want) {
		t.Errorf("written: %q, want %q", groups.sets, want)
	}
}

// TestSwap checks which containers may use swap, and how much.
func TestSwap(t *testing.T) {
	critical := asking("p", "", "250Mi", "500Mi")
	critical.Spec.Priority = new(int32(podutil.SystemCritical))
	for name, tc := range map[string]struct {
		pod  *v1.Pod
		swap int64
		want string
	}{
		"burstable":                 {asking("a", "", "250Mi", "500Mi"), 800 << 20, "209715200"},
		"burstable without a limit": {asking("b", "", "250Mi", ""), 800 << 20, "209715200"},
		"without limited swap":      {asking("c", "", "250Mi", "500Mi"), 0, "0"},
		"no request, no limit":      {asking("d", "100m", "", ""), 800 << 20, "0"},
		"request equals limit":      {asking("e", "100m", "250Mi", "250Mi"), 800 << 20, "0"},
		"best effort":               {asking("f", "", "", ""), 800 << 20, "0"},
		"critical":                  {critical, 800 << 20, "0"},
	} {
		h := newHost(Config{Limits: Limits{MemoryCapacity: 1000 << 20, Swap: func() int64 { return tc.swap }}})
		r := h.limits.containerResources(tc.pod, &tc.pod.Spec.Containers[0])
		if got := r.Unified["memory.swap.max"]; got != tc.want || r.MemorySwapLimitInBytes != 0 {
			t.Errorf("%s: %q, want %q; total %d", name, got, tc.want, r.MemorySwapLimitInBytes)
		}
	}
	h := newHost(Config{Limits: Limits{MemoryCapacity: 1000 << 20}})
	if r := h.limits.containerResources(critical, &critical.Spec.Containers[0]); r.Unified != nil {
		t.Errorf("without kernel support: %v", r.Unified)
	}
}
