package volume

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestMissingSources checks that the error of a projected volume contains every missing source.
func TestMissingSources(t *testing.T) {
	one := func(name string) v1.VolumeProjection {
		return v1.VolumeProjection{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: name}}}
	}
	volume := &v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{one("a"), one("there"), one("b")}}}}
	set := &Set{Root: t.TempDir(), Types: []Type{Projected{Objects: fakeObjects{"there": {"k": "v"}}}}}
	_, err := set.SetUp(t.Context(), &v1.Pod{}, volume)
	if err == nil || !strings.Contains(err.Error(), `[configmap "a" not found, configmap "b" not found]`) {
		t.Errorf("%v", err)
	}
}

// TestSizeInMemory checks that a volume in memory is not larger than the memory limit of the pod:
// the pod-level limit, or the sum of the limits if every container has one.
func TestSizeInMemory(t *testing.T) {
	limits := func(text string) v1.ResourceList { return v1.ResourceList{v1.ResourceMemory: resource.MustParse(text)} }
	limited := v1.Container{Resources: v1.ResourceRequirements{Limits: limits("1Gi")}}
	types := EmptyDir{Allocatable: func() v1.ResourceList { return limits("8Gi") }}
	for what, c := range map[string]struct {
		spec v1.PodSpec
		want int64
	}{
		"without limits":                 {v1.PodSpec{Containers: []v1.Container{{}}}, 8 << 30},
		"container limits":               {v1.PodSpec{Containers: []v1.Container{limited, limited}}, 2 << 30},
		"one container without a limit":  {v1.PodSpec{Containers: []v1.Container{limited, {}}}, 8 << 30},
		"init container without a limit": {v1.PodSpec{InitContainers: []v1.Container{{}}, Containers: []v1.Container{limited}}, 8 << 30},
		"pod-level limit":                {v1.PodSpec{Containers: []v1.Container{{}}, Resources: &v1.ResourceRequirements{Limits: limits("3Gi")}}, 3 << 30},
	} {
		if got := types.size(&v1.Pod{Spec: c.spec}, &v1.EmptyDirVolumeSource{}); got != c.want {
			t.Errorf("%s: %d, want %d", what, got, c.want)
		}
	}
}
