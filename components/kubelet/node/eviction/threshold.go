// Package eviction implements node-pressure eviction: it monitors available memory, disk space,
// inodes and process IDs, sets pressure conditions, reclaims unused resources first, and evicts
// pods if that does not suffice.
//
// Pure functions (State.Step, rank, overLimit) decide what to do. Manager measures and acts.
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

// Signal is the name of an eviction signal, such as "memory.available".
type Signal string

// MemoryAvailable and the other constants are the eviction signals of the Kubernetes documentation, and
// AllocatableMemoryAvailable, which cannot be configured: the available memory within the memory limit of all pods
// together.
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

// ResourceInodes and ResourcePIDs name what the inode and PID signals measure, in the messages of evictions. They
// are not resources of the Kubernetes API.
const (
	ResourceInodes v1.ResourceName = "inodes"
	ResourcePIDs   v1.ResourceName = "pids"
)

// signalInfo are the resource of a signal and the node condition that is set when one of its thresholds is
// met.
type signalInfo struct {
	resource  v1.ResourceName
	condition v1.NodeConditionType
}

// signals maps each eviction signal to the resource that it measures, and to the node condition that is set when
// one of its thresholds is met.
var signals = map[Signal]signalInfo{
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

// Value is the value of an eviction threshold: an absolute quantity, or a percentage of the capacity of the
// signal's resource.
type Value struct {
	Quantity resource.Quantity
	// Percent, from 0 to 100, takes precedence over Quantity if it is not zero.
	Percent float64
}

// Of returns the value in the unit of capacity: bytes, inodes or processes.
func (v Value) Of(capacity int64) int64 {
	if v.Percent != 0 {
		return int64(float64(capacity) * v.Percent / 100)
	}
	return v.Quantity.Value()
}

// quantity returns the value for a capacity as a quantity for messages.
func (v Value) quantity(capacity int64) *resource.Quantity {
	if v.Percent != 0 {
		return resource.NewQuantity(v.Of(capacity), resource.BinarySI)
	}
	q := v.Quantity.DeepCopy()
	return &q
}

// Threshold is the minimum available value of a signal. If less is available, the threshold is met and pods
// are evicted.
type Threshold struct {
	Signal Signal
	Value  Value
	// Grace is how long the threshold must be met before pods are evicted. Zero means a hard
	// threshold: pods are evicted immediately and with a minimal termination grace period.
	Grace time.Duration
	// Reclaim is the minimum reclaim: how much more than the threshold must be available before the
	// threshold is no longer met. It may be nil.
	Reclaim *Value
}

// Settings are the fields of KubeletConfiguration that configure eviction.
type Settings struct {
	// Hard and Soft are thresholds by signal. SoftGrace is the grace period of each soft threshold.
	// MinimumReclaim is the minimum reclaim of each signal.
	Hard, Soft, SoftGrace, MinimumReclaim map[string]string
}

// Thresholds parses the settings and returns the hard, then the soft thresholds in a stable order. As
// upstream, thresholds of 0% or 100% are ignored. It returns an error that describes all invalid settings.
func (s Settings) Thresholds() ([]Threshold, error) {
	var errs []error
	grace := map[Signal]time.Duration{}
	for name, text := range s.SoftGrace {
		d, err := time.ParseDuration(text)
		if err == nil && d < 0 {
			err = errors.New("must not be negative")
		}
		if err == nil {
			err = validateSignal(name)
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
			err = validateSignal(name)
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
			err := validateSignal(name)
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

// validateSignal returns an error if the signal is unknown or cannot be configured.
func validateSignal(signal string) error {
	if _, ok := signals[Signal(signal)]; !ok || Signal(signal) == AllocatableMemoryAvailable {
		return fmt.Errorf("unsupported signal %q", signal)
	}
	return nil
}

// parseValue parses a quantity such as "100Mi" or a percentage such as "10%". A negative value and more than
// 100% are an error.
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

// Observation is the measured value of a signal, in bytes, inodes or processes.
type Observation struct{ Available, Capacity int64 }

// State is what the eviction manager remembers from one measurement to the next: since when each threshold has been
// met, and which pressure conditions the node has. The zero value is the state of a node that has just started.
type State struct {
	// first is since when each threshold is met, by its index, and last is when a threshold of each condition
	// was last met.
	first  map[int]time.Time // when a threshold was first met, by index
	last   map[v1.NodeConditionType]time.Time
	due    map[int]bool // thresholds that required action at the last measurement, by index
	active map[v1.NodeConditionType]bool
}

// Pressure reports whether the node has the pressure condition c.
func (s *State) Pressure(c v1.NodeConditionType) bool { return s.active[c] }

// Conditions returns the pressure conditions that the node has, sorted.
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

// Step updates the state with the measurement now, made at the time at. It returns the thresholds in all that
// require an eviction, the most urgent first: those that have been met for their grace period. A threshold that has
// required an eviction remains met until its minimum reclaim is available, too. transition is how long a pressure
// condition is kept after its thresholds are no longer met. all must be the same in each call.
func (s *State) Step(all []Threshold, now map[Signal]Observation, at time.Time, transition time.Duration) []Threshold {
	if s.first == nil {
		s.first, s.last = map[int]time.Time{}, map[v1.NodeConditionType]time.Time{}
	}
	met := map[int]bool{}
	for i := range all {
		if thresholdMet(all[i], now, false) || s.due[i] && thresholdMet(all[i], now, true) {
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

// urgency returns the priority of a threshold; the lowest value is handled first. Memory is first
// because the kernel kills processes when memory is exhausted. Hard thresholds precede soft ones.
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

// thresholdMet reports whether less of the signal of t is available than the threshold. With reclaim, the
// configured minimum reclaim is added to the threshold, so that an eviction frees more than is just necessary. It
// returns false if the signal was not measured.
func thresholdMet(t Threshold, now map[Signal]Observation, reclaim bool) bool {
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
