package shutdown

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"hyperkube/internal/pod/podutil"
)

// Period is the grace period of pods whose priority is at least Priority and lower than that of the
// next Period. The first Period also applies to pods of lower priority, and the last one has no upper limit.
type Period struct {
	Priority int32
	Grace    time.Duration // in whole seconds
}

// Periods converts the two forms of the kubelet's configuration of graceful node shutdown to one list, in the order
// in which pods are terminated. In the first form, all is the total grace period and criticals the part of it for
// critical pods; in the second, byPriority are the periods by pod priority. It returns an error if both are set or
// a value is not valid, and an empty list if graceful shutdown is disabled.
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
		return []Period{{Priority: 0, Grace: (all - criticals).Truncate(time.Second)}, {Priority: podutil.SystemCritical, Grace: criticals.Truncate(time.Second)}}, nil
	}
	out := slices.Clone(byPriority)
	slices.SortStableFunc(out, func(a, b Period) int { return cmp.Compare(a.Priority, b.Priority) })
	return out, nil
}

// total returns the sum of the grace periods: by how long the shutdown of the machine must be delayed.
func total(periods []Period) time.Duration {
	var sum time.Duration
	for _, p := range periods {
		sum += p.Grace
	}
	return sum
}

// groups returns the pods of each period. A pod belongs to the period with the highest priority that does not
// exceed its own, otherwise to the first one.
func groups(periods []Period, pods []*v1.Pod) [][]*v1.Pod {
	out := make([][]*v1.Pod, len(periods))
	for _, pod := range pods {
		priority := podutil.Priority(pod)
		i := len(periods) - 1
		for i > 0 && periods[i].Priority > priority {
			i--
		}
		out[i] = append(out[i], pod)
	}
	return out
}
