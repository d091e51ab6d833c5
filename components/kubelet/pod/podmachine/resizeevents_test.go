package podmachine

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestResizeMessage(t *testing.T) {
	pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{
		{Name: "a", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m")}}}, {Name: "b"},
	}}}
	for _, c := range []struct{ what, problem, want string }{
		{"started", "", `Pod resize started: {"containers":[{"name":"a","resources":{"requests":{"cpu":"100m"}}},{"name":"b","resources":{}}],"generation":3}`},
		{"Deferred", "no room", `Pod resize Deferred: {"containers":[{"name":"a","resources":{"requests":{"cpu":"100m"}}},{"name":"b","resources":{}}],"generation":3,"error":"no room"}`},
	} {
		if got := resizeMessage(pod, c.what, 3, c.problem); got != c.want {
			t.Errorf("%s\nwant %s", got, c.want)
		}
	}
}
