package cpus

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

	"hyperkube/components/kubelet/numa"
	"hyperkube/components/kubelet/topology"
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
		{"1-7", 1, "4"}, // the core of 0 is in use
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

// allocate gives a pod its CPUs, and tells whether those of others have changed.
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
	if set, own := m.Of("one", "a"); !own || set.Size() != 2 || set.Contains(0) {
		t.Errorf("a has %s, %v", set, own)
	}
	if set, own := m.Of("one", "b"); own || set.Size() != 5 || !set.Contains(0) {
		t.Errorf("b has %s, %v", set, own)
	}
	again, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if some, err := Given(cfg.File); err != nil || !some {
		t.Errorf("given: %v, %v", some, err)
	}
	if some, err := Given(cfg.File + ".none"); err != nil || some {
		t.Errorf("given without a file: %v, %v", some, err)
	}
	if set, own := again.Of("one", "a"); !own || set.Size() != 2 {
		t.Errorf("remembered %s, %v", set, own)
	}
	if changed, err := again.Release("one"); !changed || err != nil {
		t.Errorf("released: %v, %v", changed, err)
	}
	if some, err := Given(cfg.File); err != nil || some {
		t.Errorf("given after all was released: %v, %v", some, err)
	}
	if set, _ := again.Of("x", "y"); set.Size() != 8 {
		t.Errorf("shared %s", set)
	}
	cfg.Machine = machine[:2]
	if err := os.WriteFile(cfg.File, []byte(`{"policyName":"static","entries":{"u":{"c":"7"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "not all of the machine's") {
		t.Errorf("another machine: %v", err)
	}
}

// TestGivenBack: the CPUs of pods that have ended are free once all pods are known.
func TestGivenBack(t *testing.T) {
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
		t.Error("CPUs of a pod were given away that may be there")
	}
	known, active = true, []*v1.Pod{first}
	if _, err := allocate(m, second, 0); err == nil {
		t.Error("CPUs of a pod were given away that is there")
	}
	active = nil
	if _, err := allocate(m, second, 0); err != nil {
		t.Errorf("CPUs of a pod that has ended: %v", err)
	}
	if _, own := m.Of("first", "a"); own {
		t.Error("who has ended has CPUs")
	}
}

// TestBeyondNodes: who is to have the CPUs of a node, and needs more than it has, gets as
// many as were asked for, all of the node's among them.
func TestBeyondNodes(t *testing.T) {
	m := &Manager{cfg: Config{Machine: machine}}
	first := machine.In(numa.Of(0))
	for n := 1; n <= machine.All().Size(); n++ {
		got, err := m.take(machine.All(), cpuset.New(), n, numa.Of(0))
		if err != nil || got.Size() != n || got.Intersection(first).Size() != min(n, first.Size()) {
			t.Errorf("%d CPUs: %s, %v", n, got, err)
		}
	}
}

func TestWholeCores(t *testing.T) {
	m := &Manager{cfg: Config{Machine: machine, WholeCores: true}}
	var align *AlignmentError
	if _, err := m.take(machine.All(), cpuset.New(), 3, 0); !errors.As(err, &align) || align.Threads != 2 {
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
	// A node that is named is used, and the other one only for the rest.
	p := pod("near", "2", "3")
	if _, err := allocate(m, p, 2); err != nil {
		t.Fatal(err)
	}
	if a, _ := m.Of("near", "a"); !a.IsSubsetOf(machine.In(2)) {
		t.Errorf("a has %s", a)
	}
	if b, _ := m.Of("near", "b"); b.Intersection(machine.In(2)).Size() != 2 {
		t.Errorf("b has %s", b)
	}
	// What an init container has is used again.
	again := pod("again", "1")
	again.Spec.InitContainers = pod("", "2").Spec.Containers
	again.Spec.InitContainers[0].Name = "init"
	if _, err := allocate(m, again, 0); err != nil {
		t.Fatal(err)
	}
	first, _ := m.Of("again", "init")
	if second, _ := m.Of("again", "a"); !second.IsSubsetOf(first) {
		t.Errorf("%s after %s", second, first)
	}
	if n := m.PodHints(again)["cpu"]; len(n) == 0 {
		t.Error("no hints for the pod that has its CPUs")
	}
}

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		n, group int
		want     int // of the first node
	}{{2, 1, 2}, {6, 1, 3}, {6, 2, 4}, {8, 2, 4}} {
		got := machine.Spread(machine.All(), c.n, c.group, false)
		if got.Size() != c.n || got.Intersection(machine.In(1)).Size() != c.want {
			t.Errorf("%d by %d: %s", c.n, c.group, got)
		}
	}
}

// TestHintsOfWhatIsGiven: a pod that the kubelet before has admitted is let in again
// where it is, though there would be no room for it beside itself.
func TestHintsOfWhatIsGiven(t *testing.T) {
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
		t.Errorf("as a whole %v, want %v", got, want)
	}
	if got := m.Hints(p, &pod("p", "2").Spec.Containers[0])["cpu"]; got == nil || len(got) > 0 {
		t.Errorf("another number: %v", got)
	}
	// CPUs that are somebody's cannot become reserved ones.
	_, own := m.Of("p", "a")
	if !own {
		t.Fatal("it is not remembered")
	}
	config.Reserved = machine.All()
	if _, err := New(config); err == nil || !strings.Contains(err.Error(), "not all reserved cpus") {
		t.Errorf("%v", err)
	}
}
