package scheduler

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"hyperkube/internal/client"
	"hyperkube/internal/testing/testwait"
)

// deviceCluster is a scheduler with a fake API server and the nodes a and b, which have the GPUs of
// a driver.
type deviceCluster struct {
	*testing.T
	ctx   context.Context
	kube  *fake.Clientset
	bound chan string // in the form pod=node
}

func startDevices(t *testing.T, objects ...runtime.Object) *deviceCluster {
	return startDevicesWith(t, func(*fake.Clientset) {}, objects...)
}

// startDevicesWith calls prepare with the fake client before it is used.
func startDevicesWith(t *testing.T, prepare func(*fake.Clientset), objects ...runtime.Object) *deviceCluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	c := &deviceCluster{T: t, ctx: ctx, bound: make(chan string, 16)}
	objects = append(objects, node("a"), node("b"), &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu"},
		Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{
			CEL: &resourcev1.CELDeviceSelector{Expression: `device.driver == "gpu.example.com"`}}}},
	})
	c.kube = fake.NewClientset(objects...)
	var version atomic.Int64
	version.Store(10)
	number := func(o runtime.Object) {
		if m, err := meta.Accessor(o); err == nil {
			m.SetResourceVersion(strconv.FormatInt(version.Add(1), 10))
			if m.GetName() == "" {
				m.SetName(m.GetGenerateName() + m.GetResourceVersion())
			}
			if m.GetUID() == "" {
				m.SetUID(types.UID(m.GetNamespace() + "/" + m.GetName()))
			}
		}
	}
	c.kube.PrependReactor("update", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		number(a.(clienttesting.UpdateAction).GetObject())
		return false, nil, nil
	})
	c.kube.PrependReactor("create", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "binding" {
			number(a.(clienttesting.CreateAction).GetObject())
			return false, nil, nil
		}
		b := a.(clienttesting.CreateAction).GetObject().(*corev1.Binding)
		// The client's lock is held here.
		pods := corev1.SchemeGroupVersion.WithResource("pods")
		o, err := c.kube.Tracker().Get(pods, b.Namespace, b.Name)
		if err != nil {
			return true, nil, err
		}
		p := o.(*corev1.Pod).DeepCopy()
		p.Spec.NodeName = b.Target.Name
		if err := c.kube.Tracker().Update(pods, p, b.Namespace); err != nil {
			return true, nil, err
		}
		c.bound <- b.Name + "=" + b.Target.Name
		return true, b, nil
	})
	prepare(c.kube)
	clients := &client.Clients{Kube: c.kube, Informers: informers.NewSharedInformerFactory(c.kube, 0)}
	s, err := New(Config{Clients: clients, InitialBackoff: time.Millisecond, MaxBackoff: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	clients.Informers.StartWithContext(ctx)
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		clients.Informers.Shutdown()
	})
	return c
}

func slice(node string, taint *resourcev1.DeviceTaint, names ...string) *resourcev1.ResourceSlice {
	s := &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: node + "-gpus", UID: types.UID(node + "-gpus")},
		Spec:       resourcev1.ResourceSliceSpec{Driver: "gpu.example.com", NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1}},
	}
	for _, name := range names {
		d := resourcev1.Device{Name: name}
		if taint != nil {
			d.Taints = []resourcev1.DeviceTaint{*taint}
		}
		s.Spec.Devices = append(s.Spec.Devices, d)
	}
	return s
}

func claim(name string, count int64) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), ResourceVersion: "1"},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name:    "r",
			Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count},
		}}}},
	}
}

func claiming(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "c", ResourceClaimName: &name})
	}
}

func (c *deviceCluster) create(objects ...runtime.Object) {
	c.Helper()
	for _, o := range objects {
		var err error
		switch o := o.(type) {
		case *corev1.Pod:
			_, err = c.kube.CoreV1().Pods("default").Create(c.ctx, o, metav1.CreateOptions{})
		case *resourcev1.ResourceClaim:
			_, err = c.kube.ResourceV1().ResourceClaims("default").Create(c.ctx, o, metav1.CreateOptions{})
		case *resourcev1.ResourceSlice:
			_, err = c.kube.ResourceV1().ResourceSlices().Create(c.ctx, o, metav1.CreateOptions{})
		case *resourcev1.DeviceTaintRule:
			_, err = c.kube.ResourceV1().DeviceTaintRules().Create(c.ctx, o, metav1.CreateOptions{})
		default:
			err = fmt.Errorf("a %T", o)
		}
		if err != nil {
			c.Fatal(err)
		}
	}
}

func (c *deviceCluster) nextBound() string {
	c.Helper()
	select {
	case b := <-c.bound:
		return b
	case <-c.ctx.Done():
		c.Fatal("no pod was bound")
		return ""
	}
}

// waits checks that a pod is unschedulable with a message.
func (c *deviceCluster) waits(pod, message string) {
	c.Helper()
	last := ""
	testwait.Succeed(c, "the message of "+pod, func() error {
		p, err := c.kube.CoreV1().Pods("default").Get(c.ctx, pod, metav1.GetOptions{})
		if err != nil {
			c.Fatalf("%v, the last message is %q", err, last)
		}
		if p.Spec.NodeName != "" {
			c.Fatalf("%s is on %s", pod, p.Spec.NodeName)
		}
		for _, cond := range p.Status.Conditions {
			if last = cond.Message; last == message {
				return nil
			}
		}
		return fmt.Errorf("the last message is %q", last)
	})
}

func (c *deviceCluster) claim(name string) *resourcev1.ResourceClaim {
	c.Helper()
	got, err := c.kube.ResourceV1().ResourceClaims("default").Get(c.ctx, name, metav1.GetOptions{})
	if err != nil {
		c.Fatal(err)
	}
	return got
}

// TestDevices: claims are allocated on the node of the devices, and only once.
func TestDevices(t *testing.T) {
	c := startDevices(t, slice("b", nil, "gpu-0", "gpu-1"), claim("two", 2), claim("one", 1))
	c.create(pod("p", claiming("two")))
	if got := c.nextBound(); got != "p=b" {
		t.Fatalf("bound %s", got)
	}
	got := c.claim("two")
	if a := got.Status.Allocation; a == nil || len(a.Devices.Results) != 2 || a.AllocationTimestamp == nil || len(got.Finalizers) != 1 ||
		len(got.Status.ReservedFor) != 1 || got.Status.ReservedFor[0].UID != "p" {
		t.Fatalf("%+v", got)
	}
	// Another pod with the same claim is bound to the same node. No devices are left for other
	// claims.
	c.create(pod("q", claiming("two")))
	if got := c.nextBound(); got != "q=b" {
		t.Fatalf("bound %s", got)
	}
	if n := len(c.claim("two").Status.ReservedFor); n != 2 {
		t.Errorf("reserved for %d", n)
	}
	c.create(pod("r", claiming("one")))
	c.waits("r", "0/2 nodes are available: 2 cannot allocate all claims. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.")
	// A new slice makes the pod schedulable.
	c.create(slice("a", nil, "gpu-0"))
	if got := c.nextBound(); got != "r=a" {
		t.Fatalf("bound %s", got)
	}
	// A pod waits until its claim is created.
	c.create(pod("s", claiming("later")))
	c.create(slice("a2", nil))
	c.create(claim("later", 1))
	c.waits("s", "0/2 nodes are available: 2 cannot allocate all claims. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.")
	// Deallocated devices are allocated again.
	free := c.claim("two")
	free.Status.Allocation, free.Status.ReservedFor = nil, nil
	if _, err := c.kube.ResourceV1().ResourceClaims("default").UpdateStatus(c.ctx, free, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := c.nextBound(); got != "s=b" {
		t.Fatalf("bound %s", got)
	}
}

// TestDevicesElsewhere: an unused allocation is removed if the pod does not fit its node.
func TestDevicesElsewhere(t *testing.T) {
	stuck := claim("c", 1)
	stuck.Finalizers = []string{resourcev1.Finalizer}
	stuck.Status.Allocation = &resourcev1.AllocationResult{
		Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{{Request: "r", Driver: "gpu.example.com", Pool: "b", Device: "gpu-0"}}},
		NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{
			Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"b"}}}}}},
	}
	c := startDevices(t, slice("a", nil, "gpu-0"), slice("b", nil, "gpu-0"), stuck)
	c.create(pod("p", claiming("c"), func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "a"} }))
	if got := c.nextBound(); got != "p=a" {
		t.Fatalf("bound %s", got)
	}
	if r := c.claim("c").Status.Allocation.Devices.Results; len(r) != 1 || r[0].Pool != "a" {
		t.Errorf("%+v", r)
	}
}

// TestDeviceTaints: devices with taints from slices or rules are not allocated.
func TestDeviceTaints(t *testing.T) {
	pool := "b"
	taint := resourcev1.DeviceTaint{Key: "broken", Effect: resourcev1.DeviceTaintEffectNoSchedule}
	c := startDevices(t, slice("a", &taint, "gpu-0"), slice("b", nil, "gpu-0"), claim("c", 1), claim("d", 1), &resourcev1.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{Name: "r"},
		Spec:       resourcev1.DeviceTaintRuleSpec{DeviceSelector: &resourcev1.DeviceTaintSelector{Pool: &pool}, Taint: taint},
	})
	c.create(pod("p", claiming("c")))
	c.waits("p", "0/2 nodes are available: 2 cannot allocate all claims. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.")
	if err := c.kube.ResourceV1().DeviceTaintRules().Delete(c.ctx, "r", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := c.nextBound(); got != "p=b" {
		t.Fatalf("bound %s", got)
	}
}

// TestDeviceSelectorFails: a selector that fails for a device of one node makes the pod
// unschedulable on all nodes, with a message.
func TestDeviceSelectorFails(t *testing.T) {
	able := slice("a", nil, "gpu-0")
	yes := true
	able.Spec.Devices[0].Attributes = map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"exists": {BoolValue: &yes}}
	picky := claim("c", 1)
	picky.Spec.Devices.Requests[0].Exactly.Selectors = []resourcev1.DeviceSelector{{
		CEL: &resourcev1.CELDeviceSelector{Expression: `device.attributes["gpu.example.com"].exists`}}}
	c := startDevices(t, able, slice("b", nil, "gpu-0"), picky)
	c.create(pod("p", claiming("c")))
	c.waits("p", `running "DynamicResources" filter plugin: claim default/c: selector #0 on device gpu.example.com/b/gpu-0: CEL runtime error: no such key: exists. consider using CEL optional chaining (.? followed by orValue()) or guarding the check with has() for optional fields`)
}

// TestDeviceConditions: a pod is bound after the driver has prepared its device.
func TestDeviceConditions(t *testing.T) {
	s := slice("a", nil, "gpu-0")
	s.Spec.Devices[0].BindingConditions = []string{"attached"}
	s.Spec.Devices[0].BindingFailureConditions = []string{"broken"}
	c := startDevices(t, s, claim("c", 1))
	c.create(pod("p", claiming("c")))
	allocated := func() (got *resourcev1.ResourceClaim) {
		testwait.Until(t, "an allocation", func() bool {
			got = c.claim("c")
			return got.Status.Allocation != nil && len(got.Status.Devices) == 0
		})
		return got
	}
	setCondition := func(kind string) {
		got := allocated()
		got.Status.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: "gpu.example.com", Pool: "a", Device: "gpu-0", Conditions: []metav1.Condition{{Type: kind, Status: metav1.ConditionTrue}}}}
		if _, err := c.kube.ResourceV1().ResourceClaims("default").UpdateStatus(c.ctx, got, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// A device whose preparation failed is deallocated, and the claim is allocated again.
	setCondition("broken")
	setCondition("attached")
	if got := c.nextBound(); got != "p=a" {
		t.Fatalf("bound %s", got)
	}
}

// TestDevicesUnknown: after an unknown result of an allocation, the claim is read until the result
// is known. Until then its devices are not allocated to other claims.
func TestDevicesUnknown(t *testing.T) {
	s := slice("a", nil, "gpu-0")
	var lost, refused atomic.Bool
	c := startDevicesWith(t, func(kube *fake.Clientset) {
		kube.PrependReactor("update", "resourceclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if a.GetSubresource() != "status" || lost.Swap(true) {
				return false, nil, nil
			}
			// It is written, but the response is lost.
			got := a.(clienttesting.UpdateAction).GetObject().(*resourcev1.ResourceClaim).DeepCopy()
			got.ResourceVersion = "1000"
			return true, nil, errors.Join(kube.Tracker().Update(resourcev1.SchemeGroupVersion.WithResource("resourceclaims"), got, "default"), errors.New("the answer is lost"))
		})
		kube.PrependReactor("get", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
			if !lost.Load() || refused.Swap(true) {
				return false, nil, nil
			}
			return true, nil, errors.New("the server is away")
		})
	}, s, claim("one", 1), claim("two", 1))
	c.create(pod("p", claiming("one")))
	if got := c.nextBound(); got != "p=a" {
		t.Fatalf("bound %s", got)
	}
	if !refused.Load() {
		t.Error("the result of the write was not checked")
	}
	c.create(pod("q", claiming("two")))
	c.waits("q", "0/2 nodes are available: 2 cannot allocate all claims. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.")
}
