package podstate

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// TestTerminationMessage checks that termination messages of few containers are complete, and that those of
// many are truncated.
func TestTerminationMessage(t *testing.T) {
	for _, c := range []struct {
		containers int
		text       string
		want       int
	}{
		{containers: 1, text: strings.Repeat("x", 4096), want: 4096},
		{containers: 3, text: strings.Repeat("x", 4096), want: 4096},
		{containers: 4, text: strings.Repeat("x", 4096), want: 3072},
		{containers: 12, text: strings.Repeat("x", 4096), want: 1024},
		// Characters are not split.
		{containers: 4, text: "x" + strings.Repeat("ä", 2048), want: 3071},
	} {
		t.Run(fmt.Sprint(c.containers, " ", c.text[:3]), func(t *testing.T) {
			p := &v1.Pod{Spec: v1.PodSpec{RestartPolicy: v1.RestartPolicyNever}}
			seen := &Observed{Sandboxes: []Sandbox{{ID: "box", Ready: true}}}
			for i := range c.containers {
				name := fmt.Sprint("c", i)
				if i%2 == 0 {
					p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: name})
				} else {
					p.Spec.InitContainers = append(p.Spec.InitContainers, v1.Container{Name: name})
				}
				for attempt := range 2 {
					seen.Containers = append([]Container{{ID: fmt.Sprint(name, attempt), Attempt: uint32(attempt), Name: name, SandboxID: "box", State: Exited, Message: c.text}}, seen.Containers...)
				}
			}
			s := Status(StatusInput{Input: Input{Pod: p, Observed: seen, Now: now}, Last: &v1.PodStatus{}, RuntimeName: "r"})
			statuses := append(s.InitContainerStatuses, s.ContainerStatuses...)
			if len(statuses) != c.containers {
				t.Fatalf("%d container statuses", len(statuses))
			}
			for _, one := range statuses {
				for _, end := range []*v1.ContainerStateTerminated{one.State.Terminated, one.LastTerminationState.Terminated} {
					if end == nil || len(end.Message) != c.want || !strings.HasPrefix(c.text, end.Message) {
						t.Fatalf("%s: got %+v, want %d bytes", one.Name, end, c.want)
					}
				}
			}
			if seen.Containers[0].Message != c.text {
				t.Error("the input was modified")
			}
		})
	}
}
