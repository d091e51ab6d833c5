package pods

import (
	"maps"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestMemoryQoS(t *testing.T) {
	list := func(memory string) v1.ResourceList {
		return v1.ResourceList{v1.ResourceMemory: resource.MustParse(memory), v1.ResourceCPU: resource.MustParse("1")}
	}
	pod := func(request, limit string) *v1.Pod {
		p := &v1.Pod{}
		c := v1.Container{Name: "c"}
		if request != "" {
			c.Resources.Requests = list(request)
		}
		if limit != "" {
			c.Resources.Limits = list(limit)
		}
		p.Spec.Containers = []v1.Container{c}
		return p
	}
	whole := pod("", "")
	whole.Spec.Resources = &v1.ResourceRequirements{Requests: list("4Ki"), Limits: list("20Ki")}
	none := map[string]string{memoryMin: "0", memoryLow: "0"}
	for name, c := range map[string]struct {
		host           *host
		pod            *v1.Pod
		container, all map[string]string
	}{
		"gate off":                 {newHost(Config{}), pod("8Ki", "8Ki"), nil, nil},
		"no protection":            {newHost(Config{Limits: Limits{MemoryQoS: true}}), pod("8Ki", "8Ki"), none, nil},
		"guaranteed":               {newHost(Config{Limits: Limits{MemoryQoS: true, Tiered: true}}), pod("8Ki", "8Ki"), map[string]string{memoryMin: "8192"}, map[string]string{memoryMin: "8192"}},
		"burstable":                {newHost(Config{Limits: Limits{MemoryQoS: true, Tiered: true}}), pod("4Ki", "8Ki"), map[string]string{memoryLow: "4096"}, map[string]string{memoryLow: "4096"}},
		"best effort":              {newHost(Config{Limits: Limits{MemoryQoS: true, Tiered: true}}), pod("", ""), none, nil},
		"throttled":                {newHost(Config{Limits: Limits{MemoryQoS: true, Throttling: 0.5}}), pod("4Ki", "20Ki"), map[string]string{memoryMin: "0", memoryLow: "0", memoryHigh: "12288"}, nil},
		"throttled pod":            {newHost(Config{Limits: Limits{MemoryQoS: true, Throttling: 0.5}}), whole, none, map[string]string{memoryHigh: "12288"}},
		"protected, throttled pod": {newHost(Config{Limits: Limits{MemoryQoS: true, Tiered: true, Throttling: 0.5}}), whole, none, map[string]string{memoryLow: "4096", memoryHigh: "12288"}},
	} {
		h := c.host
		h.limits.allocatable = func() v1.ResourceList { return nil }
		if got := h.limits.containerResources(c.pod, &c.pod.Spec.Containers[0]).Unified; !maps.Equal(got, c.container) {
			t.Errorf("%s: the container has %v, want %v", name, got, c.container)
		}
		if got := h.limits.podResources(c.pod).Unified; !maps.Equal(got, c.all) {
			t.Errorf("%s: the pod has %v, want %v", name, got, c.all)
		}
	}
	if guaranteed, burstable := protectedMemory([]*v1.Pod{pod("8Ki", "8Ki"), pod("4Ki", "8Ki"), pod("4Ki", ""), pod("", "")}); guaranteed != 8<<10 || burstable != 8<<10 {
		t.Errorf("total %d and %d", guaranteed, burstable)
	}
}
