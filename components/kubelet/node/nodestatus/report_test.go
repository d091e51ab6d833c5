package nodestatus

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes/fake"
)

func TestRelabel(t *testing.T) {
	own := map[string]string{v1.LabelOSStable: osName, v1.LabelArchStable: archName}
	for name, c := range map[string]struct {
		labels map[string]string
		patch  string
	}{
		"unchanged":      {maps.Clone(own), `{}`},
		"without labels": {nil, `{"metadata":{"labels":{"kubernetes.io/arch":"` + archName + `","kubernetes.io/os":"` + osName + `"}}}`},
		"another system": {
			map[string]string{v1.LabelOSStable: "plan9", v1.LabelArchStable: archName, "kept": "yes"},
			`{"metadata":{"labels":{"kubernetes.io/os":"` + osName + `"}}}`,
		},
	} {
		have := &v1.Node{ObjectMeta: metav1.ObjectMeta{Labels: c.labels}}
		want := have.DeepCopy()
		if changed := relabel(want); changed != (c.patch != `{}`) {
			t.Errorf("%s: changed is %v", name, changed)
		}
		patch, err := statusPatch(have, want)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if string(patch) != c.patch {
			t.Errorf("%s: the patch is %s, want %s", name, patch, c.patch)
		}
	}
}

// TestZero checks that extended resources of a Node are reset when the machine was set up again.
func TestZero(t *testing.T) {
	some := v1.ResourceList{"example.com/dongle": resource.MustParse("4"), v1.ResourceCPU: resource.MustParse("2"), "hugepages-2Mi": resource.MustParse("4Mi")}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: v1.NodeStatus{Capacity: some, Allocatable: some}}
	k := New(Config{Name: "n", Kube: fake.NewClientset(node)})
	got, err := k.resetExtendedResources(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range []v1.ResourceList{got.Status.Capacity, got.Status.Allocatable} {
		dongle, cpu, pages := list["example.com/dongle"], list[v1.ResourceCPU], list["hugepages-2Mi"]
		if !dongle.IsZero() || cpu.Value() != 2 || pages.Value() != 4<<20 {
			t.Errorf("got %v", list)
		}
	}
	if again, err := k.resetExtendedResources(t.Context(), got); err != nil || again != got {
		t.Errorf("again: %v, %v", again, err)
	}
}

// TestReconcile checks that changed labels of an existing Node are kept, except those that describe
// the machine.
func TestReconcile(t *testing.T) {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{
		"team": "blue", "kept": "yes", v1.LabelTopologyZone: "old", v1.LabelArchStable: "vax",
	}}}
	k := New(Config{
		Name: "n", Kube: fake.NewClientset(node),
		Registration: Registration{
			Labels: map[string]string{"team": "red", "late": "yes", v1.LabelTopologyZone: "new"}, Annotations: map[string]string{"a": "b"},
		},
	})
	got, err := k.reconcile(t.Context(), node, &v1.Node{ObjectMeta: metav1.ObjectMeta{Labels: k.labels(), Annotations: k.cfg.Registration.Annotations}})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"team": "blue", "kept": "yes", v1.LabelTopologyZone: "new", v1.LabelHostname: "n",
		v1.LabelOSStable: osName, v1.LabelArchStable: archName, betaOS: osName, betaArch: archName,
	}
	if !maps.Equal(got.Labels, want) || got.Annotations["a"] != "b" {
		t.Errorf("labels %v, annotations %v; want labels %v", got.Labels, got.Annotations, want)
	}
	if again, err := k.reconcile(t.Context(), got, &v1.Node{ObjectMeta: metav1.ObjectMeta{Labels: k.labels(), Annotations: k.cfg.Registration.Annotations}}); err != nil || again != got {
		t.Errorf("again: %v, %v", again, err)
	}
}

// TestSame checks that heartbeats and the order of conditions are ignored, and that other changes
// are detected.
func TestSame(t *testing.T) {
	status := func(change func(*v1.NodeStatus)) *v1.NodeStatus {
		s := &v1.NodeStatus{Conditions: []v1.NodeCondition{
			{Type: v1.NodeReady, Status: v1.ConditionTrue, LastHeartbeatTime: metav1.Unix(1, 0)}, {Type: v1.NodeDiskPressure, Status: v1.ConditionFalse},
		}}
		change(s)
		return s
	}
	old := status(func(*v1.NodeStatus) {})
	for name, tc := range map[string]struct {
		change func(*v1.NodeStatus)
		same   bool
	}{
		"nothing":       {func(*v1.NodeStatus) {}, true},
		"a heartbeat":   {func(s *v1.NodeStatus) { s.Conditions[0].LastHeartbeatTime = metav1.Unix(2, 0) }, true},
		"another order": {func(s *v1.NodeStatus) { slices.Reverse(s.Conditions) }, true},
		"not ready":     {func(s *v1.NodeStatus) { s.Conditions[0].Status = v1.ConditionFalse }, false},
		"a transition":  {func(s *v1.NodeStatus) { s.Conditions[0].LastTransitionTime = metav1.Unix(2, 0) }, false},
		"an address":    {func(s *v1.NodeStatus) { s.Addresses = []v1.NodeAddress{{Address: "10.0.0.1"}} }, false},
	} {
		changed := status(tc.change)
		before := changed.DeepCopy()
		if got := equalIgnoringHeartbeats(old, changed); got != tc.same {
			t.Errorf("%s: equal is %v", name, got)
		}
		if !apiequality.Semantic.DeepEqual(before, changed) {
			t.Errorf("%s: the comparison modified it", name)
		}
	}
}

// TestStatusPatch applies patches and checks that the addresses are those of the new status, in its
// order, even if several have the same type.
func TestStatusPatch(t *testing.T) {
	node := func(label string, addresses ...string) *v1.Node {
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"l": label}}}
		for _, a := range addresses {
			n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: a})
		}
		return n
	}
	for _, tc := range []struct{ have, want *v1.Node }{
		{node("a", "10.0.0.1"), node("b", "10.0.0.1")},
		{node("a", "10.0.0.1"), node("a", "10.0.0.1", "fd00::1")},
		{node("a", "10.0.0.1", "fd00::1"), node("a", "fd00::1", "10.0.0.1")},
		{node("a", "10.0.0.1", "fd00::1"), node("a", "10.0.0.2")},
		{node("a", "10.0.0.1"), node("a")},
	} {
		patch, err := statusPatch(tc.have, tc.want)
		if err != nil {
			t.Fatal(err)
		}
		before, err := json.Marshal(tc.have)
		if err != nil {
			t.Fatal(err)
		}
		after, err := strategicpatch.StrategicMergePatch(before, patch, v1.Node{})
		if err != nil {
			t.Fatal(err)
		}
		var got v1.Node
		if err := json.Unmarshal(after, &got); err != nil {
			t.Fatal(err)
		}
		if !apiequality.Semantic.DeepEqual(&got, tc.want) {
			t.Errorf("%s makes %v %v, want %v %v", patch, got.Labels, got.Status.Addresses, tc.want.Labels, tc.want.Status.Addresses)
		}
	}
}
