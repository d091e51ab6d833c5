package plugins

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestExtendedRequests(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	container := func(name string, n string, policy *corev1.ContainerRestartPolicy) corev1.Container {
		c := corev1.Container{Name: name, RestartPolicy: policy}
		c.Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1")}
		if n != "" {
			c.Resources.Requests["example.com/gpu"] = resource.MustParse(n)
		}
		return c
	}
	for name, tc := range map[string]struct {
		init, main []corev1.Container
		requests   string
		mappings   string
	}{
		"two containers": {
			main:     []corev1.Container{container("a", "2", nil), container("b", "", nil), container("c", "1", nil)},
			requests: "container-0-request-1=2 container-2-request-1=1", mappings: "a:container-0-request-1 c:container-2-request-1",
		},
		"an init container reuses devices": {
			init: []corev1.Container{container("i", "2", nil)}, main: []corev1.Container{container("a", "2", nil)},
			requests: "container-1-request-1=2", mappings: "a:container-1-request-1 i:container-1-request-1",
		},
		"init containers share additional devices": {
			init: []corev1.Container{container("i", "3", nil), container("k", "5", nil)}, main: []corev1.Container{container("a", "2", nil)},
			requests: "container-1-request-1=3 container-2-request-1=2",
			mappings: "a:container-2-request-1 i:container-2-request-1 i:container-1-request-1 k:container-2-request-1 k:container-1-request-1",
		},
		"an earlier sidecar keeps its devices": {
			init: []corev1.Container{container("s", "1", &always), container("i", "1", nil)}, main: []corev1.Container{container("a", "", nil)},
			requests: "container-0-request-1=1 container-1-request-1=1", mappings: "s:container-0-request-1 i:container-1-request-1",
		},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{InitContainers: tc.init, Containers: tc.main}}
		requests, mappings := extendedRequests(pod, map[corev1.ResourceName]string{"example.com/gpu": "gpu"})
		var got, stand []string
		for _, r := range requests {
			got = append(got, fmt.Sprintf("%s=%d", r.Name, r.Exactly.Count))
		}
		for _, m := range mappings {
			stand = append(stand, m.ContainerName+":"+m.RequestName)
		}
		if g := strings.Join(got, " "); g != tc.requests {
			t.Errorf("%s: requests %s", name, g)
		}
		if g := strings.Join(stand, " "); g != tc.mappings {
			t.Errorf("%s: mappings %s", name, g)
		}
	}
}
