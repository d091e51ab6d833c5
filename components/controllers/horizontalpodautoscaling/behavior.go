package horizontalpodautoscaling

import (
	"math"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

// The scale-up limit of autoscalers without spec.behavior: upFactor times the current size, but at least upMinimum.
const (
	upFactor  = 2.0
	upMinimum = 4.0
)

// recommendation is a number of replicas that was computed from the metrics, and the time of the computation.
type recommendation struct {
	replicas int32
	at       time.Time
}

// change is a change of the target's size that this controller made: the number of added or removed replicas, and
// when.
type change struct {
	replicas int32 // number of replicas added or removed
	at       time.Time
}

// scalingHistory contains the recent recommendations and changes of one autoscaler, which limit the next change. The
// zero value is ready to use. It is not safe for concurrent use.
type scalingHistory struct {
	recommendations []recommendation
	up, down        []change
}

// limits are the autoscaler's minReplicas and maxReplicas.
type limits struct {
	min, max int32
}

// limitedSize is a number of replicas after a limit was applied, with the reason and message of the condition that
// explains the limit.
type limitedSize struct {
	replicas        int32
	reason, message string
}

const (
	scaleDownStabilized = "ScaleDownStabilized"
	scaleUpStabilized   = "ScaleUpStabilized"
	readyForNewScale    = "ReadyForNewScale"
	withinRange         = "DesiredWithinRange"
)

// stabilize limits the desired number of replicas by recent recommendations, for autoscalers with behavior. It scales
// down at most to the highest recommendation within the duration down, and up at most to the lowest one within the
// duration up. It adds desired to the recommendations.
func (m *scalingHistory) stabilize(now time.Time, up, down time.Duration, current, desired int32) limitedSize {
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
		return limitedSize{n, readyForNewScale, "recommended size matches current size"}
	case desired > current:
		return limitedSize{n, scaleUpStabilized, "recent recommendations were lower than current one, applying the lowest recent recommendation"}
	default:
		return limitedSize{n, scaleDownStabilized, "recent recommendations were higher than current one, applying the highest recent recommendation"}
	}
}

// stabilizeDefault limits the desired number of replicas for autoscalers without behavior: it returns the highest
// recommendation within window, even if it exceeds the current size. It adds desired to the recommendations.
func (m *scalingHistory) stabilizeDefault(now time.Time, window time.Duration, desired int32) limitedSize {
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
		return limitedSize{most, scaleDownStabilized, "recent recommendations were higher than current one, applying the highest recent recommendation"}
	}
	return limitedSize{most, readyForNewScale, "recommended size matches current size"}
}

// limitDefault limits the desired number of replicas of an autoscaler without behavior to minReplicas, maxReplicas and
// the default scale-up limit.
func limitDefault(l limits, current, desired int32) limitedSize {
	fastest := roundUp(math.Max(upFactor*float64(current), upMinimum))
	most := limitedSize{l.max, "TooManyReplicas", "the desired replica count is more than the maximum replica count"}
	if l.max > fastest {
		most = limitedSize{fastest, "ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate"}
	}
	switch {
	case desired < l.min:
		return limitedSize{l.min, "TooFewReplicas", "the desired replica count is less than the minimum replica count"}
	case desired > most.replicas:
		return most
	}
	return limitedSize{desired, withinRange, "the desired count is within the acceptable range"}
}

// limitByBehavior limits the desired number of replicas to minReplicas, maxReplicas and the policies in the behavior b
// of the autoscaler.
func (m *scalingHistory) limitByBehavior(now time.Time, b *autoscalingv2.HorizontalPodAutoscalerBehavior, l limits, current, desired int32) limitedSize {
	switch {
	case desired > current:
		fastest := max(m.upLimit(now, b.ScaleUp, current), current)
		most := limitedSize{l.max, "TooManyReplicas", "the desired replica count is more than the maximum replica count"}
		if l.max > fastest {
			most = limitedSize{fastest, "ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate"}
		}
		if desired > most.replicas {
			return most
		}
	case desired < current:
		fastest := min(m.downLimit(now, b.ScaleDown, current), current)
		least := limitedSize{l.min, "TooFewReplicas", "the desired replica count is less than the minimum replica count"}
		if l.min < fastest {
			least = limitedSize{fastest, "ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate"}
		}
		if desired < least.replicas {
			return least
		}
	}
	return limitedSize{desired, withinRange, "the desired count is within the acceptable range"}
}

// within returns by how many replicas changes have changed the size in the last seconds before now.
func within(changes []change, now time.Time, seconds int32) int32 {
	var n int32
	for _, c := range changes {
		if c.at.After(now.Add(-time.Duration(seconds) * time.Second)) {
			n += c.replicas
		}
	}
	return n
}

// upLimit returns the highest number of replicas that the scale-up policies in r allow now. If r is nil, there is no
// limit. If r disables scaling, the limit is current.
func (m *scalingHistory) upLimit(now time.Time, r *autoscalingv2.HPAScalingRules, current int32) int32 {
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

// downLimit returns the lowest number of replicas that the scale-down policies in r allow now. If r is nil, there is
// no limit. If r disables scaling, the limit is current.
func (m *scalingHistory) downLimit(now time.Time, r *autoscalingv2.HPAScalingRules, current int32) int32 {
	if r == nil {
		return math.MinInt32
	}
	// The maximum change results in the minimum size.
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

// selected returns which of several policies applies. The default is the one that allows the greatest change.
func selected(r *autoscalingv2.HPAScalingRules) autoscalingv2.ScalingPolicySelect {
	if r.SelectPolicy == nil {
		return autoscalingv2.MaxChangePolicySelect
	}
	return *r.SelectPolicy
}

// changed records that the size was changed, and from and to which number of replicas. It discards changes that are
// older than the longest period of a policy.
func (m *scalingHistory) changed(now time.Time, from, to int32) {
	const longest = 30 * time.Minute // the longest period of a policy
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
