package scheduler

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"hyperkube/components/scheduler/plugins"
	"hyperkube/components/scheduler/state"
)

// budget is a PodDisruptionBudget with its parsed selector, for preemption.
type budget struct {
	object   *policyv1.PodDisruptionBudget
	selector labels.Selector
}

// newBudget parses the selector of a PodDisruptionBudget. It returns nil if the selector is invalid or empty:
// preemption ignores such budgets, as upstream, although an empty selector selects all pods for evictions by the API.
func newBudget(object *policyv1.PodDisruptionBudget) *budget {
	selector, err := metav1.LabelSelectorAsSelector(object.Spec.Selector)
	if err != nil || selector.Empty() {
		return nil
	}
	return &budget{object, selector}
}

// victims is a candidate for preemption: a node, and the pods on it to evict, the most important first.
type victims struct {
	node *state.Node
	pods []*state.Pod
	// violations is the number of victims that violate a budget.
	violations int
}

// preempt finds a node on which evicting pods of lower priority makes an unschedulable pod schedulable, without
// extenders. It returns the victims on that node, or nil if there is no such node. It sets failed.preemption to a
// message with the result.
//
// It has no side effects. If preemption may help on very many nodes, it compares only as many candidates as p specifies
// and starts at a random node.
//
// https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/
func preempt(failed *fitError, p *plugins.DefaultPreemption, budgets []*budget, now time.Time) *victims {
	v, _ := preemptAmong(failed, p, budgets, now, func(found []*victims) ([]*victims, error) { return found, nil })
	return v
}

// errNoCandidate is returned by preemptAmong if extenders reject all candidates.
var errNoCandidate = errors.New("no candidate node for preemption")

// preemptAmong is preempt with a function that selects among the candidates, such as extenders. narrow is called with
// at least one candidate. preemptAmong returns the error of narrow, or errNoCandidate if narrow returns no candidates.
func preemptAmong(failed *fitError, p *plugins.DefaultPreemption, budgets []*budget, now time.Time, narrow func([]*victims) ([]*victims, error)) (*victims, error) {
	if failed.search == nil || failed.nodes == 0 {
		return nil, nil
	}
	if why := preemptionForbidden(failed); why != "" {
		failed.preemption = "preemption: " + why
		return nil, nil
	}
	var found []*victims
	reasons := map[string]int{}
	enough, harmless := p.Enough(failed.nodes), false
	if len(failed.resolvable) > 0 {
		offset := rand.IntN(len(failed.resolvable))
		for i := range failed.resolvable {
			if len(found) >= enough && harmless {
				break
			}
			n := failed.resolvable[(offset+i)%len(failed.resolvable)]
			v, why := failed.search.victims(n, budgets, now)
			if v != nil {
				found = append(found, v)
				harmless = harmless || v.violations == 0
			}
			for _, text := range why {
				reasons[text]++
			}
		}
	}
	if len(found) > 0 {
		left, err := narrow(found)
		if err == nil && len(left) == 0 {
			err = errNoCandidate
		}
		if err != nil {
			failed.preemption = "preemption: " + err.Error()
			return nil, err
		}
		v := bestCandidate(left, now)
		failed.preemption = fmt.Sprintf("preemption: found a potential placement for pod on node %s, preempting %d victims", v.node.Name, len(v.pods))
		return v, nil
	}
	if rest := failed.nodes - len(failed.resolvable); rest > 0 {
		reasons["Preemption is not helpful for scheduling"] += rest
	}
	failed.preemption = "preemption: " + fitText(failed.nodes, reasons)
	return nil, nil
}

// preemptionForbidden returns the reason why the pod must not preempt others, or "". This is the case if its policy is
// Never, or if pods that it preempted before are still terminating on its nominated node.
func preemptionForbidden(failed *fitError) string {
	pod := failed.search.c.Pod
	if policy := pod.Object.Spec.PreemptionPolicy; policy != nil && *policy == corev1.PreemptNever {
		return "not eligible due to preemptionPolicy=Never."
	}
	n := failed.search.c.State.NominatedNode(pod.Object.UID)
	if n == nil || !slices.Contains(failed.resolvable, n) {
		return ""
	}
	for _, p := range n.Pods {
		if p.Priority < pod.Priority && p.Object.DeletionTimestamp != nil && preempted(p.Object) {
			return "not eligible due to a terminating pod on the nominated node."
		}
	}
	return ""
}

// preempted reports whether the pod was evicted by a scheduler's preemption, according to its DisruptionTarget
// condition.
func preempted(pod *corev1.Pod) bool {
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		if c.Type == corev1.DisruptionTarget {
			return c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonPreemptionByScheduler
		}
	}
	return false
}

// victims returns the victims on a node that must be evicted for the pod to fit. It removes all pods of lower priority,
// and adds them back one by one while the pod still fits: first pods whose eviction would violate a budget, then the
// others, the most important first. If preemption does not help, it returns nil and the reasons. The state is unchanged
// afterwards.
func (s *search) victims(n *state.Node, budgets []*budget, now time.Time) (*victims, []string) {
	var lower []*state.Pod
	for _, p := range n.Pods {
		if p.Priority < s.c.Pod.Priority {
			lower = append(lower, p)
		}
	}
	if len(lower) == 0 {
		return nil, []string{"No preemption victims found for incoming pod"}
	}
	for _, p := range lower {
		s.move(p, n, -1)
	}
	gone := map[*state.Pod]bool{}
	for _, p := range lower {
		gone[p] = true
	}
	defer func() {
		for _, p := range lower {
			if gone[p] {
				s.move(p, n, 1)
			}
		}
	}()
	if reasons, _ := s.check(n); reasons != nil {
		texts := make([]string, len(reasons))
		for i, r := range reasons {
			texts[i] = r.Text
		}
		return nil, texts
	}
	slices.SortFunc(lower, func(a, b *state.Pod) int { return byImportance(a, b, now) })
	protected, rest := split(lower, budgets)
	v := &victims{node: n}
	spare := func(p *state.Pod) bool {
		s.move(p, n, 1)
		if reasons, _ := s.check(n); reasons != nil {
			s.move(p, n, -1)
			v.pods = append(v.pods, p)
			return false
		}
		delete(gone, p)
		return true
	}
	for _, p := range protected {
		if !spare(p) {
			v.violations++
		}
	}
	for _, p := range rest {
		spare(p)
	}
	if len(v.pods) == 0 {
		// The pod does not fit for a reason other than existing pods.
		return nil, []string{"No preemption victims found for incoming pod"}
	}
	slices.SortStableFunc(v.pods, func(a, b *state.Pod) int { return byImportance(a, b, now) })
	return v, nil
}

// byImportance compares pods for sorting: higher priority first, then earlier start time. A pod that has not started
// counts as started at now.
func byImportance(a, b *state.Pod, now time.Time) int {
	if a.Priority != b.Priority {
		return cmp.Compare(b.Priority, a.Priority)
	}
	if c := started(a, now).Compare(started(b, now)); c != 0 {
		return c
	}
	return cmp.Compare(a.Object.UID, b.Object.UID)
}

// started returns when a pod started, or now if it has not.
func started(p *state.Pod, now time.Time) time.Time {
	if t := p.Object.Status.StartTime; t != nil {
		return t.Time
	}
	return now
}

// split divides pods into those whose eviction would violate a budget and the rest. The budgets' allowed disruptions
// are used up in the order of pods, which both results keep.
func split(pods []*state.Pod, budgets []*budget) (protected, rest []*state.Pod) {
	allowed := make([]int32, len(budgets))
	for i, b := range budgets {
		allowed[i] = b.object.Status.DisruptionsAllowed
	}
	for _, p := range pods {
		violates := false
		for i, b := range budgets {
			if len(p.Object.Labels) == 0 || b.object.Namespace != p.Object.Namespace || !b.selector.Matches(labels.Set(p.Object.Labels)) {
				continue
			}
			// The budget already accounts for the eviction.
			if _, ok := b.object.Status.DisruptedPods[p.Object.Name]; ok {
				continue
			}
			allowed[i]--
			violates = violates || allowed[i] < 0
		}
		if violates {
			protected = append(protected, p)
		} else {
			rest = append(rest, p)
		}
	}
	return protected, rest
}

// bestCandidate returns the candidate with the least disruption. It compares in this order: the fewest budget
// violations, the lowest priority of the most important victim, the smallest sum of priorities, the fewest victims, and
// the latest start time of the victims with the highest priority.
func bestCandidate(all []*victims, now time.Time) *victims {
	return slices.MinFunc(all, func(a, b *victims) int {
		return cmp.Or(
			cmp.Compare(a.violations, b.violations),
			cmp.Compare(highest(a), highest(b)),
			cmp.Compare(sum(a), sum(b)),
			cmp.Compare(len(a.pods), len(b.pods)),
			earliest(b, now).Compare(earliest(a, now)),
		)
	})
}

// highest returns the priority of the most important victim, or the lowest number if there is none.
func highest(v *victims) int32 {
	if len(v.pods) == 0 {
		return math.MinInt32
	}
	return v.pods[0].Priority
}

// sum returns the sum of the victims' priorities. Each priority is shifted to be positive, so that every victim
// increases the sum.
func sum(v *victims) int64 {
	var total int64
	for _, p := range v.pods {
		total += int64(p.Priority) + math.MaxInt32 + 1
	}
	return total
}

// earliest returns the earliest start time among the victims that have the highest priority.
func earliest(v *victims, now time.Time) time.Time {
	first := now
	for _, p := range v.pods {
		if t := started(p, now); p.Priority == v.pods[0].Priority && t.Before(first) {
			first = t
		}
	}
	return first
}
