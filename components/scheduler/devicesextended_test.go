package scheduler

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"hyperkube/internal/testing/testwait"
)

// gpuClass is the implicit extended resource name of the cluster's DeviceClass.
const gpuClass = "deviceclass.resource.kubernetes.io/gpu"

func requesting(name, n string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Name = "c"
		list := corev1.ResourceList{corev1.ResourceName(name): resource.MustParse(n)}
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list, Limits: list}
	}
}

// made returns the claim that was created for a pod.
func (c *deviceCluster) made(pod string) *resourcev1.ResourceClaim {
	c.Helper()
	p, err := c.kube.CoreV1().Pods("default").Get(c.ctx, pod, metav1.GetOptions{})
	if err != nil {
		c.Fatal(err)
	}
	s := p.Status.ExtendedResourceClaimStatus
	if s == nil || len(s.RequestMappings) != 1 || s.RequestMappings[0].ContainerName != "c" || s.RequestMappings[0].RequestName != "container-0-request-0" {
		c.Fatalf("%s: %+v", pod, s)
	}
	return c.claim(s.ResourceClaimName)
}

// TestExtendedResources: extended resources of pods are satisfied with devices of a class, with a
// claim for each pod.
func TestExtendedResources(t *testing.T) {
	c := startDevices(t, slice("b", nil, "gpu-0", "gpu-1", "gpu-2"), claim("one", 1))
	c.create(pod("p", requesting(gpuClass, "2")))
	if got := c.nextBound(); got != "p=b" {
		t.Fatalf("bound %s", got)
	}
	got := c.made("p")
	if a := got.Status.Allocation; a == nil || len(a.Devices.Results) != 2 || len(got.Finalizers) != 1 || len(got.Status.ReservedFor) != 1 ||
		got.Status.ReservedFor[0].UID != "p" || !strings.HasPrefix(got.Name, "p-extended-resources-") || got.Annotations[resourcev1.ExtendedResourceClaimAnnotation] != "true" ||
		!metav1.IsControlledBy(got, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "p"}}) {
		t.Fatalf("%+v", got)
	}
	// Devices for extended resources are not available for claims, and vice versa.
	c.create(pod("q", claiming("one")))
	if got := c.nextBound(); got != "q=b" {
		t.Fatalf("bound %s", got)
	}
	c.create(pod("r", requesting(gpuClass, "1")))
	c.waits("r", "0/2 nodes are available: 2 cannot allocate all claims. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.")
	// No class has this extended resource name yet.
	c.create(pod("s", requesting("example.com/gpu", "2")))
	c.waits("s", "0/2 nodes are available: 2 Insufficient example.com/gpu. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.")
	class, err := c.kube.ResourceV1().DeviceClasses().Get(c.ctx, "gpu", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	name := "example.com/gpu"
	class.Spec.ExtendedResourceName = &name
	if _, err := c.kube.ResourceV1().DeviceClasses().Update(c.ctx, class, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.waits("s", "0/2 nodes are available: 2 cannot allocate all claims. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.")
	// Deallocated devices are allocated to waiting pods.
	free := c.made("p")
	free.Status.Allocation, free.Status.ReservedFor = nil, nil
	if _, err := c.kube.ResourceV1().ResourceClaims("default").UpdateStatus(c.ctx, free, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := c.nextBound(); got != "r=b" && got != "s=b" {
		t.Fatalf("bound %s", got)
	}
}

// TestExtendedResourcesPlugin: on a node with a device plugin for the resource, the device plugin's
// devices are used.
func TestExtendedResourcesPlugin(t *testing.T) {
	have := node("c")
	have.Status.Allocatable[gpuClass] = resource.MustParse("1")
	c := startDevices(t, have)
	c.create(pod("p", requesting(gpuClass, "1")))
	if got := c.nextBound(); got != "p=c" {
		t.Fatalf("bound %s", got)
	}
	if p, err := c.kube.CoreV1().Pods("default").Get(c.ctx, "p", metav1.GetOptions{}); err != nil || p.Status.ExtendedResourceClaimStatus != nil {
		t.Errorf("%+v %v", p.Status, err)
	}
}

// TestExtendedResourcesAgain: the claim of a failed attempt is deleted, as well as one that a
// previous scheduler left.
func TestExtendedResourcesAgain(t *testing.T) {
	left := claim("left", 1)
	controller := true
	left.Annotations = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}
	left.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "p", Controller: &controller}}
	left.Finalizers = []string{resourcev1.Finalizer}
	left.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
		{Request: "r", Driver: "gpu.example.com", Pool: "b", Device: "gpu-0"}}}}
	var failed atomic.Bool
	c := startDevicesWith(t, func(kube *fake.Clientset) {
		kube.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if a.GetSubresource() == "binding" && !failed.Swap(true) {
				return true, nil, errors.New("no")
			}
			return false, nil, nil
		})
	}, slice("b", nil, "gpu-0"), left)
	c.create(pod("p", requesting(gpuClass, "1")))
	if got := c.nextBound(); got != "p=b" {
		t.Fatalf("bound %s", got)
	}
	name := c.made("p").Name
	testwait.Until(t, "the other claim's deletion", func() bool {
		all, err := c.kube.ResourceV1().ResourceClaims("default").List(c.ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return len(all.Items) == 1 && all.Items[0].Name == name
	})
}
