package horizontalpodautoscaling

import (
	"math"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

// How scaling is limited when an autoscaler does not say.
const (
	upFactor  = 2.0
	upMinimum = 4.0
)

// recommendation is what the metrics asked for at a time.
type recommendation struct {
	replicas int32
	at       time.Time
}

// change is a change of the size that was made.
type change struct {
	replicas int32 // how many were added or removed
	at       time.Time
}

// memory is what is remembered of one autoscaler.
type memory struct {
	recommendations []recommendation
	up, down        []change
}

// limits bound a size, and tell why.
type limits struct {
	min, max int32
}

// verdict is a size with what it comes from: reason and message of a condition.
type verdict struct {
	replicas        int32
	reason, message string
}

const (
	scaleDownStabilized = "ScaleDownStabilized"
	scaleUpStabilized   = "ScaleUpStabilized"
	readyForNewScale    = "ReadyForNewScale"
	withinRange         = "DesiredWithinRange"
)

// stabilize damps by what was recommended of late: down only to the most of the
// window down, up only to the least of the window up. It remembers desired.
func (m *memory) stabilize(now time.Time, up, down time.Duration, current, desired int32) verdict {
	most, least := desired, desired
	kept := m.recommendations[:0]
	for _, r := range m.recommendations {
		if r.at.After(now.Add(-up)) {
			least = min(least, r.replicas)
		}
		if r.at.After(now.Add(-down)) {
			most = max(most, r.replicas)
		}
		if r.at.After(now.Add(-max(up, down))) {
			kept = append(kept, r)
		}
	}
	m.recommendations = append(kept, recommendation{desired, now})
	n := max(current, least)
	n = min(n, most)
	switch {
	case n == desired:
		return verdict{n, readyForNewScale, "recommended size matches current size"}
	case desired > current:
		return verdict{n, scaleUpStabilized, "recent recommendations were lower than current one, applying the lowest recent recommendation"}
	default:
		return verdict{n, scaleDownStabilized, "recent recommendations were higher than current one, applying the highest recent recommendation"}
	}
}

// hold damps where an autoscaler says nothing of it: what was asked for at most of
// late holds, even where it is more than there is now. It remembers desired.
func (m *memory) hold(now time.Time, window time.Duration, desired int32) verdict {
	most := desired
	kept := m.recommendations[:0]
	for _, r := range m.recommendations {
		if r.at.After(now.Add(-window)) {
			most = max(most, r.replicas)
			kept = append(kept, r)
		}
	}
	m.recommendations = append(kept, recommendation{desired, now})
	if most != desired {
		return verdict{most, scaleDownStabilized, "recent recommendations were higher than current one, applying the highest recent recommendation"}
	}
	return verdict{most, readyForNewScale, "recommended size matches current size"}
}

// bound limits a size by the standing rules: at most twice as many at once.
func bound(l limits, current, desired int32) verdict {
	fastest := roundUp(math.Max(upFactor*float64(current), upMinimum))
	most := verdict{l.max, "TooManyReplicas", "the desired replica count is more than the maximum replica count"}
	if l.max > fastest {
		most = verdict{fastest, "ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate"}
	}
	switch {
	case desired < l.min:
		return verdict{l.min, "TooFewReplicas", "the desired replica count is less than the minimum replica count"}
	case desired > most.replicas:
		return most
	}
	return verdict{desired, withinRange, "the desired count is within the acceptable range"}
}

// boundBy limits a size by an autoscaler's own policies.
func (m *memory) boundBy(now time.Time, b *autoscalingv2.HorizontalPodAutoscalerBehavior, l limits, current, desired int32) verdict {
	switch {
	case desired > current:
		fastest := max(m.upLimit(now, b.ScaleUp, current), current)
		most := verdict{l.max, "TooManyReplicas", "the desired replica count is more than the maximum replica count"}
		if l.max > fastest {
			most = verdict{fastest, "ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate"}
		}
		if desired > most.replicas {
			return most
		}
	case desired < current:
		fastest := min(m.downLimit(now, b.ScaleDown, current), current)
		least := verdict{l.min, "TooFewReplicas", "the desired replica count is less than the minimum replica count"}
		if l.min < fastest {
			least = verdict{fastest, "ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate"}
		}
		if desired < least.replicas {
			return least
		}
	}
	return verdict{desired, withinRange, "the desired count is within the acceptable range"}
}

func within(changes []change, now time.Time, seconds int32) int32 {
	var n int32
	for _, c := range changes {
		if c.at.After(now.Add(-time.Duration(seconds) * time.Second)) {
			n += c.replicas
		}
	}
	return n
}

func (m *memory) upLimit(now time.Time, r *autoscalingv2.HPAScalingRules, current int32) int32 {
	if r == nil {
		return math.MaxInt32
	}
	choose, limit := func(a, b int32) int32 { return max(a, b) }, int32(math.MinInt32)
	switch selected(r) {
	case autoscalingv2.DisabledPolicySelect:
		return current
	case autoscalingv2.MinChangePolicySelect:
		choose, limit = func(a, b int32) int32 { return min(a, b) }, math.MaxInt32
	}
	for _, p := range r.Policies {
		start := current - within(m.up, now, p.PeriodSeconds) + within(m.down, now, p.PeriodSeconds)
		switch p.Type {
		case autoscalingv2.PodsScalingPolicy:
			limit = choose(limit, start+p.Value)
		case autoscalingv2.PercentScalingPolicy:
			limit = choose(limit, roundUp(float64(start)*(1+float64(p.Value)/100)))
		}
	}
	return limit
}

func (m *memory) downLimit(now time.Time, r *autoscalingv2.HPAScalingRules, current int32) int32 {
	if r == nil {
		return math.MinInt32
	}
	// The most change is the least size.
	choose, limit := func(a, b int32) int32 { return min(a, b) }, int32(math.MaxInt32)
	switch selected(r) {
	case autoscalingv2.DisabledPolicySelect:
		return current
	case autoscalingv2.MinChangePolicySelect:
		choose, limit = func(a, b int32) int32 { return max(a, b) }, math.MinInt32
	}
	for _, p := range r.Policies {
		start := current + within(m.down, now, p.PeriodSeconds) - within(m.up, now, p.PeriodSeconds)
		switch p.Type {
		case autoscalingv2.PodsScalingPolicy:
			limit = choose(limit, start-p.Value)
		case autoscalingv2.PercentScalingPolicy:
			limit = choose(limit, int32(float64(start)*(1-float64(p.Value)/100)))
		}
	}
	return limit
}

func selected(r *autoscalingv2.HPAScalingRules) autoscalingv2.ScalingPolicySelect {
	if r.SelectPolicy == nil {
		return autoscalingv2.MaxChangePolicySelect
	}
	return *r.SelectPolicy
}

// changed remembers a change for as long as a policy may ask for it.
func (m *memory) changed(now time.Time, from, to int32) {
	const longest = 30 * time.Minute // of a policy's period
	keep := func(list []change) []change {
		kept := list[:0]
		for _, c := range list {
			if c.at.After(now.Add(-longest)) {
				kept = append(kept, c)
			}
		}
		return kept
	}
	m.up, m.down = keep(m.up), keep(m.down)
	if to > from {
		m.up = append(m.up, change{to - from, now})
	} else {
		m.down = append(m.down, change{from - to, now})
	}
}
