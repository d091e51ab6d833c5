// Package featuregates contains the feature gates of Kubernetes v1.37 and their support in this
// build. Most gates can only be set to the value that the build implements; only a few of them
// enable or disable a feature.
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

// state is whether this build supports a feature gate, and whether the gate has an effect.
type state int

const (
	on             state = iota // enabled, cannot be disabled
	notImplemented              // not implemented
	ignored                     // any value is accepted and has no effect
)

// alpha and the other constants are the stages of a feature, as in the label of the metric
// kubernetes_feature_enabled.
const (
	alpha      = "ALPHA"
	beta       = "BETA"
	stable     = ""
	deprecated = "DEPRECATED"
)

// gate is the definition of a feature gate in Kubernetes, and how this build supports it.
type gate struct {
	stage string
	// defaultValue is the default value. A locked gate cannot have another value.
	defaultValue, locked bool
	support              state
}

// Gate is a feature gate in the form in which metrics report it.
type Gate struct {
	Name, Stage string
	// Enabled reports whether the feature is enabled when the gate is not set.
	Enabled bool
}

// All iterates over all gates, sorted by name, with the values that they have if no flag sets them.
func All() iter.Seq[Gate] {
	return func(yield func(Gate) bool) {
		for _, name := range slices.Sorted(maps.Keys(gates)) {
			g := gates[name]
			if !yield(Gate{name, g.stage, g.support == on || g.support == ignored && g.defaultValue}) {
				return
			}
		}
	}
}

// Set contains the gates that a user has set, by name. Gates that are not in it have their default
// value.
type Set map[string]bool

// Parse parses the value of a feature gates flag, such as "One=true,Two=false". Empty items are ignored. It returns an
// error for an item whose value is missing or is not a boolean, but does not check the names; Check does.
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

// Check returns an error for unknown gates and for values that this build does not support. AllAlpha cannot be enabled
// and AllBeta cannot be disabled. switches are the gates that the calling component can enable and disable, so that
// both values are allowed.
func (s Set) Check(switches ...string) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(s)) {
		want := s[name]
		if slices.Contains(switches, name) {
			continue
		}
		if name == "AllAlpha" || name == "AllBeta" {
			if want == (name == "AllAlpha") {
				errs = append(errs, fmt.Errorf("feature gate %s cannot be set to %v in this build", name, want))
			}
			continue
		}
		is, known := gates[name]
		switch {
		case !known:
			errs = append(errs, fmt.Errorf("unrecognized feature gate: %s", name))
		case is.locked && want != is.defaultValue:
			errs = append(errs, fmt.Errorf("cannot set feature gate %s to %v, feature is locked to %v", name, want, is.defaultValue))
		case is.support == on && !want:
			errs = append(errs, fmt.Errorf("feature gate %s cannot be disabled in this build", name))
		case is.support == notImplemented && want:
			errs = append(errs, fmt.Errorf("feature gate %s cannot be enabled in this build: the feature is not implemented", name))
		}
	}
	return errors.Join(errs...)
}

// Enabled returns the value of the gate name in s, or otherwise if the user has not set the gate.
func (s Set) Enabled(name string, otherwise bool) bool {
	if v, ok := s[name]; ok {
		return v
	}
	return otherwise
}
