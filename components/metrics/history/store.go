// Package history stores samples of metrics of nodes, pods, volumes and control planes in rings of fixed size.
package history

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"

	"hyperkube/internal/serving/metricshistory"
)

// Limit is the maximum size of the rings of all objects in bytes. It suffices for some 1,500 pods.
const Limit = 24 << 20

// Key identifies an object. Resource is one of the resources of package metricshistory.
type Key struct{ Resource, Namespace, Name string }

// mode is how a metric is computed from the values that Record gets.
type mode int

const (
	// gauge is the value itself.
	gauge mode = iota
	// rate is the increase of the value per second.
	rate
	// perPrevious is the increase of the value divided by that of the metric before it in the list of metrics.
	perPrevious
)

// metric is a metric of a resource.
type metric struct {
	name string
	mode mode
}

// metricsOf returns the metrics of the objects of a resource, in the order of the values of Record. It returns nil for an
// unknown resource.
func metricsOf(resource string) []metric {
	usage := []metric{
		{metricshistory.CPU, rate}, {metricshistory.Memory, gauge},
		{metricshistory.NetworkReceive, rate}, {metricshistory.NetworkTransmit, rate},
	}
	switch resource {
	case metricshistory.Nodes:
		return append(usage, metric{metricshistory.FilesystemUsed, gauge}, metric{metricshistory.FilesystemCapacity, gauge})
	case metricshistory.Pods:
		return append(usage, metric{metricshistory.Restarts, gauge})
	case metricshistory.Volumes:
		return []metric{{metricshistory.VolumeUsed, gauge}, {metricshistory.VolumeCapacity, gauge}}
	case metricshistory.ControlPlanes:
		return []metric{
			{metricshistory.CPU, rate}, {metricshistory.Memory, gauge}, {metricshistory.Goroutines, gauge},
			{metricshistory.Errors, rate}, {metricshistory.Requests, rate}, {metricshistory.Latency, perPrevious},
			{metricshistory.DatabaseSize, gauge}, {metricshistory.QueueDepth, gauge},
		}
	}
	return nil
}

// object is an object with samples.
type object struct {
	rings rings
	// at is the time of the last values, and values are these, from which rates are computed.
	at     time.Time
	values []float64
}

// Store stores the samples of all objects. It keeps those of deleted objects for a day, unless other objects need the
// memory. It is safe for concurrent use.
type Store struct {
	limit int
	table map[string][]metric // by resource; never changes

	mu      sync.RWMutex // guards the fields below
	objects map[Key]*object
	// size is the size of the rings of objects in bytes.
	size int
	// samples is memory for the samples of one object, which Record reuses.
	samples []float32
}

// NewStore returns an empty Store, whose rings use at most limit bytes.
func NewStore(limit int) *Store {
	s := &Store{limit: limit, table: map[string][]metric{}, objects: map[Key]*object{}}
	for _, r := range metricshistory.Resources() {
		s.table[r.Name] = metricsOf(r.Name)
	}
	return s
}

// Record stores the values of an object, which were measured at the time at, as the sample of the step that contains now.
// values has a value for each metric of the resource. A value of NaN is unknown. Only the first call for a step stores a
// sample. If the limit is reached, the samples of the object that has not been sampled for the longest time are discarded; if
// all objects have been sampled in this step, those of a new object are not stored.
func (s *Store) Record(now time.Time, key Key, at time.Time, values []float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	metrics, step := s.table[key.Resource], fineStep(now)
	o := s.objects[key]
	if o == nil {
		if o = s.create(len(metrics), step); o == nil {
			return
		}
		s.objects[key] = o
	}
	if step <= o.rings.last {
		return
	}
	s.samples = s.samples[:0]
	for m, metric := range metrics {
		s.samples = append(s.samples, o.sample(m, metric.mode, at, values))
	}
	o.rings.add(step, s.samples)
	o.at = at
	copy(o.values, values)
}

// sample returns the sample of the metric m for values that were measured at the time at. It is NaN for a rate if there
// are no earlier values or a counter was reset.
func (o *object) sample(m int, how mode, at time.Time, values []float64) float32 {
	increase := values[m] - o.values[m]
	switch {
	case how == gauge:
		return float32(values[m])
	case o.at.IsZero() || !at.After(o.at) || !(increase >= 0):
		return float32(math.NaN())
	case how == rate:
		return float32(increase / at.Sub(o.at).Seconds())
	default:
		return float32(increase / (values[m-1] - o.values[m-1])) // NaN if there was nothing to count
	}
}

// create returns an empty object with that number of metrics. It returns nil if there is no memory for it, which is that of
// objects without a sample at the step now.
func (s *Store) create(metrics int, now int64) *object {
	o := &object{values: make([]float64, metrics)}
	for m := range o.values {
		o.values[m] = math.NaN()
	}
	need := 4 * ringsLength(metrics)
	for s.size+need > s.limit {
		old := s.remove(now)
		if old == nil {
			return nil
		}
		o.rings = old.rings
	}
	o.rings.reset(metrics)
	s.size += need
	return o
}

// remove removes the object whose last sample is the oldest, and returns it. It returns nil if all objects have samples of
// the step now.
func (s *Store) remove(now int64) *object {
	var oldest *object
	var at Key
	for key, o := range s.objects {
		if o.rings.last < now-1 && (oldest == nil || o.rings.last < oldest.rings.last) {
			oldest, at = o, key
		}
	}
	if oldest != nil {
		s.discard(at)
	}
	return oldest
}

// discard removes the object at key.
func (s *Store) discard(key Key) {
	s.size -= 4 * len(s.objects[key].rings.data)
	delete(s.objects, key)
}

// Expire discards the objects without a sample in the day before now.
func (s *Store) Expire(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	oldest := fineStep(now.Add(-metricshistory.DayRange))
	for key, o := range s.objects {
		if o.rings.last <= oldest {
			s.discard(key)
		}
	}
}

// Clear discards all samples.
func (s *Store) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.objects)
	s.size = 0
}

// Keys returns the keys of all objects of a resource in a namespace, or in all namespaces if it is empty, sorted by namespace and
// name.
func (s *Store) Keys(resource, namespace string) []Key {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []Key
	for key := range s.objects {
		if key.Resource == resource && (namespace == "" || key.Namespace == namespace) {
			out = append(out, key)
		}
	}
	slices.SortFunc(out, func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// Read returns the samples of an object in the last length until now. Kind and metadata other than the name are not
// set. It returns false if there is no sample of the object in this time.
func (s *Store) Read(key Key, now time.Time, length time.Duration) (metricshistory.History, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	o := s.objects[key]
	if o == nil {
		return metricshistory.History{}, false
	}
	w := newWindow(fineStep(now), length).clip(&o.rings)
	if w.begin >= w.end {
		return metricshistory.History{}, false
	}
	out := metricshistory.History{StepSeconds: int(w.step() / time.Second), Series: map[string]metricshistory.Series{}}
	out.Name, out.Namespace = key.Name, key.Namespace
	out.Start.Time = w.start()
	for m, metric := range s.table[key.Resource] {
		out.Series[metric.name] = o.rings.series(m, w)
	}
	return out, true
}
