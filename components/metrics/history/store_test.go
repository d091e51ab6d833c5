package history

import (
	"math"
	"math/rand/v2"
	"runtime"
	"strconv"
	"testing"
	"time"

	"hyperkube/internal/serving/metricshistory"
)

// epoch is the start of a coarse step.
var epoch = time.Unix(1_800_000_000, 0)

func same(a, b float32) bool {
	return a == b || math.IsNaN(float64(a)) && math.IsNaN(float64(b)) || math.Abs(float64(a-b)) <= 1e-4*math.Abs(float64(b))
}

// TestRandom compares the rings with a list of all samples, for samples at random steps.
func TestRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the input of a test
	for range 20 {
		var r rings
		r.reset(2)
		all := map[int64]float32{}
		step := fineStep(epoch) + random.Int64N(50)
		skip := []int64{2, 30, 400, 9000}[random.IntN(4)]
		for range 600 {
			v := float32(random.IntN(1000))
			if random.IntN(10) == 0 {
				v = float32(math.NaN())
			}
			r.add(step, []float32{v, -v})
			all[step] = v
			r.add(step-random.Int64N(3), []float32{7777, 7777}) // ignored
			if random.IntN(20) == 0 {
				checkRings(t, &r, all, step+random.Int64N(3))
			}
			step += 1 + random.Int64N(skip)
		}
		checkRings(t, &r, all, r.last)
	}
}

// checkRings compares both rings of r with all, the samples of the first metric by step. The second metric has the negative
// values.
func checkRings(t *testing.T, r *rings, all map[int64]float32, now int64) {
	t.Helper()
	w := newWindow(now, time.Hour).clip(r)
	fine, negative := r.series(0, w), r.series(1, w)
	for i, got := range fine.Values {
		want, ok := all[w.begin+int64(i)]
		if !ok {
			want = float32(math.NaN())
		}
		if !same(got, want) || !same(negative.Values[i], -want) {
			t.Fatalf("fine step %d: got %v and %v, want %v", i, got, negative.Values[i], want)
		}
	}
	w = newWindow(now, 24*time.Hour).clip(r)
	coarse := r.series(0, w)
	for i := range coarse.Values {
		sum, n, peak := float32(0), float32(0), float32(math.NaN())
		for step := (w.begin + int64(i)) * fineInCoarse; step < (w.begin+int64(i)+1)*fineInCoarse; step++ {
			v, ok := all[step]
			if !ok || math.IsNaN(float64(v)) {
				continue
			}
			sum, n = sum+v, n+1
			if !(peak >= v) {
				peak = v
			}
		}
		if !same(coarse.Values[i], sum/n) || !same(coarse.Max[i], peak) {
			t.Fatalf("coarse step %d of %d: got %v and %v, want %v and %v", i, len(coarse.Values), coarse.Values[i], coarse.Max[i], sum/n, peak)
		}
	}
}

func TestStore(t *testing.T) {
	s := NewStore(Limit)
	pod := Key{metricshistory.Pods, "a", "p"}
	for i := range 4 {
		now := epoch.Add(time.Duration(i) * 15 * time.Second)
		cpu := float64(i) * 3
		if i == 3 {
			cpu = 0 // a container restarted
		}
		s.Record(now, pod, now, []float64{cpu, 100 + float64(i), float64(i) * 1500, math.NaN(), 1})
		s.Record(now.Add(time.Second), pod, now.Add(time.Second), []float64{999, 999, 999, 999, 999})
	}
	now := epoch.Add(50 * time.Second)
	got, ok := s.Read(pod, now, time.Hour)
	if !ok || got.Name != "p" || got.Namespace != "a" || got.StepSeconds != 15 || !got.Start.Time.Equal(epoch) {
		t.Fatalf("got %+v", got)
	}
	nan := float32(math.NaN())
	for name, want := range map[string]metricshistory.Values{
		metricshistory.CPU: {nan, 0.2, 0.2, nan}, metricshistory.Memory: {100, 101, 102, 103},
		metricshistory.NetworkReceive: {nan, 100, 100, 100}, metricshistory.NetworkTransmit: {nan, nan, nan, nan},
		metricshistory.Restarts: {1, 1, 1, 1},
	} {
		values := got.Series[name].Values
		for i := range want {
			if len(values) != len(want) || !same(values[i], want[i]) {
				t.Errorf("%s: got %v, want %v", name, values, want)
				break
			}
		}
	}
	got, ok = s.Read(pod, now, 24*time.Hour)
	if cpu := got.Series[metricshistory.Memory]; !ok || got.StepSeconds != 300 || len(cpu.Values) != 1 || cpu.Values[0] != 101.5 || cpu.Max[0] != 103 {
		t.Errorf("day: got %+v", got)
	}
	if got, ok := s.Read(pod, now.Add(2*time.Hour), time.Hour); ok {
		t.Errorf("an hour later: got %v", got)
	}
	if _, ok := s.Read(pod, now.Add(2*time.Hour), 24*time.Hour); !ok {
		t.Error("the samples of a deleted pod are not in the history of the day")
	}
	s.Expire(now.Add(23 * time.Hour))
	if keys := s.Keys(metricshistory.Pods, "a"); len(keys) != 1 {
		t.Errorf("got %v", keys)
	}
	s.Expire(now.Add(25 * time.Hour))
	if keys := s.Keys(metricshistory.Pods, ""); len(keys) != 0 || s.size != 0 {
		t.Errorf("after a day: got %v, size %d", keys, s.size)
	}
}

func TestLatency(t *testing.T) {
	s := NewStore(Limit)
	key := Key{metricshistory.ControlPlanes, "", "n"}
	for i, requests := range []float64{10, 40, 40} {
		now := epoch.Add(time.Duration(i) * 15 * time.Second)
		s.Record(now, key, now, []float64{0, 0, 0, 0, requests, requests / 100, 0, 0})
	}
	got, _ := s.Read(key, epoch.Add(30*time.Second), time.Hour)
	latency := got.Series[metricshistory.Latency].Values
	if !same(latency[1], 0.01) || !same(latency[2], float32(math.NaN())) || got.Series[metricshistory.Requests].Values[1] != 2 {
		t.Errorf("got %v", got.Series)
	}
}

// TestLimit checks that deleted objects are discarded for new ones at the limit, and that no object that still exists is.
func TestLimit(t *testing.T) {
	s := NewStore(3 * 4 * ringsLength(5))
	record := func(step int, names ...string) {
		for _, name := range names {
			now := epoch.Add(time.Duration(step) * 15 * time.Second)
			s.Record(now, Key{metricshistory.Pods, "a", name}, now, make([]float64, 5))
		}
	}
	names := func() string {
		var out string
		for _, k := range s.Keys(metricshistory.Pods, "") {
			out += k.Name
		}
		return out
	}
	record(0, "a", "b", "c", "d")
	record(1, "a", "b", "c", "d")
	if got := names(); got != "abc" {
		t.Errorf("at the limit: got %s", got)
	}
	record(2, "b", "c")
	record(3, "b", "c", "d")
	if got := names(); got != "bcd" {
		t.Errorf("after a pod was deleted: got %s", got)
	}
	got, _ := s.Read(Key{metricshistory.Pods, "a", "d"}, epoch.Add(45*time.Second), time.Hour)
	if got.Series[metricshistory.Memory].Values.Last() != 0 || len(got.Series[metricshistory.Memory].Values) != 1 {
		t.Errorf("the new pod has samples of the deleted one: %v", got.Series)
	}
	if s.size > s.limit {
		t.Errorf("size %d exceeds the limit", s.size)
	}
}

// TestMemory checks the memory of 200 pods, 20 volumes, a node and a control plane, and that recording does not allocate.
func TestMemory(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	s := NewStore(Limit)
	keys := []Key{{metricshistory.Nodes, "", "n"}, {metricshistory.ControlPlanes, "", "n"}}
	for i := range 200 {
		keys = append(keys, Key{metricshistory.Pods, "default", "pod-" + strconv.Itoa(i)})
	}
	for i := range 20 {
		keys = append(keys, Key{metricshistory.Volumes, "default", "volume-" + strconv.Itoa(i)})
	}
	values := make([]float64, 8)
	step := 0
	record := func() {
		now := epoch.Add(time.Duration(step) * 15 * time.Second)
		for _, k := range keys {
			s.Record(now, k, now, values)
		}
		step++
	}
	for range 5760 {
		record()
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	size := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	t.Logf("%.1f MB for a day of 200 pods, of which the rings are %.1f MB", float64(size)/1e6, float64(s.size)/1e6)
	if size > 10e6 {
		t.Errorf("%d bytes for 200 pods, at most 10 MB are allowed", size)
	}
	if n := testing.AllocsPerRun(10, record); n > 0 {
		t.Errorf("recording allocates %v times", n)
	}
	runtime.KeepAlive(s)
}
