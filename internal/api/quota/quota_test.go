package quota

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/utils/ptr"
)

var now = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

func clock() time.Time { return now }

// list parses a resource list from "name=quantity" words.
func list(t *testing.T, words string) corev1.ResourceList {
	t.Helper()
	out := corev1.ResourceList{}
	for w := range strings.FieldsSeq(words) {
		name, q, _ := strings.Cut(w, "=")
		out[corev1.ResourceName(name)] = resource.MustParse(q)
	}
	return out
}

func podOf(change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	if change != nil {
		change(p)
	}
	return p
}

func TestUsage(t *testing.T) {
	reg := New(nil, clock)
	computing := func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{
			Requests: list(t, "cpu=1 memory=1Gi example.com/gpu=2 deviceclass.resource.kubernetes.io/gpu=3 hugepages-2Mi=4Mi"), Limits: list(t, "cpu=2 memory=2Gi"),
		}
	}
	for _, tc := range []struct {
		name, resource string
		obj            runtime.Object
		want           string
	}{
		{"an empty pod", "pods", podOf(nil), "count/pods=1 pods=1"},
		{"a pod", "pods", podOf(computing), "count/pods=1 pods=1 cpu=1 requests.cpu=1 memory=1Gi requests.memory=1Gi limits.cpu=2 limits.memory=2Gi requests.example.com/gpu=2 requests.deviceclass.resource.kubernetes.io/gpu=3 hugepages-2Mi=4Mi requests.hugepages-2Mi=4Mi"},
		{"a terminated pod", "pods", podOf(func(p *corev1.Pod) { computing(p); p.Status.Phase = corev1.PodSucceeded }), "count/pods=1"},
		{"a pod in deletion", "pods", podOf(func(p *corev1.Pod) {
			p.DeletionTimestamp = &metav1.Time{Time: now}
			p.DeletionGracePeriodSeconds = ptr.To[int64](30)
		}), "count/pods=1 pods=1"},
		{"a stuck pod", "pods", podOf(func(p *corev1.Pod) {
			p.DeletionTimestamp = &metav1.Time{Time: now.Add(-time.Minute)}
			p.DeletionGracePeriodSeconds = ptr.To[int64](30)
		}), "count/pods=1"},
		{"a service", "services", &corev1.Service{Spec: corev1.ServiceSpec{Ports: make([]corev1.ServicePort, 2)}}, "count/services=1 services=1 services.nodeports=0 services.loadbalancers=0"},
		{"a service with node ports", "services", &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: make([]corev1.ServicePort, 2)}}, "count/services=1 services=1 services.nodeports=2 services.loadbalancers=0"},
		{"a load balancer without node ports", "services", &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, AllocateLoadBalancerNodePorts: ptr.To(false), Ports: []corev1.ServicePort{{}, {NodePort: 1}}}}, "count/services=1 services=1 services.nodeports=1 services.loadbalancers=1"},
		{"a claim", "persistentvolumeclaims", &corev1.PersistentVolumeClaim{
			Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("gold"), Resources: corev1.VolumeResourceRequirements{Requests: list(t, "storage=1Gi")}},
		}, "count/persistentvolumeclaims=1 persistentvolumeclaims=1 requests.storage=1Gi gold.storageclass.storage.k8s.io/persistentvolumeclaims=1 gold.storageclass.storage.k8s.io/requests.storage=1Gi"},
		{"a config map", "configmaps", &corev1.ConfigMap{}, "configmaps=1 count/configmaps=1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := reg.Get(schema.GroupResource{Resource: tc.resource}).Usage(tc.obj)
			if err != nil || !quota.Equals(got, list(t, tc.want)) {
				t.Errorf("got %v %v, want %s", got, err, tc.want)
			}
		})
	}
	if _, err := reg.Get(corev1.Resource("pods")).Usage(&corev1.Service{}); err == nil {
		t.Error("a service was evaluated as a pod")
	}
}

func TestDevices(t *testing.T) {
	exactly := func(class string, mode resourcev1.DeviceAllocationMode, n int64) resourcev1.DeviceRequest {
		return resourcev1.DeviceRequest{Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: class, AllocationMode: mode, Count: n}}
	}
	claim := &resourcev1.ResourceClaim{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
		exactly("gold", resourcev1.DeviceAllocationModeExactCount, 2), exactly("gold", resourcev1.DeviceAllocationModeExactCount, 1),
		exactly("all", resourcev1.DeviceAllocationModeAll, 0),
		{FirstAvailable: []resourcev1.DeviceSubRequest{
			{DeviceClassName: "gold", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1},
			{DeviceClassName: "gold", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 4},
			{DeviceClassName: "iron", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 3},
		}},
	}}}}
	const of = ".deviceclass.resource.k8s.io/devices="
	e := Count(DeviceClaims, nil)
	got, err := e.Usage(claim)
	if want := list(t, "count/resourceclaims.resource.k8s.io=1 gold"+of+"7 all"+of+"32 iron"+of+"3"); err != nil || !quota.Equals(got, want) {
		t.Errorf("got %v %v, want %v", got, err, want)
	}
	if got := e.MatchingResources([]corev1.ResourceName{"pods", "gold.deviceclass.resource.k8s.io/devices"}); len(got) != 1 {
		t.Errorf("matching resources %v", got)
	}
}

// TestDeadline checks that quotas are evaluated again when a pod gets a deadline.
func TestDeadline(t *testing.T) {
	e := New(nil, clock).Get(corev1.Resource("pods"))
	without, with := podOf(nil), podOf(func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](1) })
	for _, tc := range []struct {
		now, old *corev1.Pod
		want     bool
	}{{with, without, true}, {without, without, false}, {with, with, false}} {
		a := admission.NewAttributesRecord(tc.now, tc.old, corev1.SchemeGroupVersion.WithKind("Pod"), "ns", "p", corev1.SchemeGroupVersion.WithResource("pods"), "", admission.Update, nil, false, nil)
		if got := e.Handles(a); got != tc.want {
			t.Errorf("%v to %v: %v", tc.old.Spec.ActiveDeadlineSeconds, tc.now.Spec.ActiveDeadlineSeconds, got)
		}
	}
}

// TestServiceStatus checks that status updates of Services are not evaluated.
func TestServiceStatus(t *testing.T) {
	e := New(nil, time.Now).Get(corev1.Resource("services"))
	for sub, want := range map[string]bool{"": true, "status": false} {
		a := admission.NewAttributesRecord(&corev1.Service{}, &corev1.Service{}, schema.GroupVersionKind{}, "ns", "s", schema.GroupVersionResource{}, sub, admission.Update, nil, false, nil)
		if got := e.Handles(a); got != want {
			t.Errorf("update of %q: %v", sub, got)
		}
	}
}

func TestScopes(t *testing.T) {
	e := New(nil, clock).Get(corev1.Resource("pods"))
	limited := podOf(func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = list(t, "cpu=1")
		p.Spec.ActiveDeadlineSeconds = ptr.To[int64](1)
		p.Spec.PriorityClassName = "high"
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{Namespaces: []string{"x"}}}}}
	})
	for _, tc := range []struct {
		scope          corev1.ScopedResourceSelectorRequirement
		plain, limited bool
	}{
		{corev1.ScopedResourceSelectorRequirement{ScopeName: corev1.ResourceQuotaScopeBestEffort, Operator: corev1.ScopeSelectorOpExists}, true, false},
		{corev1.ScopedResourceSelectorRequirement{ScopeName: corev1.ResourceQuotaScopeNotBestEffort, Operator: corev1.ScopeSelectorOpExists}, false, true},
		{corev1.ScopedResourceSelectorRequirement{ScopeName: corev1.ResourceQuotaScopeTerminating, Operator: corev1.ScopeSelectorOpExists}, false, true},
		{corev1.ScopedResourceSelectorRequirement{ScopeName: corev1.ResourceQuotaScopeNotTerminating, Operator: corev1.ScopeSelectorOpExists}, true, false},
		{corev1.ScopedResourceSelectorRequirement{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: corev1.ScopeSelectorOpExists}, false, true},
		{corev1.ScopedResourceSelectorRequirement{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: corev1.ScopeSelectorOpIn, Values: []string{"low", "high"}}, false, true},
		{corev1.ScopedResourceSelectorRequirement{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: corev1.ScopeSelectorOpNotIn, Values: []string{"high"}}, true, false},
		{corev1.ScopedResourceSelectorRequirement{ScopeName: corev1.ResourceQuotaScopeCrossNamespacePodAffinity, Operator: corev1.ScopeSelectorOpExists}, false, true},
	} {
		q := &corev1.ResourceQuota{
			Spec:   corev1.ResourceQuotaSpec{ScopeSelector: &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{tc.scope}}},
			Status: corev1.ResourceQuotaStatus{Hard: list(t, "pods=1")},
		}
		for p, want := range map[*corev1.Pod]bool{podOf(nil): tc.plain, limited: tc.limited} {
			if got, err := e.Matches(q, p); err != nil || got != want {
				t.Errorf("%v: got %v %v, want %v", tc.scope, got, err, want)
			}
		}
	}
}

func TestConstraints(t *testing.T) {
	e := New(nil, clock).Get(corev1.Resource("pods"))
	p := podOf(func(p *corev1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "b"})
		p.Spec.Containers[0].Resources.Requests = list(t, "cpu=1")
	})
	err := e.Constraints([]corev1.ResourceName{"pods", "requests.cpu", "limits.memory", "limits.ephemeral-storage"}, p)
	if want := "must specify limits.memory for: b,c; requests.cpu for: b"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	p.Spec.Resources = &corev1.ResourceRequirements{Limits: list(t, "cpu=1 memory=1Gi")}
	if err := e.Constraints([]corev1.ResourceName{"requests.cpu"}, p); err != nil {
		t.Error(err)
	}
}

func TestCalculate(t *testing.T) {
	reg := New(func(gvr schema.GroupVersionResource, namespace string) ([]runtime.Object, error) {
		if gvr.Resource == "pods" && namespace == "ns" {
			return []runtime.Object{podOf(nil), podOf(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })}, nil
		}
		return nil, nil
	}, clock)
	hard := list(t, "pods=5 count/pods=5 secrets=1 requests.cpu=1 count/unknown.example.com=1")
	got, err := quota.CalculateUsage("ns", nil, hard, reg, nil)
	if err != nil || !quota.Equals(got, list(t, "pods=1 count/pods=2 secrets=0 requests.cpu=0")) {
		t.Errorf("%v %v", got, err)
	}
}

// TestExtendedDevices checks that devices of claims count towards the extended resources of their
// classes, but not twice for a pod for which the scheduler has created the claim.
func TestExtendedDevices(t *testing.T) {
	class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}, Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: ptr.To("example.com/gpu")}}
	other := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "nic"}}
	owner := podOf(func(p *corev1.Pod) {
		p.UID = "p"
		p.Spec.Containers[0].Resources.Requests = list(t, "example.com/gpu=2")
	})
	claimOf := func(name, class string, count int64, change ...func(*resourcev1.ResourceClaim)) *resourcev1.ResourceClaim {
		c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		c.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{
			DeviceClassName: class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count,
		}}}
		for _, f := range change {
			f(c)
		}
		return c
	}
	made := func(uid string) func(*resourcev1.ResourceClaim) {
		return func(c *resourcev1.ResourceClaim) {
			c.Annotations = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}
			c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: types.UID(uid), Controller: ptr.To(true)}}
		}
	}
	first, second := claimOf("a", "gpu", 2, made("p")), claimOf("b", "gpu", 2, made("p"))
	const explicit = "count/resourceclaims.resource.k8s.io=1 gpu.deviceclass.resource.k8s.io/devices=2 requests.deviceclass.resource.kubernetes.io/gpu=2"
	for name, c := range map[string]struct {
		claim *resourcev1.ResourceClaim
		says  string // the claim in the pod's status
		want  string
	}{
		"explicit":                    {claimOf("x", "gpu", 2), "", explicit + " requests.example.com/gpu=2"},
		"of no resource":              {claimOf("x", "nic", 3), "", "count/resourceclaims.resource.k8s.io=1 nic.deviceclass.resource.k8s.io/devices=3 requests.deviceclass.resource.kubernetes.io/nic=3"},
		"created for the pod":         {first, "", explicit},
		"second claim of the pod":     {second, "", explicit + " requests.example.com/gpu=2"},
		"named in the pod status":     {second, "b", explicit},
		"not named in the pod status": {first, "b", explicit + " requests.example.com/gpu=2"},
		"of a previous pod":           {claimOf("x", "gpu", 2, made("q")), "", explicit + " requests.example.com/gpu=2"},
		"more than the pod":           {claimOf("a", "gpu", 5, made("p")), "a", "count/resourceclaims.resource.k8s.io=1 gpu.deviceclass.resource.k8s.io/devices=5 requests.deviceclass.resource.kubernetes.io/gpu=5 requests.example.com/gpu=3"},
	} {
		pod := owner.DeepCopy()
		if c.says != "" {
			pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: c.says}
		}
		e := Claims(nil, Devices{
			Classes: func() ([]*resourcev1.DeviceClass, error) { return []*resourcev1.DeviceClass{class, other}, nil },
			Pod:     func(_, _ string) (*corev1.Pod, error) { return pod, nil },
			Claims: func(string) ([]*resourcev1.ResourceClaim, error) {
				return []*resourcev1.ResourceClaim{first, second}, nil
			},
			Now: clock,
		})
		if got, err := e.Usage(c.claim); err != nil || !quota.Equals(got, list(t, c.want)) {
			t.Errorf("%s: %v %v, want %s", name, got, err, c.want)
		}
		names := e.MatchingResources([]corev1.ResourceName{
			"pods", "requests.cpu", "requests.example.com/gpu", "requests.example.com/tpu", "requests.deviceclass.resource.kubernetes.io/gpu",
			"requests.deviceclass.resource.kubernetes.io/nic", "nic.deviceclass.resource.k8s.io/devices",
		})
		slices.Sort(names)
		if got := fmt.Sprint(names); got != "[nic.deviceclass.resource.k8s.io/devices requests.deviceclass.resource.kubernetes.io/gpu requests.example.com/gpu]" {
			t.Errorf("matching resources %s", got)
		}
	}
}
