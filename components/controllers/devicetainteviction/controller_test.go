package devicetainteviction

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"hyperkube/components/controllers/internal/controltest"
)

var broken = resourcev1.DeviceTaint{Key: "broken", Effect: resourcev1.DeviceTaintEffectNoExecute, TimeAdded: ptr.To(metav1.NewTime(controltest.Now))}

func TestEvictsAt(t *testing.T) {
	toleration := func(key string, seconds *int64) resourcev1.DeviceToleration {
		return resourcev1.DeviceToleration{Key: key, Operator: resourcev1.DeviceTolerationOpExists, TolerationSeconds: seconds}
	}
	other := broken
	other.Effect = resourcev1.DeviceTaintEffectNoSchedule
	for name, tc := range map[string]struct {
		taint       resourcev1.DeviceTaint
		tolerations []resourcev1.DeviceToleration
		wait        time.Duration
		evicts      bool
	}{
		"not tolerated":         {taint: broken, evicts: true},
		"no effect on pods":     {taint: other},
		"other taint":           {taint: broken, tolerations: []resourcev1.DeviceToleration{toleration("slow", nil)}, evicts: true},
		"tolerated":             {taint: broken, tolerations: []resourcev1.DeviceToleration{toleration("broken", nil)}},
		"tolerated for a while": {taint: broken, tolerations: []resourcev1.DeviceToleration{toleration("broken", ptr.To[int64](60)), toleration("", ptr.To[int64](30))}, wait: 30 * time.Second, evicts: true},
		"negative is zero":      {taint: broken, tolerations: []resourcev1.DeviceToleration{toleration("broken", ptr.To[int64](-1))}, evicts: true},
	} {
		at, evicts := evictsAt(tc.taint, tc.tolerations)
		if evicts != tc.evicts || evicts && !at.Equal(controltest.Now.Add(tc.wait)) {
			t.Errorf("%s: %v, %v", name, at, evicts)
		}
	}
}

func claim(tolerations ...resourcev1.DeviceToleration) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "c"},
		Status: resourcev1.ResourceClaimStatus{
			Allocation: &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
				{Request: "r", Driver: "d", Pool: "p", Device: "one", Tolerations: tolerations}}}},
			ReservedFor: []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "ns/p"}, {Resource: "pods", Name: "gone", UID: "gone"}},
		},
	}
}

func slice(generation int64, taints ...resourcev1.DeviceTaint) *resourcev1.ResourceSlice {
	return &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "s" + string(rune('0'+generation))},
		Spec: resourcev1.ResourceSliceSpec{Driver: "d", Pool: resourcev1.ResourcePool{Name: "p", Generation: generation, ResourceSliceCount: 1},
			Devices: []resourcev1.Device{{Name: "one", Taints: taints}, {Name: "two", Taints: []resourcev1.DeviceTaint{broken}}}},
	}
}

// TestDriver: only the taints of the device itself, and of the newest generation of a pool, count.
func TestDriver(t *testing.T) {
	f := controltest.New(t)
	c, err := New(f.Env)
	if err != nil {
		t.Fatal(err)
	}
	p := controltest.Pod("ns", "p", nil, corev1.PodRunning)
	p.UID = "ns/p"
	f.Add(p)
	f.Cache(claim(resourcev1.DeviceToleration{Operator: resourcev1.DeviceTolerationOpExists, TolerationSeconds: ptr.To[int64](60)}))
	f.Cache(slice(1, broken))
	sync := func() []string {
		t.Helper()
		if err := controltest.Sync(t, c.Loop, "claim:ns/c"); err != nil {
			t.Fatal(err)
		}
		return f.Writes()
	}
	if w := sync(); len(w) != 0 {
		t.Errorf("evicted immediately: %v", w)
	}
	f.Cache(slice(2))
	if w := sync(); len(w) != 0 {
		t.Errorf("evicted: %v", w)
	}
	if e := f.Recorded(); len(e) != 1 || e[0] != "Normal DeviceTaintManagerEviction Cancelling deletion" {
		t.Errorf("events %q", e)
	}
	f.Cache(slice(3, broken))
	f.Clock.SetTime(controltest.Now.Add(time.Minute))
	if w := sync(); len(w) != 2 || w[0] != "patch pods/status p" || w[1] != "delete pods p" {
		t.Errorf("writes %v", w)
	}
	if e := f.Recorded(); len(e) != 1 || e[0] != "Normal DeviceTaintManagerEviction Marking for deletion" {
		t.Errorf("events %q", e)
	}
}

func TestRule(t *testing.T) {
	f := controltest.New(t)
	c, err := New(f.Env)
	if err != nil {
		t.Fatal(err)
	}
	p := controltest.Pod("ns", "p", nil, corev1.PodRunning)
	p.UID = "ns/p"
	f.Add(p)
	f.Cache(claim())
	rule := func(effect resourcev1.DeviceTaintEffect, generation int64) *resourcev1.DeviceTaintRule {
		r := &resourcev1.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "r", UID: "r", Generation: generation},
			Spec: resourcev1.DeviceTaintRuleSpec{DeviceSelector: &resourcev1.DeviceTaintSelector{Driver: ptr.To("d")}, Taint: broken}}
		r.Spec.Taint.Effect = effect
		return r
	}
	status := func() metav1.Condition {
		t.Helper()
		if err := controltest.Sync(t, c.Loop, "rule:r"); err != nil {
			t.Fatal(err)
		}
		got, err := f.Kube.ResourceV1().DeviceTaintRules().Get(t.Context(), "r", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		f.Cache(got)
		if len(got.Status.Conditions) != 1 {
			t.Fatalf("%+v", got.Status)
		}
		return got.Status.Conditions[0]
	}
	f.Add(rule(resourcev1.DeviceTaintEffectNone, 1))
	if s := status(); s.Status != metav1.ConditionFalse || s.Reason != "NoEffect" ||
		s.Message != "1 allocated device selected. 1 pod in 1 namespace would be evicted if the effect was NoExecute. This information is updated only when the rule changes." {
		t.Errorf("%+v", s)
	}
	f.Cache(rule(resourcev1.DeviceTaintEffectNoExecute, 2))
	if s := status(); s.Status != metav1.ConditionTrue || s.Message != "1 pod in 1 namespace to be evicted. 0 pods evicted since starting the controller." {
		t.Errorf("%+v", s)
	}
	f.Writes()
	if err := controltest.Sync(t, c.Loop, "claim:ns/c"); err != nil {
		t.Fatal(err)
	}
	if w := f.Writes(); len(w) != 2 || w[1] != "delete pods p" {
		t.Errorf("writes %v", w)
	}
	gone := p.DeepCopy()
	gone.DeletionTimestamp = ptr.To(metav1.NewTime(controltest.Now))
	f.Cache(gone)
	if s := status(); s.Status != metav1.ConditionFalse || s.Message != "1 pod evicted since starting the controller." {
		t.Errorf("%+v", s)
	}
}

// TestPodSeen: the claims of a pod are synced when the pod is created, and the state of a rule is
// dropped when the rule is deleted.
func TestPodSeen(t *testing.T) {
	f := controltest.New(t)
	c, err := New(f.Env)
	if err != nil {
		t.Fatal(err)
	}
	p := controltest.Pod("ns", "p", nil, corev1.PodRunning)
	p.UID = "ns/p"
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: ptr.To("c")}}
	f.Cache(claim(resourcev1.DeviceToleration{Operator: resourcev1.DeviceTolerationOpExists, TolerationSeconds: ptr.To[int64](60)}))
	f.Cache(slice(1, broken))
	f.Clock.SetTime(controltest.Now.Add(time.Minute))
	if err := controltest.Sync(t, c.Loop, "claim:ns/c"); err != nil {
		t.Fatal(err)
	}
	f.Add(p)
	c.enqueueClaims(p)
	if err := c.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if w := f.Writes(); len(w) != 2 || w[1] != "delete pods p" {
		t.Errorf("writes %v", w)
	}
}
