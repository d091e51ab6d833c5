package state

import (
	"fmt"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/resource"
)

// TestAssumed compares the default requests of pods without requests with upstream's library, which
// is not called for all pods.
func TestAssumed(t *testing.T) {
	chance := rand.New(rand.NewPCG(3, 4))
	some := func() corev1.ResourceList {
		list := corev1.ResourceList{}
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, "example.com/thing"} {
			if chance.IntN(4) > 0 {
				list[name] = apiresource.MustParse(fmt.Sprint(chance.IntN(3)))
			}
		}
		return list
	}
	all := 0
	for range 2000 {
		pod := &corev1.Pod{}
		for i := range 1 + chance.IntN(2) {
			c := corev1.Container{Name: fmt.Sprint("c", i)}
			c.Resources.Requests = some()
			pod.Spec.Containers = append(pod.Spec.Containers, c)
		}
		if chance.IntN(3) == 0 {
			c := corev1.Container{Name: "first"}
			c.Resources.Requests = some()
			if always := corev1.ContainerRestartPolicyAlways; chance.IntN(2) == 0 {
				c.RestartPolicy = &always
			}
			pod.Spec.InitContainers = []corev1.Container{c}
		}
		if chance.IntN(4) == 0 {
			pod.Spec.Overhead = some()
		}
		if chance.IntN(4) == 0 {
			pod.Spec.Resources = &corev1.ResourceRequirements{Requests: some()}
			delete(pod.Spec.Resources.Requests, "example.com/thing")
		}
		if chance.IntN(2) == 0 {
			pod.Spec.NodeName = "n"
			if chance.IntN(2) == 0 {
				// The resize is infeasible.
				pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonInfeasible}}
				pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c0", AllocatedResources: some(), Resources: &corev1.ResourceRequirements{Requests: some()}}}
			}
		}
		if requestsAll(pod) {
			all++
		}
		bound := pod.Spec.NodeName != ""
		want := fromList(resource.PodRequests(pod, resource.PodResourcesOptions{
			UseStatusResources: bound, InPlacePodLevelResourcesVerticalScalingEnabled: bound,
			NonMissingContainerRequests: corev1.ResourceList{
				corev1.ResourceCPU:    *resourceMilli(defaultMilliCPU),
				corev1.ResourceMemory: *resourceBytes(defaultMemory),
			},
		}))
		if got := NewPod(pod); got.NonZeroCPU != want.CPU || got.NonZeroMemory != want.Memory {
			t.Fatalf("%+v: %d and %d, want %d and %d", pod, got.NonZeroCPU, got.NonZeroMemory, want.CPU, want.Memory)
		}
	}
	if all < 100 {
		t.Errorf("only %d pods request all resources", all)
	}
}
