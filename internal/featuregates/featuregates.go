// Package featuregates knows the feature gates of Kubernetes v1.37 and what this
// build does: a gate may be set to what is the case anyway, and only few turn
// something on or off.
//
// https://kubernetes.io/docs/reference/command-line-tools-reference/feature-gates/
package featuregates

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// state is what this build does with a gate.
type state int

const (
	on     state = iota // on, and cannot be turned off here
	off                 // not here
	either              // changes nothing
)

// The stages of a feature, as metrics call them.
const (
	alpha      = "ALPHA"
	beta       = "BETA"
	stable     = ""
	deprecated = "DEPRECATED"
)

// gate is what Kubernetes says of a gate, and what is the case here.
type gate struct {
	stage string
	// byDefault is its value when it is not set; a locked one has no other.
	byDefault, locked bool
	here              state
}

// Gate is a gate as it is told of.
type Gate struct {
	Name, Stage string
	// Enabled is whether the feature is here unless the gate is set.
	Enabled bool
}

// All yields all gates in the order of their names.
func All() iter.Seq[Gate] {
	return func(yield func(Gate) bool) {
		for _, name := range slices.Sorted(maps.Keys(gates)) {
			g := gates[name]
			if !yield(Gate{name, g.stage, g.here == on || g.here == either && g.byDefault}) {
				return
			}
		}
	}
}

// Set are gates that were set, by their names.
type Set map[string]bool

// Parse reads gates as a flag has them: "One=true,Two=false".
func Parse(text string) (Set, error) {
	out := Set{}
	for pair := range strings.SplitSeq(text, ",") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, fmt.Errorf("missing bool value for %s", name)
		}
		b, err := strconv.ParseBool(strings.TrimSpace(value))
		if err != nil {
			return nil, fmt.Errorf("invalid value of %s=%s, err: %w", name, value, err)
		}
		out[strings.TrimSpace(name)] = b
	}
	return out, nil
}

// Check refuses gates that do not exist, and those that ask for other than what
// is to be had. A component names the gates that it does turn on and off.
func (s Set) Check(switches ...string) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(s)) {
		want := s[name]
		if slices.Contains(switches, name) {
			continue
		}
		if name == "AllAlpha" || name == "AllBeta" {
			if want == (name == "AllAlpha") {
				errs = append(errs, fmt.Errorf("feature gate %s cannot be set to %v here", name, want))
			}
			continue
		}
		is, known := gates[name]
		switch {
		case !known:
			errs = append(errs, fmt.Errorf("unrecognized feature gate: %s", name))
		case is.locked && want != is.byDefault:
			errs = append(errs, fmt.Errorf("cannot set feature gate %s to %v, feature is locked to %v", name, want, is.byDefault))
		case is.here == on && !want:
			errs = append(errs, fmt.Errorf("feature gate %s cannot be turned off here", name))
		case is.here == off && want:
			errs = append(errs, fmt.Errorf("feature gate %s cannot be turned on here: what it stands for is not to be had", name))
		}
	}
	return errors.Join(errs...)
}

// Enabled tells whether a gate is set or, if it is not, what it is by default.
func (s Set) Enabled(name string, otherwise bool) bool {
	if v, ok := s[name]; ok {
		return v
	}
	return otherwise
}
