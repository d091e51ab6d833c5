package shutdown

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"hyperkube/internal/podfacts"
)

// Period is how long pods of a priority, and of those up to the next one's, may
// take to end.
type Period struct {
	Priority int32
	Grace    time.Duration // whole seconds
}

// Periods makes the one form of the two ways in which a configuration tells the
// periods: all of the time and the part of it that is for critical pods, or by
// priority. They are in the order in which pods end; none: nobody waits.
func Periods(all, criticals time.Duration, byPriority []Period) ([]Period, error) {
	switch {
	case all < 0 || all > 0 && all < time.Second:
		return nil, fmt.Errorf("shutdownGracePeriod %v must be either zero or otherwise >= 1 sec", all)
	case criticals < 0 || criticals > 0 && criticals < time.Second:
		return nil, fmt.Errorf("shutdownGracePeriodCriticalPods %v must be either zero or otherwise >= 1 sec", criticals)
	case criticals > all:
		return nil, fmt.Errorf("shutdownGracePeriodCriticalPods %v must be <= shutdownGracePeriod %v", criticals, all)
	case (all > 0 || criticals > 0) && len(byPriority) > 0:
		return nil, errors.New("cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time")
	}
	for _, p := range byPriority {
		if p.Grace < 0 {
			return nil, fmt.Errorf("shutdownGracePeriodByPodPriority: the period of priority %d must not be negative", p.Priority)
		}
	}
	if all > 0 {
		return []Period{{Priority: 0, Grace: (all - criticals).Truncate(time.Second)}, {Priority: podfacts.SystemCritical, Grace: criticals.Truncate(time.Second)}}, nil
	}
	out := slices.Clone(byPriority)
	slices.SortStableFunc(out, func(a, b Period) int { return cmp.Compare(a.Priority, b.Priority) })
	return out, nil
}

// total is how long the machine's shutdown has to wait in all.
func total(periods []Period) time.Duration {
	var sum time.Duration
	for _, p := range periods {
		sum += p.Grace
	}
	return sum
}

// groups tells the pods apart by their priorities, in the order of periods: a
// pod belongs to the highest priority that is not above its own, or else to the
// lowest one.
func groups(periods []Period, pods []*v1.Pod) [][]*v1.Pod {
	out := make([][]*v1.Pod, len(periods))
	for _, pod := range pods {
		priority := podfacts.Priority(pod)
		i := len(periods) - 1
		for i > 0 && periods[i].Priority > priority {
			i--
		}
		out[i] = append(out[i], pod)
	}
	return out
}
