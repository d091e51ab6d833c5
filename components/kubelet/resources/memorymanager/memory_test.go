package memorymanager

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"hyperkube/components/kubelet/resources/numa"
	"hyperkube/components/kubelet/resources/topology"
)

const gi = 1 << 30

var machine = numa.Machine{
	{ID: 0, Memory: map[v1.ResourceName]int64{"memory": 5 * gi, "hugepages-2Mi": gi}},
	{ID: 1, Memory: map[v1.ResourceName]int64{"memory": 4 * gi, "hugepages-2Mi": 0}},
}

func manager(t *testing.T, file string, active func() []*v1.Pod) *Manager {
	t.Helper()
	m, err := New(Config{
		Machine: machine, Reserved: map[int]map[v1.ResourceName]int64{0: {"memory": gi}}, File: file,
		Guaranteed: func(p *v1.Pod) bool { return p.UID != "loose" }, Active: active, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func pod(name string, memory ...string) *v1.Pod {
	p := &v1.Pod{}
	p.UID = types.UID(name)
	for i, n := range memory {
		c := v1.Container{Name: string(rune('a' + i))}
		n, pages, _ := strings.Cut(n, "+")
		c.Resources.Requests = v1.ResourceList{v1.ResourceMemory: resource.MustParse(n)}
		if pages != "" {
			c.Resources.Requests["hugepages-2Mi"] = resource.MustParse(pages)
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	return p
}

func allocate(m *Manager, p *v1.Pod, nodes numa.Set) error {
	var err error
	for c := range topology.Containers(p) {
		if err == nil {
			err = m.Allocate(nil, p, c, nodes) //nolint:staticcheck // it is not used
		}
	}
	return errors.Join(err, m.Settle(p, err == nil))
}

func TestHints(t *testing.T) {
	yes, no := func(s numa.Set) topology.Hint { return topology.Hint{Nodes: s, Preferred: true} }, func(s numa.Set) topology.Hint { return topology.Hint{Nodes: s} }
	m := manager(t, filepath.Join(t.TempDir(), "memory_manager_state"), func() []*v1.Pod { return []*v1.Pod{pod("taken", "3Gi")} })
	for _, c := range []struct {
		pod  *v1.Pod
		want []topology.Hint
	}{
		{pod("loose", "1Gi"), nil},
		{pod("p", "1Gi"), []topology.Hint{yes(1), yes(2), no(3)}},
		{pod("p", "1Gi+1Mi"), []topology.Hint{yes(1), no(3)}},
		{pod("p", "6Gi"), []topology.Hint{yes(3)}},
		{pod("p", "16Gi"), []topology.Hint{}},
	} {
		got := m.Hints(c.pod, &c.pod.Spec.Containers[0])["memory"]
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.pod.Spec.Containers[0].Resources.Requests, got, c.want)
		}
	}
	// A node that is allocated alone cannot be part of a group.
	if err := allocate(m, pod("taken", "3Gi"), 1); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]topology.Hint{"2Gi": {yes(2)}, "1Gi": {yes(1), yes(2)}, "5Gi": {}} {
		p := pod("p", name)
		if got := m.PodHints(p)["memory"]; !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

func TestManager(t *testing.T) {
	var active []*v1.Pod
	file := filepath.Join(t.TempDir(), "memory_manager_state")
	m := manager(t, file, func() []*v1.Pod { return active })
	for _, c := range []struct {
		pod   *v1.Pod
		nodes numa.Set
		want  numa.Set
		err   string
	}{
		{pod("loose", "1Gi"), 0, 0, ""},
		{pod("first", "3Gi", "1Gi+1Gi"), 1, 1, ""},
		{pod("second", "1Gi"), 0, 2, ""},
		{pod("third", "1Gi"), 1, 0, "[memorymanager] failed to find NUMA nodes to extend the current topology hint"},
		{pod("fourth", "4Gi"), 0, 0, "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"},
	} {
		err := allocate(m, c.pod, c.nodes)
		if (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
			t.Errorf("%s: %v", c.pod.UID, err)
		}
		if got := m.Nodes(c.pod.UID, "a"); got != c.want {
			t.Errorf("%s has memory on %v, want %v", c.pod.UID, got, c.want)
		}
		active = append(active, c.pod)
	}
	again := manager(t, file, func() []*v1.Pod { return active })
	if got := again.Blocks("first", "b"); len(got) != 2 || got[0].Type != "hugepages-2Mi" || got[1].Size != gi {
		t.Errorf("restored %v", got)
	}
	if some, err := HasAllocations(file); err != nil || !some {
		t.Errorf("given: %v, %v", some, err)
	}
	if some, err := HasAllocations(file + ".none"); err != nil || some {
		t.Errorf("assigned without a file: %v, %v", some, err)
	}
	if err := again.Release("first"); err != nil {
		t.Fatal(err)
	}
	active = active[2:] // the second pod and later ones
	// The memory of an init container is reused, and no memory is allocated twice.
	p := pod("reuse", "4Gi")
	p.Spec.InitContainers = pod("", "3Gi").Spec.Containers
	p.Spec.InitContainers[0].Name = "init"
	if err := allocate(again, p, 1); err != nil {
		t.Fatal(err)
	}
	nodes := machineState(machine, again.cfg.Reserved, again.assignments)
	if free := nodes[0].Memory["memory"].Free; free != 0 {
		t.Errorf("%d free", free)
	}
	// Reused memory is not allocated in addition.
	if err := again.Release("reuse"); err != nil {
		t.Fatal(err)
	}
	p = pod("reuse", "3Gi")
	p.Spec.InitContainers = pod("", "2Gi").Spec.Containers
	p.Spec.InitContainers[0].Name = "init"
	if err := allocate(again, p, 1); err != nil {
		t.Fatal(err)
	}
	nodes = machineState(machine, again.cfg.Reserved, again.assignments)
	if free := nodes[0].Memory["memory"].Free; free != gi {
		t.Errorf("%d free, want 1 Gi", free)
	}
	// Once both nodes are free they are allocated as a group, and then neither of them alone.
	active = nil
	if err := allocate(again, pod("wide", "6Gi"), 0); err != nil {
		t.Fatal(err)
	}
	active = []*v1.Pod{pod("wide", "6Gi")}
	if got := again.Nodes("wide", "a"); got != 3 {
		t.Errorf("wide on %v", got)
	}
	if err := allocate(again, pod("small", "1Gi"), 0); err != nil || again.Nodes("small", "a") != 3 {
		t.Errorf("small: %v on %v", err, again.Nodes("small", "a"))
	}
}

// TestTogether checks that containers that run concurrently do not get the same memory.
func TestTogether(t *testing.T) {
	m := manager(t, filepath.Join(t.TempDir(), "memory_manager_state"), func() []*v1.Pod { return nil })
	err := allocate(m, pod("twice", "3Gi", "3Gi"), 1)
	if err == nil || !strings.Contains(err.Error(), "[memorymanager] failed to find NUMA nodes to extend the current topology hint") {
		t.Errorf("allocated 6 Gi of a node with 4 Gi: %v, %v", m.assignments, err)
	}
	if len(m.assignments) != 0 {
		t.Errorf("a rejected pod has %v", m.assignments)
	}
}

func TestOtherMachine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "memory_manager_state")
	if err := os.WriteFile(file, []byte(`{"policyName":"Static","machineState":{"0":{"memoryMap":{}}},"entries":{"u":{"c":[{"numaAffinity":[0],"type":"memory","size":1}]}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := New(Config{Machine: machine, Reserved: map[int]map[v1.ResourceName]int64{0: {"memory": gi}}, File: file})
	if err == nil || !strings.Contains(err.Error(), "different from the real one") {
		t.Error(err)
	}
}

func TestReserve(t *testing.T) {
	for _, c := range []struct {
		given map[int]map[v1.ResourceName]int64
		all   map[v1.ResourceName]int64
		ok    bool
	}{
		{map[int]map[v1.ResourceName]int64{0: {"memory": 1}, 1: {"memory": 2}}, map[v1.ResourceName]int64{"memory": 3}, true},
		{map[int]map[v1.ResourceName]int64{0: {"memory": 1}}, map[v1.ResourceName]int64{"memory": 3}, false},
		{map[int]map[v1.ResourceName]int64{7: {"memory": 3}}, map[v1.ResourceName]int64{"memory": 3}, false},
		{map[int]map[v1.ResourceName]int64{0: {"memory": 3, "hugepages-2Mi": 1}}, map[v1.ResourceName]int64{"memory": 3}, false},
	} {
		if _, err := Reserve(machine, c.given, c.all); (err == nil) != c.ok {
			t.Errorf("%v: %v", c.given, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"policyName":"Static","entries":{"u":{"c":[{"numaAffinity":[0],"type":"memory","size":1}]}}}`))
	f.Fuzz(func(_ *testing.T, raw []byte) {
		if s, err := decode(raw); err == nil {
			machineState(machine, nil, s.Entries)
		}
	})
}

// TestHintsOfAllocated checks that a pod that was admitted before the kubelet's restart is
// admitted again with its memory, even if no other memory is free.
func TestHintsOfAllocated(t *testing.T) {
	file := filepath.Join(t.TempDir(), "memory_manager_state")
	p := pod("p", "3Gi+1Mi")
	active := func() []*v1.Pod { return []*v1.Pod{p} }
	if err := allocate(manager(t, file, active), p, 1); err != nil {
		t.Fatal(err)
	}
	m := manager(t, file, active)
	for what, hints := range map[string]topology.Hints{"the container": m.Hints(p, &p.Spec.Containers[0]), "the pod": m.PodHints(p)} {
		for _, kind := range []string{"memory", "hugepages-2Mi"} {
			if got := hints[kind]; !slices.Equal(got, []topology.Hint{{Nodes: 1, Preferred: true}}) {
				t.Errorf("%s, %s: %v", what, kind, got)
			}
		}
	}
	if got := m.Hints(pod("p", "2Gi"), &v1.Container{Name: "a", Resources: pod("p", "2Gi").Spec.Containers[0].Resources}); got != nil {
		t.Errorf("huge pages of another size: %v", got)
	}
}
