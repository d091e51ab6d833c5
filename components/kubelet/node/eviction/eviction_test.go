package eviction

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
)

func TestThresholds(t *testing.T) {
	for _, c := range []struct {
		name string
		in   Settings
		want int
		err  string
	}{
		{"quantities and percentages", Settings{Hard: map[string]string{"memory.available": "100Mi", "nodefs.available": "10%"}}, 2, ""},
		{"none", Settings{Hard: map[string]string{"memory.available": "0%", "pid.available": "100%"}}, 0, ""},
		{"soft", Settings{Soft: map[string]string{"memory.available": "1Gi"}, SoftGrace: map[string]string{"memory.available": "30s"}}, 1, ""},
		{"soft threshold without grace period", Settings{Soft: map[string]string{"memory.available": "1Gi"}}, 0, "grace period must be specified"},
		{"unknown signal", Settings{Hard: map[string]string{"disk.available": "1Gi"}}, 0, "unsupported signal"},
		{"internal signal", Settings{Hard: map[string]string{"allocatableMemory.available": "1Gi"}}, 0, "unsupported signal"},
		{"invalid percentage", Settings{Hard: map[string]string{"memory.available": "110%"}}, 0, "invalid percentage"},
		{"invalid quantity", Settings{Hard: map[string]string{"memory.available": "NaN%"}}, 0, "invalid percentage"},
		{"negative", Settings{Hard: map[string]string{"memory.available": "-1"}}, 0, "must not be negative"},
		{"nothing", Settings{Hard: map[string]string{"memory.available": "0"}}, 0, "must be positive"},
		{"zero percent", Settings{MinimumReclaim: map[string]string{"memory.available": "0%"}}, 0, "must be positive"},
		{"negative grace period", Settings{SoftGrace: map[string]string{"memory.available": "-1s"}}, 0, "must not be negative"},
	} {
		got, err := c.in.Thresholds()
		if len(got) != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, %v", c.name, got, err)
		}
	}
}

func TestStep(t *testing.T) {
	reclaim := Value{Quantity: resource.MustParse("50")}
	all := []Threshold{
		{Signal: NodeFsAvailable, Value: Value{Percent: 10}},
		{Signal: MemoryAvailable, Value: Value{Quantity: resource.MustParse("100")}, Reclaim: &reclaim},
		{Signal: MemoryAvailable, Value: Value{Quantity: resource.MustParse("200")}, Grace: time.Minute},
	}
	var s State
	start := time.Unix(1000, 0)
	for i, c := range []struct {
		at           int // seconds
		memory, disk int64
		due          []int64 // thresholds met: memory in bytes, disk in percent
		conditions   string
	}{
		{0, 500, 50, nil, ""},
		{10, 150, 50, nil, "MemoryPressure"},          // within the soft threshold's grace period
		{60, 150, 50, nil, "MemoryPressure"},          // still within it
		{70, 150, 50, []int64{200}, "MemoryPressure"}, // the grace period has expired
		{80, 90, 5, []int64{100, 200, 10}, "DiskPressure MemoryPressure"},
		{90, 120, 50, []int64{100, 200}, "DiskPressure MemoryPressure"}, // less than the minimum reclaim
		{100, 500, 50, nil, "DiskPressure MemoryPressure"},              // until the transition period has expired
		{380, 500, 50, nil, "MemoryPressure"},
		{400, 500, 50, nil, ""},
		{410, 150, 50, nil, "MemoryPressure"}, // the grace period starts again
	} {
		now := map[Signal]Observation{MemoryAvailable: {c.memory, 1000}, NodeFsAvailable: {c.disk, 100}}
		due := s.Step(all, now, start.Add(time.Duration(c.at)*time.Second), 300*time.Second)
		var got []int64
		for _, d := range due {
			got = append(got, d.Value.Of(100))
		}
		var names []string
		for _, n := range s.Conditions() {
			names = append(names, string(n))
		}
		if len(got) != len(c.due) || strings.Join(names, " ") != c.conditions {
			t.Fatalf("step %d: due %v, want %v; conditions %v, want %q", i, got, c.due, names, c.conditions)
		}
		for j := range got {
			if got[j] != c.due[j] {
				t.Errorf("step %d: due %v, want %v", i, got, c.due)
			}
		}
	}
}

func pod(name string, priority int32, request string) *v1.Pod {
	p := &v1.Pod{}
	p.Name, p.UID, p.Spec.Priority = name, types.UID(name), &priority
	c := v1.Container{Name: "c"}
	if request != "" {
		c.Resources.Requests = v1.ResourceList{v1.ResourceMemory: resource.MustParse(request)}
	}
	p.Spec.Containers = []v1.Container{c}
	return p
}

func TestRank(t *testing.T) {
	list := func() []*Candidate {
		return []*Candidate{
			{Pod: pod("within", 0, "1Gi"), Memory: 900 << 20, Processes: 5, Measured: true},
			{Pod: pod("over", 0, "100Mi"), Memory: 200 << 20, Processes: 50, Measured: true},
			{Pod: pod("far-over", 0, ""), Memory: 500 << 20, Processes: 1, Measured: true},
			{Pod: pod("important", 1000, ""), Memory: 4 << 30, Processes: 500, Measured: true},
			{Pod: pod("unknown", 2000, "")},
		}
	}
	for short, want := range map[Signal]string{
		MemoryAvailable: "unknown far-over over important within",
		PIDAvailable:    "unknown over within far-over important",
	} {
		got := list()
		rank(got, short, Disks{})
		var names []string
		for _, c := range got {
			names = append(names, c.Pod.Name)
		}
		if strings.Join(names, " ") != want {
			t.Errorf("%s: %v, want %s", short, names, want)
		}
	}
}

func TestExplain(t *testing.T) {
	c := &Candidate{Pod: pod("p", 0, "100Mi"), Measured: true, Memory: 160 << 20, Containers: []Usage{{Name: "c", Memory: 150 << 20}, {Name: "gone", Memory: 1}}}
	message, notes := explain(c, Threshold{Signal: MemoryAvailable, Value: Value{Quantity: resource.MustParse("1Gi")}},
		map[Signal]Observation{MemoryAvailable: {512 << 20, 4 << 30}})
	want := "The node was low on resource: memory. Threshold quantity: 1Gi, available: 512Mi. Container c was using 150Mi, request is 100Mi, has larger consumption of memory. "
	if message != want {
		t.Errorf("message %q", message)
	}
	if notes["offending_containers"] != "c" || notes["starved_resource"] != "memory" || notes["offending_containers_usage"] != "150Mi" {
		t.Errorf("notes %v", notes)
	}

	message, _ = explain(c, Threshold{Signal: MemoryAvailable, Value: Value{Percent: 25}}, map[Signal]Observation{MemoryAvailable: {512 << 20, 4 << 30}})
	if !strings.HasPrefix(message, "The node was low on resource: memory. Threshold quantity: 1Gi, available: 512Mi. ") {
		t.Errorf("percentage threshold: %q", message)
	}

	c.Pod.Spec.Resources = &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceMemory: resource.MustParse("120Mi")}}
	message, notes = explain(c, Threshold{Signal: MemoryAvailable}, nil)
	want = "The node was low on resource: memory. Pod p was using 160Mi, request is 120Mi, has larger consumption of memory. Container c was using 150Mi, request is 100Mi, has larger consumption of memory. "
	if message != want || notes["offending_pod"] != "p" || notes["offending_pod_usage"] != "160Mi" {
		t.Errorf("pod-level resources: %q, %v", message, notes)
	}
	c.Measured = false
	if message, notes = explain(c, Threshold{Signal: MemoryAvailable}, nil); message != "The node was low on resource: memory. " || len(notes) != 0 {
		t.Errorf("pod without stats: %q, %v", message, notes)
	}
}

// TestSoftThreshold checks that a soft threshold that was not acted on is no longer met as soon as
// its value is available again, regardless of the minimum reclaim.
func TestSoftThreshold(t *testing.T) {
	reclaim := Value{Quantity: resource.MustParse("500")}
	all := []Threshold{{Signal: MemoryAvailable, Value: Value{Quantity: resource.MustParse("200")}, Grace: time.Minute, Reclaim: &reclaim}}
	var s State
	start := time.Unix(1000, 0)
	for i, c := range []struct {
		at   int
		left int64
		due  bool
	}{
		{0, 100, false}, {30, 300, false}, {60, 300, false}, {70, 100, false}, {120, 100, false}, {130, 100, true}, {140, 300, true}, {150, 800, false},
	} {
		due := s.Step(all, map[Signal]Observation{MemoryAvailable: {c.left, 1000}}, start.Add(time.Duration(c.at)*time.Second), time.Second)
		if (len(due) > 0) != c.due {
			t.Errorf("step %d: due %v", i, due)
		}
	}
}

// TestDisks checks that only files on the file system of the signal count for the ranking of pods
// and are removed before a pod is evicted.
func TestDisks(t *testing.T) {
	list := func() []*Candidate {
		one := func(name string, layer, logs, volumes int64) *Candidate {
			return &Candidate{Pod: pod(name, 0, ""), Measured: true, Containers: []Usage{{Name: "c", Layer: Files{layer, layer}, Logs: Files{logs, logs}}}, Volumes: Files{volumes, volumes}}
		}
		return []*Candidate{one("none", 0, 0, 0), one("layers", 70, 0, 0), one("logs", 0, 60, 0), one("volumes", 0, 0, 50)}
	}
	for _, c := range []struct {
		disks Disks
		at    Signal
		want  string
		room  Reclaim
	}{
		{Disks{}, NodeFsAvailable, "layers logs volumes none", Reclaim{true, true}},
		{Disks{}, ImageFsInodesFree, "layers logs volumes none", Reclaim{true, true}},
		{Disks{Images: true}, NodeFsAvailable, "logs volumes none layers", Reclaim{}},
		{Disks{Images: true}, NodeFsInodesFree, "logs volumes none layers", Reclaim{}},
		{Disks{Images: true}, ImageFsAvailable, "layers none logs volumes", Reclaim{true, true}},
		{Disks{Images: true, Layers: true}, NodeFsAvailable, "layers logs volumes none", Reclaim{Containers: true}},
		{Disks{Images: true, Layers: true}, ImageFsAvailable, "none layers logs volumes", Reclaim{Images: true}},
		{Disks{}, MemoryAvailable, "none layers logs volumes", Reclaim{}},
	} {
		got := list()
		rank(got, c.at, c.disks)
		var names []string
		for _, c := range got {
			names = append(names, c.Pod.Name)
		}
		if strings.Join(names, " ") != c.want || c.disks.reclaimable(c.at) != c.room {
			t.Errorf("%+v, %s: %v, %+v", c.disks, c.at, names, c.disks.reclaimable(c.at))
		}
	}
	left, some := WithoutContainerFs([]Threshold{{Signal: ContainerFsAvailable}, {Signal: NodeFsAvailable}, {Signal: ContainerFsInodesFree}})
	if !some || len(left) != 1 || left[0].Signal != NodeFsAvailable {
		t.Errorf("without those of what containers write: %v", left)
	}
	if left, some = WithoutContainerFs(left); some || len(left) != 1 {
		t.Errorf("there were none of what containers write, but %t: %v", some, left)
	}
}

func TestOverLimit(t *testing.T) {
	size := resource.MustParse("1Mi")
	p := &v1.Pod{Spec: v1.PodSpec{
		Containers: []v1.Container{
			{Name: "a", Resources: v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse("10Mi")}}},
			{Name: "b", Resources: v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse("10Mi")}}},
		},
		Volumes: []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: &size}}}, {Name: "w", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}},
	}}
	if !hasLimits(p) || hasLimits(&v1.Pod{}) {
		t.Error("limit was not detected")
	}
	for _, c := range []struct {
		storage Storage
		want    string
	}{
		{Storage{}, ""},
		{Storage{EmptyDirs: map[string]int64{"v": 2 << 20}}, `Usage of EmptyDir volume "v" exceeds the limit "1Mi". `},
		{Storage{Containers: map[string]int64{"a": 9 << 20, "b": 9 << 20}, EmptyDirs: map[string]int64{"w": 5 << 20}}, "Pod ephemeral local storage usage exceeds the total limit of containers 20Mi. "},
		{Storage{Containers: map[string]int64{"a": 11 << 20}}, `Container a exceeded its local ephemeral storage limit "10Mi". `},
		{Storage{Containers: map[string]int64{"a": 9 << 20}, Rest: 12 << 20}, "Pod ephemeral local storage usage exceeds the total limit of containers 20Mi. "},
	} {
		if got, signal := overLimit(p, c.storage); got != c.want || (got == "") != (signal == "") {
			t.Errorf("%v: %q, want %q", c.storage, got, c.want)
		}
	}
}

// TestLimitOfSidecar checks that the limit of a sidecar counts like that of a regular container.
func TestLimitOfSidecar(t *testing.T) {
	always := v1.ContainerRestartPolicyAlways
	limited := v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse("10Mi")}}
	p := &v1.Pod{Spec: v1.PodSpec{
		InitContainers: []v1.Container{{Name: "side", RestartPolicy: &always, Resources: limited}, {Name: "once", Resources: limited}},
		Containers:     []v1.Container{{Name: "main", Resources: limited}},
	}}
	if !hasLimits(p) {
		t.Error("limit was not detected")
	}
	want := `Container side exceeded its local ephemeral storage limit "10Mi". `
	if got, _ := overLimit(p, Storage{Containers: map[string]int64{"side": 11 << 20}}); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, _ := overLimit(p, Storage{Containers: map[string]int64{"once": 11 << 20}}); got != "" {
		t.Errorf("exited container: %q", got)
	}
}

// fakeNode is a node whose available memory grows with each eviction.
type fakeNode struct {
	left    int64
	pods    []*v1.Pod
	evicted []string
	// disrupted is the argument of the last eviction. stored is the local storage usage of pods.
	disrupted bool
	stored    map[types.UID]Storage
}

func (s *fakeNode) manager() *Manager {
	done := make(chan struct{})
	close(done)
	return New(Config{
		NodeName: "n", Thresholds: []Threshold{{Signal: MemoryAvailable, Value: Value{Quantity: resource.MustParse("100")}}},
		Transition: time.Minute, Events: record.NewFakeRecorder(10), Log: slog.New(slog.NewTextHandler(&bytes.Buffer{}, nil)),
		Measure: func(context.Context) (map[Signal]Observation, error) {
			return map[Signal]Observation{MemoryAvailable: {s.left, 1000}}, nil
		},
		Pods:     func() []*v1.Pod { return s.pods },
		Critical: func(p *v1.Pod) bool { return *p.Spec.Priority >= 2000000000 },
		Usage: func(context.Context) (map[types.UID]*Candidate, error) {
			return map[types.UID]*Candidate{"a": {Memory: 10, Measured: true}, "b": {Memory: 20, Measured: true}}, nil
		},
		Storage: func(context.Context, []*v1.Pod) (map[types.UID]Storage, error) { return s.stored, nil },
		Evict: func(p *v1.Pod, _ int64, _ string, disrupted bool) <-chan struct{} {
			s.evicted, s.disrupted = append(s.evicted, p.Name), disrupted
			s.left = 500
			return done
		},
		Changed: func() {},
	})
}

func TestManager(t *testing.T) {
	s := &fakeNode{left: 50, pods: []*v1.Pod{pod("critical", 2000000000, ""), pod("a", 0, ""), pod("b", 0, "")}}
	m := s.manager()
	if _, err := m.synchronize(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(s.evicted) != 1 || s.evicted[0] != "b" || !s.disrupted || !m.Pressure(v1.NodeMemoryPressure) {
		t.Errorf("evicted %v", s.evicted)
	}
	select {
	case got := <-m.cfg.Events.(*record.FakeRecorder).Events:
		if got != "Warning EvictionThresholdMet Attempting to reclaim memory" {
			t.Errorf("got %q", got)
		}
	default:
		t.Error("no event for the eviction threshold")
	}
	ages := testutil.CollectAndCount(m.age)
	if ages != 1 {
		t.Errorf("%d observations of the stats age", ages)
	}
	if ended, err := m.synchronize(t.Context()); err != nil || len(ended) != 0 {
		t.Errorf("evicted again: %v, %v", ended, err)
	}
	if got := m.Reject(pod("new", 0, ""), v1.PodQOSBestEffort); got != "The node had condition: [MemoryPressure]. " {
		t.Errorf("rejected with %q", got)
	}
	tolerant := pod("new", 0, "")
	tolerant.Spec.Tolerations = []v1.Toleration{{Key: v1.TaintNodeMemoryPressure, Operator: v1.TolerationOpExists}}
	if m.Reject(tolerant, v1.PodQOSBestEffort) != "" || m.Reject(pod("new", 0, "1"), v1.PodQOSBurstable) != "" || m.Reject(pod("new", 2000000000, ""), v1.PodQOSBestEffort) != "" {
		t.Error("rejected an admissible pod")
	}

	// A pod that exceeds its own limit has no DisruptionTarget condition.
	size := resource.MustParse("1Mi")
	big := pod("big", 0, "")
	big.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: &size}}}}
	s.pods, s.stored = []*v1.Pod{big}, map[types.UID]Storage{"big": {EmptyDirs: map[string]int64{"v": 2 << 20}}}
	if _, err := m.synchronize(t.Context()); err != nil || s.evicted[len(s.evicted)-1] != "big" || s.disrupted {
		t.Errorf("evicted %v, %t, %v", s.evicted, s.disrupted, err)
	}
}

func FuzzParseValue(f *testing.F) {
	for _, s := range []string{"10%", "100Mi", "1e3", "-5", "%", "1e400%"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if v, err := parseValue(text); err == nil && (v.Percent < 0 || v.Percent > 100 || v.Quantity.Sign() < 0) {
			t.Errorf("%q: %v", text, v)
		}
	})
}
