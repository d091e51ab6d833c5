package preemption

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// pod parses "name class priority cpu memory".
func pod(text string) *v1.Pod {
	f := strings.Fields(text)
	p := &v1.Pod{}
	p.Name = f[0]
	p.Status.QOSClass = v1.PodQOSClass(f[1])
	n := resource.MustParse(f[2])
	priority := int32(n.Value())
	p.Spec.Priority = &priority
	p.Spec.Containers = []v1.Container{{Resources: v1.ResourceRequirements{Requests: v1.ResourceList{
		v1.ResourceCPU: resource.MustParse(f[3]), v1.ResourceMemory: resource.MustParse(f[4]),
	}}}}
	return p
}

func TestChoose(t *testing.T) {
	critical := func(p *v1.Pod) bool { return *p.Spec.Priority >= 2000000000 }
	class := func(p *v1.Pod) v1.PodQOSClass { return p.Status.QOSClass }
	const cpu, memory, count = v1.ResourceCPU, v1.ResourceMemory, v1.ResourcePods
	others := []*v1.Pod{
		pod("low BestEffort 0 0 0"), pod("small Burstable 0 100m 100"), pod("middle Burstable 0 300m 50"), pod("big Burstable 0 900m 900"),
		pod("sure Guaranteed 0 500m 2000"), pod("system Guaranteed 2000000000 4 4000"),
	}
	for name, c := range map[string]struct {
		who  string
		need []Requirement
		want string // names, or part of the error
	}{
		"pod count":            {"x Guaranteed 2000000000 1 1", []Requirement{{count, 1}}, "low"},
		"just enough":          {"x Guaranteed 2000000000 1 1", []Requirement{{cpu, 250}}, "middle"},
		"both":                 {"x Guaranteed 2000000000 1 1", []Requirement{{cpu, 250}, {memory, 60}}, "big"},
		"more than one":        {"x Guaranteed 2000000000 1 1", []Requirement{{cpu, 1100}}, "big middle"},
		"higher priority only": {"x Guaranteed 2000000000 1 1", []Requirement{{memory, 2500}}, "big sure"},
		"request too large":    {"x Guaranteed 2000000000 1 1", []Requirement{{cpu, 5000}}, "no set of running pods found to reclaim resources: [(res: cpu, q: 3200), ]"},
		"system critical":      {"x Guaranteed 2000001000 1 1", []Requirement{{cpu, 5000}}, "big middle system"},
	} {
		got, err := Choose(pod(c.who), others, c.need, critical, class)
		var names []string
		for _, p := range got {
			names = append(names, p.Name)
		}
		text := strings.Join(names, " ")
		if err != nil {
			text = err.Error()
		}
		if text != c.want {
			t.Errorf("%s: %s, want %s", name, text, c.want)
		}
	}
}
