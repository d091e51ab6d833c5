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

// budget is a PodDisruptionBudget and how many evictions it still allows.
type budget struct {
	object   *policyv1.PodDisruptionBudget
	selector labels.Selector
}

// newBudget reads a budget; nil when it speaks of no pods.
func newBudget(object *policyv1.PodDisruptionBudget) *budget {
	selector, err := metav1.LabelSelectorAsSelector(object.Spec.Selector)
	if err != nil || selector.Empty() {
		return nil
	}
	return &budget{object, selector}
}

// victims are the pods to evict from one node, the most important first.
type victims struct {
	node *state.Node
	pods []*state.Pod
	// violations counts those whose eviction a budget forbids.
	violations int
}

// preempt finds the node where evicting others makes room for the pod that fits
// nowhere, and whom to evict. Nil means none; failed.preemption says which, or
// why none.
// It is pure but for where it begins: when evictions may help on very many
// nodes, not all are compared.
//
// https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/
func preempt(failed *unfit, p *plugins.DefaultPreemption, budgets []*budget, now time.Time) *victims {
	v, _ := preemptAmong(failed, p, budgets, now, func(found []*victims) ([]*victims, error) { return found, nil })
	return v
}

// errNoCandidate is that extenders let nobody be evicted.
var errNoCandidate = errors.New("no candidate node for preemption")

// preemptAmong is preempt among what narrow leaves of the nodes where it would help,
// of which there is at least one. The error is narrow's, or that it left none.
func preemptAmong(failed *unfit, p *plugins.DefaultPreemption, budgets []*budget, now time.Time, narrow func([]*victims) ([]*victims, error)) (*victims, error) {
	if failed.search == nil || failed.nodes == 0 {
		return nil, nil
	}
	if why := mayNotPreempt(failed); why != "" {
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
		v := gentlest(left, now)
		failed.preemption = fmt.Sprintf("preemption: found a potential placement for pod on node %s, preempting %d victims", v.node.Name, len(v.pods))
		return v, nil
	}
	if rest := failed.nodes - len(failed.resolvable); rest > 0 {
		reasons["Preemption is not helpful for scheduling"] += rest
	}
	failed.preemption = "preemption: " + fitText(failed.nodes, reasons)
	return nil, nil
}

// mayNotPreempt tells why the pod may not have others evicted.
func mayNotPreempt(failed *unfit) string {
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

// preempted tells whether a pod was evicted by a scheduler.
func preempted(pod *corev1.Pod) bool {
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		if c.Type == corev1.DisruptionTarget {
			return c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonPreemptionByScheduler
		}
	}
	return false
}

// victims finds out whom to evict from a node: all pods of lower priority, less
// those that can stay, tried in the order of their importance, those first that
// budgets protect. Nil when the pod does not fit even so; then it says why.
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
		// It is not pods that keep this one from the node.
		return nil, []string{"No preemption victims found for incoming pod"}
	}
	slices.SortStableFunc(v.pods, func(a, b *state.Pod) int { return byImportance(a, b, now) })
	return v, nil
}

// byImportance puts higher priorities first, and what has run longer.
func byImportance(a, b *state.Pod, now time.Time) int {
	if a.Priority != b.Priority {
		return cmp.Compare(b.Priority, a.Priority)
	}
	if c := started(a, now).Compare(started(b, now)); c != 0 {
		return c
	}
	return cmp.Compare(a.Object.UID, b.Object.UID)
}

// started is when a pod started; one that has not yet does so now.
func started(p *state.Pod, now time.Time) time.Time {
	if t := p.Object.Status.StartTime; t != nil {
		return t.Time
	}
	return now
}

// split parts pods, in their order, into those whose eviction a budget would
// forbid after that of those before, and the others.
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
			// Its eviction is accounted for already.
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

// gentlest chooses among nodes: the fewest violated budgets, then the least
// important of the most important victims, the smallest sum of priorities, the
// fewest victims, and the most important of which started latest.
func gentlest(all []*victims, now time.Time) *victims {
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

func highest(v *victims) int32 {
	if len(v.pods) == 0 {
		return math.MinInt32
	}
	return v.pods[0].Priority
}

// sum makes every victim count, that of a negative priority too.
func sum(v *victims) int64 {
	var total int64
	for _, p := range v.pods {
		total += int64(p.Priority) + math.MaxInt32 + 1
	}
	return total
}

// earliest is when the first of the most important victims started.
func earliest(v *victims, now time.Time) time.Time {
	first := now
	for _, p := range v.pods {
		if t := started(p, now); p.Priority == v.pods[0].Priority && t.Before(first) {
			first = t
		}
	}
	return first
}
