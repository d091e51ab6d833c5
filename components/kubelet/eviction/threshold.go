// Package eviction keeps the node from running out of memory, disk, inodes and
// process numbers: it watches what is left, tells pressure, makes room without
// hurting anyone where it can, and ends pods where it must.
//
// What to do is decided by pure functions (State.Step, Rank, OverLimit); Manager
// measures and does it.
//
// https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/
package eviction

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Signal is something that may run short.
type Signal string

// The signals of the documentation. AllocatableMemory is not configured: it is
// what is left of all that pods may have together.
const (
	MemoryAvailable            Signal = "memory.available"
	NodeFsAvailable            Signal = "nodefs.available"
	NodeFsInodesFree           Signal = "nodefs.inodesFree"
	ImageFsAvailable           Signal = "imagefs.available"
	ImageFsInodesFree          Signal = "imagefs.inodesFree"
	ContainerFsAvailable       Signal = "containerfs.available"
	ContainerFsInodesFree      Signal = "containerfs.inodesFree"
	PIDAvailable               Signal = "pid.available"
	AllocatableMemoryAvailable Signal = "allocatableMemory.available"
)

// Resources that run short, beyond those that the API names.
const (
	ResourceInodes v1.ResourceName = "inodes"
	ResourcePIDs   v1.ResourceName = "pids"
)

// facts of a signal.
type facts struct {
	resource  v1.ResourceName
	condition v1.NodeConditionType
}

var signals = map[Signal]facts{
	MemoryAvailable:            {v1.ResourceMemory, v1.NodeMemoryPressure},
	AllocatableMemoryAvailable: {v1.ResourceMemory, v1.NodeMemoryPressure},
	NodeFsAvailable:            {v1.ResourceEphemeralStorage, v1.NodeDiskPressure},
	ImageFsAvailable:           {v1.ResourceEphemeralStorage, v1.NodeDiskPressure},
	ContainerFsAvailable:       {v1.ResourceEphemeralStorage, v1.NodeDiskPressure},
	NodeFsInodesFree:           {ResourceInodes, v1.NodeDiskPressure},
	ImageFsInodesFree:          {ResourceInodes, v1.NodeDiskPressure},
	ContainerFsInodesFree:      {ResourceInodes, v1.NodeDiskPressure},
	PIDAvailable:               {ResourcePIDs, v1.NodePIDPressure},
}

// Value is an amount, or a part of what there is.
type Value struct {
	Quantity resource.Quantity
	// Percent is used when it is not zero: 0 to 100.
	Percent float64
}

// Of returns the value in units of capacity.
func (v Value) Of(capacity int64) int64 {
	if v.Percent != 0 {
		return int64(float64(capacity) * v.Percent / 100)
	}
	return v.Quantity.Value()
}

// quantity is Of as it is shown.
func (v Value) quantity(capacity int64) *resource.Quantity {
	if v.Percent != 0 {
		return resource.NewQuantity(v.Of(capacity), resource.BinarySI)
	}
	q := v.Quantity.DeepCopy()
	return &q
}

// Threshold is how much must be left.
type Threshold struct {
	Signal Signal
	Value  Value
	// Grace is how long less may be left before pods are ended. Zero is a hard
	// threshold: at once, and without much grace for the pods.
	Grace time.Duration
	// Reclaim is how much more than the threshold must be left before it counts
	// as no longer crossed; nil for nothing.
	Reclaim *Value
}

// Settings are the fields of KubeletConfiguration that say when pods are ended.
type Settings struct {
	// Hard and Soft are thresholds by signal, SoftGrace is how long each soft
	// one may be crossed, MinimumReclaim how much is then made free beyond it.
	Hard, Soft, SoftGrace, MinimumReclaim map[string]string
}

// Thresholds parses the settings, in an order that does not change. Thresholds
// of 0 % or 100 % are none, as upstream.
func (s Settings) Thresholds() ([]Threshold, error) {
	var errs []error
	grace := map[Signal]time.Duration{}
	for name, text := range s.SoftGrace {
		d, err := time.ParseDuration(text)
		if err == nil && d < 0 {
			err = errors.New("must not be negative")
		}
		if err == nil {
			err = known(name)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("eviction grace period %s: %w", name, err))
			continue
		}
		grace[Signal(name)] = d
	}
	reclaim := map[Signal]*Value{}
	for name, text := range s.MinimumReclaim {
		v, err := parseValue(text)
		if err == nil {
			err = known(name)
		}
		if err == nil && strings.HasSuffix(text, "%") && v.Percent == 0 {
			err = fmt.Errorf("%q must be positive", text)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("eviction minimum reclaim %s: %w", name, err))
			continue
		}
		reclaim[Signal(name)] = &v
	}
	var out []Threshold
	parse := func(list map[string]string, soft bool) {
		for _, name := range slices.Sorted(maps.Keys(list)) {
			text := list[name]
			err := known(name)
			var v Value
			if err == nil && (text == "0%" || text == "100%") {
				continue
			}
			if err == nil {
				v, err = parseValue(text)
			}
			if err == nil && !strings.HasSuffix(text, "%") && v.Quantity.IsZero() {
				err = fmt.Errorf("%q must be positive", text)
			}
			t := Threshold{Signal: Signal(name), Value: v, Reclaim: reclaim[Signal(name)]}
			if soft && err == nil {
				var ok bool
				if t.Grace, ok = grace[t.Signal]; !ok {
					err = errors.New("grace period must be specified for the soft eviction threshold")
				}
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("eviction threshold %s: %w", name, err))
				continue
			}
			out = append(out, t)
		}
	}
	parse(s.Hard, false)
	parse(s.Soft, true)
	return out, errors.Join(errs...)
}

func known(signal string) error {
	if _, ok := signals[Signal(signal)]; !ok || Signal(signal) == AllocatableMemoryAvailable {
		return fmt.Errorf("unsupported signal %q", signal)
	}
	return nil
}

// parseValue reads "100Mi" or "10%".
func parseValue(text string) (Value, error) {
	if p, ok := strings.CutSuffix(text, "%"); ok {
		n, err := strconv.ParseFloat(p, 32)
		if err != nil || !(n >= 0 && n <= 100) {
			return Value{}, fmt.Errorf("invalid percentage %q", text)
		}
		return Value{Percent: n}, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return Value{}, fmt.Errorf("invalid quantity %q: %w", text, err)
	}
	if q.Sign() < 0 {
		return Value{}, fmt.Errorf("%q must not be negative", text)
	}
	return Value{Quantity: q}, nil
}

// Observation is how much there is of something.
type Observation struct{ Available, Capacity int64 }

// State is what is remembered from one look to the next. The zero value is that
// of a node that has just started.
type State struct {
	first  map[int]time.Time // when a threshold was first seen crossed, by index
	last   map[v1.NodeConditionType]time.Time
	due    map[int]bool // what called for action at the last look, by index
	active map[v1.NodeConditionType]bool
}

// Pressure tells whether the node has that condition.
func (s *State) Pressure(c v1.NodeConditionType) bool { return s.active[c] }

// Conditions returns all pressures, sorted.
func (s *State) Conditions() []v1.NodeConditionType {
	var out []v1.NodeConditionType
	for c, on := range s.active {
		if on {
			out = append(out, c)
		}
	}
	slices.Sort(out)
	return out
}

// Step takes in what is left and returns the thresholds that call for action
// now, the most urgent first. transition is how long a pressure is told after
// it has passed.
func (s *State) Step(all []Threshold, now map[Signal]Observation, at time.Time, transition time.Duration) []Threshold {
	if s.first == nil {
		s.first, s.last = map[int]time.Time{}, map[v1.NodeConditionType]time.Time{}
	}
	met := map[int]bool{}
	for i := range all {
		if crossed(all[i], now, false) || s.due[i] && crossed(all[i], now, true) {
			met[i] = true
		}
	}
	for i := range s.first {
		if !met[i] {
			delete(s.first, i)
		}
	}
	var due []Threshold
	s.due = map[int]bool{}
	for i := range met {
		t := &all[i]
		if _, ok := s.first[i]; !ok {
			s.first[i] = at
		}
		s.last[signals[t.Signal].condition] = at
		if at.Sub(s.first[i]) >= t.Grace {
			due = append(due, *t)
			s.due[i] = true
		}
	}
	s.active = map[v1.NodeConditionType]bool{}
	for c, t := range s.last {
		s.active[c] = t.Equal(at) || at.Sub(t) < transition
	}
	slices.SortStableFunc(due, func(a, b Threshold) int {
		if x, y := urgency(a), urgency(b); x != y {
			return cmp.Compare(x, y)
		}
		return cmp.Compare(a.Signal, b.Signal)
	})
	return due
}

// urgency puts memory first, for the kernel acts on it, too, and hard
// thresholds before soft ones.
func urgency(t Threshold) int {
	n := 2
	if signals[t.Signal].resource == v1.ResourceMemory {
		n = 0
	}
	if t.Grace > 0 {
		n++
	}
	return n
}

// crossed tells whether less is left than t asks for; with reclaim, less than
// what is to be left after pods were ended for it.
func crossed(t Threshold, now map[Signal]Observation, reclaim bool) bool {
	o, ok := now[t.Signal]
	if !ok {
		return false
	}
	want := t.Value.Of(o.Capacity)
	if reclaim && t.Reclaim != nil {
		want += t.Reclaim.Of(o.Capacity)
	}
	return o.Available < want
}
