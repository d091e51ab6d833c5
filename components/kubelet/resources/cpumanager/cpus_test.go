package cpumanager

import (
	"context"
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
	"k8s.io/utils/cpuset"

	"hyperkube/components/kubelet/resources/numa"
	"hyperkube/components/kubelet/resources/topology"
)

// machine has two sockets of two cores of two threads: 0-3 are the first
// threads, 4-7 the second ones. Each socket is a NUMA node.
var machine = Topology{
	{0, 0, 0, 0, 0}, {1, 1, 0, 0, 0}, {2, 0, 1, 1, 2}, {3, 1, 1, 1, 2}, {4, 0, 0, 0, 0}, {5, 1, 0, 0, 0}, {6, 0, 1, 1, 2}, {7, 1, 1, 1, 2},
}

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		free string
		n    int
		want string
	}{
		{"0-7", 4, "0-1,4-5"},
		{"0-7", 2, "0,4"},
		{"1-7", 4, "2-3,6-7"},
		{"1-7", 1, "4"}, // another thread of core 0 is in use
		{"1-7", 3, "1,4-5"},
		{"0-7", 8, "0-7"},
		{"0-7", 0, ""},
		{"1,2,3", 2, "1-2"},
	} {
		free, err := cpuset.Parse(c.free)
		if err != nil {
			t.Fatal(err)
		}
		if got := machine.Choose(free, c.n, false).String(); got != c.want {
			t.Errorf("%d of %s: %s, want %s", c.n, c.free, got, c.want)
		}
	}
	if n := machine.Threads(); n != 2 {
		t.Errorf("%d threads", n)
	}
}

func pod(name string, cpus ...string) *v1.Pod {
	p := &v1.Pod{}
	p.UID = types.UID(name)
	for i, n := range cpus {
		c := v1.Container{Name: string(rune('a' + i))}
		c.Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse(n)}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	return p
}

// allocate allocates CPUs for a pod, and reports whether the shared pool has changed.
func allocate(m *Manager, p *v1.Pod, nodes numa.Set) (bool, error) {
	before := m.Shared()
	var err error
	for c := range topology.Containers(p) {
		if err == nil {
			err = m.Allocate(context.Background(), p, c, nodes)
		}
	}
	err = errors.Join(err, m.Settle(p, err == nil))
	return !before.Equals(m.Shared()), err
}

func TestManager(t *testing.T) {
	var active []*v1.Pod
	cfg := Config{
		Machine: machine, Reserved: cpuset.New(0), File: filepath.Join(t.TempDir(), "cpu_manager_state"),
		Guaranteed: func(p *v1.Pod) bool { return p.UID != "loose" }, Active: func() []*v1.Pod { return active },
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		pod     *v1.Pod
		changed bool
		err     string
	}{
		{pod("loose", "2"), false, ""},
		{pod("half", "1500m"), false, ""},
		{pod("one", "2", "100m", "1"), true, ""},
		{pod("two", "5"), false, "not enough cpus available to satisfy request: requested=5, available=4"},
	} {
		active = append(active, c.pod)
		changed, err := allocate(m, c.pod, 0)
		if changed != c.changed || (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
			t.Errorf("%s: %v, %v", c.pod.UID, changed, err)
		}
	}
	if set, own := m.Get("one", "a"); !own || set.Size() != 2 || set.Contains(0) {
		t.Errorf("a has %s, %v", set, own)
	}
	if set, own := m.Get("one", "b"); own || set.Size() != 5 || !set.Contains(0) {
		t.Errorf("b has %s, %v", set, own)
	}
	again, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if some, err := HasAllocations(cfg.File); err != nil || !some {
		t.Errorf("given: %v, %v", some, err)
	}
	if some, err := HasAllocations(cfg.File + ".none"); err != nil || some {
		t.Errorf("assigned without a file: %v, %v", some, err)
	}
	if set, own := again.Get("one", "a"); !own || set.Size() != 2 {
		t.Errorf("restored %s, %v", set, own)
	}
	if changed, err := again.Release("one"); !changed || err != nil {
		t.Errorf("released: %v, %v", changed, err)
	}
	if some, err := HasAllocations(cfg.File); err != nil || some {
		t.Errorf("assigned after all was released: %v, %v", some, err)
	}
	if set, _ := again.Get("x", "y"); set.Size() != 8 {
		t.Errorf("shared %s", set)
	}
	cfg.Machine = machine[:2]
	if err := os.WriteFile(cfg.File, []byte(`{"policyName":"static","entries":{"u":{"c":"7"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "are not a subset of the machine's") {
		t.Errorf("another machine: %v", err)
	}
}

// TestReleased checks that the CPUs of terminated pods are freed once all pods are known.
func TestReleased(t *testing.T) {
	var active []*v1.Pod
	known := false
	m, err := New(Config{
		Machine: machine, Reserved: cpuset.New(0), File: filepath.Join(t.TempDir(), "cpu_manager_state"),
		Guaranteed: func(*v1.Pod) bool { return true }, Active: func() []*v1.Pod { return active }, Known: func() bool { return known },
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	first, second := pod("first", "4"), pod("second", "5")
	active = []*v1.Pod{first}
	if _, err := allocate(m, first, 0); err != nil {
		t.Fatal(err)
	}
	active = nil
	if _, err := allocate(m, second, 0); err == nil {
		t.Error("CPUs were reassigned although the pod may still exist")
	}
	known, active = true, []*v1.Pod{first}
	if _, err := allocate(m, second, 0); err == nil {
		t.Error("CPUs of an existing pod were reassigned")
	}
	active = nil
	if _, err := allocate(m, second, 0); err != nil {
		t.Errorf("CPUs of a terminated pod: %v", err)
	}
	if _, own := m.Get("first", "a"); own {
		t.Error("a terminated pod has CPUs")
	}
}

// TestBeyondNodes checks that a container that prefers a NUMA node but needs more CPUs than it has
// gets all CPUs of that node and the rest from others.
func TestBeyondNodes(t *testing.T) {
	m := &Manager{cfg: Config{Machine: machine}}
	first := machine.In(numa.Of(0))
	for n := 1; n <= machine.All().Size(); n++ {
		got, err := m.choose(machine.All(), cpuset.New(), n, numa.Of(0))
		if err != nil || got.Size() != n || got.Intersection(first).Size() != min(n, first.Size()) {
			t.Errorf("%d CPUs: %s, %v", n, got, err)
		}
	}
}

func TestWholeCores(t *testing.T) {
	m := &Manager{cfg: Config{Machine: machine, FullPCPUsOnly: true}}
	var align *AlignmentError
	if _, err := m.choose(machine.All(), cpuset.New(), 3, 0); !errors.As(err, &align) || align.Threads != 2 {
		t.Errorf("three: %v", err)
	}
}

func TestReadTopology(t *testing.T) {
	top, err := Read("/sys/devices/system/cpu")
	if err != nil || len(top) == 0 {
		t.Errorf("%v, %v", top, err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"policyName":"static","entries":{"u":{"c":"0-3"}}}`))
	f.Fuzz(func(_ *testing.T, raw []byte) { _, _ = decode(raw) })
}

func TestHints(t *testing.T) {
	m, err := New(Config{
		Machine: machine, Reserved: cpuset.New(0), File: filepath.Join(t.TempDir(), "cpu_manager_state"),
		Guaranteed: func(*v1.Pod) bool { return true }, Active: func() []*v1.Pod { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		pod  *v1.Pod
		want []topology.Hint
	}{
		{pod("p", "100m"), nil},
		{pod("p", "2"), []topology.Hint{{Nodes: 1, Preferred: true}, {Nodes: 2, Preferred: true}, {Nodes: 3}}},
		{pod("p", "4"), []topology.Hint{{Nodes: 2, Preferred: true}, {Nodes: 3}}},
		{pod("p", "5"), []topology.Hint{{Nodes: 3, Preferred: true}}},
		{pod("p", "8"), []topology.Hint{}},
	} {
		got := m.Hints(c.pod, &c.pod.Spec.Containers[0])["cpu"]
		if !slices.Equal(got, c.want) || (got == nil) != (c.want == nil) {
			t.Errorf("%v: %v, want %v", c.pod.Spec.Containers[0].Resources.Requests, got, c.want)
		}
	}
	// The preferred node is used first, the other one only for the rest.
	p := pod("near", "2", "3")
	if _, err := allocate(m, p, 2); err != nil {
		t.Fatal(err)
	}
	if a, _ := m.Get("near", "a"); !a.IsSubsetOf(machine.In(2)) {
		t.Errorf("a has %s", a)
	}
	if b, _ := m.Get("near", "b"); b.Intersection(machine.In(2)).Size() != 2 {
		t.Errorf("b has %s", b)
	}
	// The CPUs of an init container are reused.
	again := pod("again", "1")
	again.Spec.InitContainers = pod("", "2").Spec.Containers
	again.Spec.InitContainers[0].Name = "init"
	if _, err := allocate(m, again, 0); err != nil {
		t.Fatal(err)
	}
	first, _ := m.Get("again", "init")
	if second, _ := m.Get("again", "a"); !second.IsSubsetOf(first) {
		t.Errorf("%s after %s", second, first)
	}
	if n := m.PodHints(again)["cpu"]; len(n) == 0 {
		t.Error("no hints for the pod that has its CPUs")
	}
}

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		n, group int
		want     int // CPUs on the first node
	}{{2, 1, 2}, {6, 1, 3}, {6, 2, 4}, {8, 2, 4}} {
		got := machine.Spread(machine.All(), c.n, c.group, false)
		if got.Size() != c.n || got.Intersection(machine.In(1)).Size() != c.want {
			t.Errorf("%d by %d: %s", c.n, c.group, got)
		}
	}
}

// TestHintsOfAllocated checks that a pod that was admitted before the kubelet's restart is
// admitted again with its CPUs, even if no other CPUs are free.
func TestHintsOfAllocated(t *testing.T) {
	p := pod("p", "3")
	config := Config{
		Machine: machine, Reserved: cpuset.New(0), File: filepath.Join(t.TempDir(), "cpu_manager_state"), Guaranteed: func(*v1.Pod) bool { return true },
		Active: func() []*v1.Pod { return []*v1.Pod{p} }, Log: slog.New(slog.DiscardHandler),
	}
	before, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := allocate(before, p, 2); err != nil {
		t.Fatal(err)
	}
	m, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	want := []topology.Hint{{Nodes: 2, Preferred: true}, {Nodes: 3}}
	if got := m.Hints(p, &p.Spec.Containers[0])["cpu"]; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := m.PodHints(p)["cpu"]; !slices.Equal(got, want) {
		t.Errorf("total %v, want %v", got, want)
	}
	if got := m.Hints(p, &pod("p", "2").Spec.Containers[0])["cpu"]; got == nil || len(got) > 0 {
		t.Errorf("another number: %v", got)
	}
	// Allocated CPUs cannot become reserved ones.
	_, own := m.Get("p", "a")
	if !own {
		t.Fatal("not saved")
	}
	config.Reserved = machine.All()
	if _, err := New(config); err == nil || !strings.Contains(err.Error(), "not all reserved cpus") {
		t.Errorf("%v", err)
	}
}
