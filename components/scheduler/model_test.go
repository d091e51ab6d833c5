package scheduler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/plugins"
	"hyperkube/components/scheduler/state"
)

// world is the state of a cluster in a naive model.
type world struct {
	nodes []*corev1.Node
	on    map[string][]*corev1.Pod
}

func (w *world) state() *state.State {
	s := state.New()
	for _, n := range w.nodes {
		s.SetNode(n)
	}
	for name, pods := range w.on {
		for _, p := range pods {
			s.SetPod(state.NewPod(p), name)
		}
	}
	return s
}

func matches(sel *metav1.LabelSelector, p *corev1.Pod) bool {
	s, err := metav1.LabelSelectorAsSelector(sel)
	return err == nil && s.Matches(labels.Set(p.Labels))
}

// fits implements the documentation literally, and iterates over all pods.
func (w *world) fits(p *corev1.Pod, n *corev1.Node) bool {
	cpu := p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
	for _, q := range w.on[n.Name] {
		cpu += q.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
		for _, a := range q.Spec.Containers[0].Ports {
			for _, b := range p.Spec.Containers[0].Ports {
				if a.HostPort == b.HostPort {
					return false
				}
			}
		}
	}
	if cpu > n.Status.Allocatable.Cpu().MilliValue() || int64(len(w.on[n.Name])) >= n.Status.Allocatable.Pods().Value() {
		return false
	}
	for _, taint := range n.Spec.Taints {
		if len(p.Spec.Tolerations) == 0 && taint.Effect == corev1.TaintEffectNoSchedule {
			return false
		}
	}
	together := func(key string, yes func(q *corev1.Pod) bool) int {
		count := 0
		for _, m := range w.nodes {
			if v, ok := m.Labels[key]; ok && v == n.Labels[key] {
				for _, q := range w.on[m.Name] {
					if yes(q) {
						count++
					}
				}
			}
		}
		return count
	}
	for _, m := range w.nodes {
		for _, q := range w.on[m.Name] {
			if q.Spec.Affinity == nil || q.Spec.Affinity.PodAntiAffinity == nil {
				continue
			}
			for _, term := range q.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
				here, ok := n.Labels[term.TopologyKey]
				there, ok2 := m.Labels[term.TopologyKey]
				if ok && ok2 && here == there && matches(term.LabelSelector, p) {
					return false
				}
			}
		}
	}
	if a := p.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		for _, term := range a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			if _, ok := n.Labels[term.TopologyKey]; ok && together(term.TopologyKey, func(q *corev1.Pod) bool { return matches(term.LabelSelector, q) }) > 0 {
				return false
			}
		}
	}
	if a := p.Spec.Affinity; a != nil && a.PodAffinity != nil {
		terms := a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		all := func(q *corev1.Pod) bool {
			for _, term := range terms {
				if !matches(term.LabelSelector, q) {
					return false
				}
			}
			return true
		}
		any := false
		for _, m := range w.nodes {
			for _, term := range terms {
				_, ok := m.Labels[term.TopologyKey]
				any = any || ok && slices.ContainsFunc(w.on[m.Name], all)
			}
		}
		for _, term := range terms {
			if _, ok := n.Labels[term.TopologyKey]; !ok {
				return false
			}
			if together(term.TopologyKey, all) == 0 && (any || !all(p)) {
				return false
			}
		}
	}
	for _, c := range p.Spec.TopologySpreadConstraints {
		if _, ok := n.Labels[c.TopologyKey]; !ok {
			return false
		}
		counts := map[string]int{}
		for _, m := range w.nodes {
			taking := true
			for _, other := range p.Spec.TopologySpreadConstraints {
				_, ok := m.Labels[other.TopologyKey]
				taking = taking && ok
			}
			if !taking {
				continue
			}
			counts[m.Labels[c.TopologyKey]] += 0
			for _, q := range w.on[m.Name] {
				if matches(c.LabelSelector, q) && q.DeletionTimestamp == nil {
					counts[m.Labels[c.TopologyKey]]++
				}
			}
		}
		least := 1 << 30
		for _, v := range counts {
			least = min(least, v)
		}
		if len(counts) == 0 || c.MinDomains != nil && len(counts) < int(*c.MinDomains) {
			least = 0
		}
		self := 0
		if matches(c.LabelSelector, p) {
			self = 1
		}
		if counts[n.Labels[c.TopologyKey]]+self-least > int(c.MaxSkew) {
			return false
		}
	}
	return true
}

// evict returns the preemption victims on a node and how many of them are protected by budgets. ok
// is false if preemption does not help.
func (w *world) evict(p *corev1.Pod, n *corev1.Node, budgets []*policyv1.PodDisruptionBudget) (gone []*corev1.Pod, violations int, ok bool) {
	before := w.on[n.Name]
	defer func() { w.on[n.Name] = before }()
	var stay, lower []*corev1.Pod
	for _, q := range before {
		if *q.Spec.Priority < *p.Spec.Priority {
			lower = append(lower, q)
		} else {
			stay = append(stay, q)
		}
	}
	w.on[n.Name] = stay
	if len(lower) == 0 || !w.fits(p, n) {
		return nil, 0, false
	}
	sort.Slice(lower, func(i, j int) bool { return moreImportant(lower[i], lower[j]) })
	used := map[*policyv1.PodDisruptionBudget]int32{}
	var protected, rest []*corev1.Pod
	for _, q := range lower {
		violates := false
		for _, b := range budgets {
			if matches(b.Spec.Selector, q) {
				used[b]++
				violates = violates || used[b] > b.Status.DisruptionsAllowed
			}
		}
		if violates {
			protected = append(protected, q)
		} else {
			rest = append(rest, q)
		}
	}
	for i, q := range append(protected, rest...) {
		w.on[n.Name] = append(slices.Clone(stay), q)
		if w.fits(p, n) {
			stay = w.on[n.Name]
			continue
		}
		gone = append(gone, q)
		if i < len(protected) {
			violations++
		}
	}
	sort.Slice(gone, func(i, j int) bool { return moreImportant(gone[i], gone[j]) })
	return gone, violations, true
}

func moreImportant(a, b *corev1.Pod) bool {
	if *a.Spec.Priority != *b.Spec.Priority {
		return *a.Spec.Priority > *b.Spec.Priority
	}
	if !a.Status.StartTime.Equal(b.Status.StartTime) {
		return a.Status.StartTime.Before(b.Status.StartTime)
	}
	return a.UID < b.UID
}

func randomPod(rng *rand.Rand, name string) *corev1.Pod {
	priority := int32(rng.IntN(4))
	start := metav1.Unix(int64(1000+rng.IntN(50)), 0)
	p := pod(name, requests(fmt.Sprintf("%dm", 100*(1+rng.IntN(12)))), labelled(map[string]string{"app": fmt.Sprintf("a%d", rng.IntN(3))}))
	p.Spec.Priority, p.Status.StartTime = &priority, &start
	keys := []string{corev1.LabelHostname, corev1.LabelTopologyZone, "rack"}
	selector := func() *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprintf("a%d", rng.IntN(3))}}
	}
	term := func() corev1.PodAffinityTerm {
		return corev1.PodAffinityTerm{TopologyKey: keys[rng.IntN(3)], LabelSelector: selector()}
	}
	switch rng.IntN(10) {
	case 0:
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term()}}}
	case 1:
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term()}}}
		if rng.IntN(2) == 0 {
			a := p.Spec.Affinity.PodAffinity
			a.RequiredDuringSchedulingIgnoredDuringExecution = append(a.RequiredDuringSchedulingIgnoredDuringExecution, term())
		}
	case 2, 3:
		for range 1 + rng.IntN(2) {
			c := corev1.TopologySpreadConstraint{
				MaxSkew: int32(1 + rng.IntN(2)), TopologyKey: keys[rng.IntN(3)], WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: selector(),
			}
			if rng.IntN(3) == 0 {
				domains := int32(1 + rng.IntN(4))
				c.MinDomains = &domains
			}
			p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, c)
		}
	case 4:
		hostPort("", int32(80+rng.IntN(2)))(p)
	case 5:
		p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	}
	if rng.IntN(8) == 0 {
		now := metav1.Unix(2000, 0)
		p.DeletionTimestamp = &now
	}
	return p
}

func randomWorld(rng *rand.Rand) *world {
	w := &world{on: map[string][]*corev1.Pod{}}
	for i := range 1 + rng.IntN(6) {
		n := node(fmt.Sprintf("n%d", i))
		if rng.IntN(8) > 0 {
			zone(fmt.Sprintf("z%d", rng.IntN(3)))(n)
		}
		if rng.IntN(2) == 0 {
			n.Labels["rack"] = fmt.Sprintf("r%d", rng.IntN(2))
		}
		if rng.IntN(6) == 0 {
			n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
		}
		w.nodes = append(w.nodes, n)
	}
	for i := range rng.IntN(30) {
		n := w.nodes[rng.IntN(len(w.nodes))].Name
		w.on[n] = append(w.on[n], randomPod(rng, fmt.Sprintf("p%d", i)))
	}
	return w
}

// remember returns a text with the whole state, to check that it is restored.
func remember(s *state.State) string {
	var lines []string
	for _, n := range s.Nodes() {
		names := []string{}
		for _, p := range n.Pods {
			names = append(names, p.Object.Name)
		}
		slices.Sort(names)
		lines = append(lines, fmt.Sprintf("%s %v %+v %v %d", n.Name, names, n.Requested, n.Ports, n.NonZeroCPU))
	}
	for _, c := range s.Classes() {
		for _, t := range c.On {
			lines = append(lines, fmt.Sprintf("%v %v on %s: %d", c.Labels, c.Terms != nil, t.Node.Name, t.Count))
		}
	}
	lines = append(lines, fmt.Sprint(len(s.Classes()), len(s.AwayClasses()), len(s.AffineClasses())))
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// sumsOf returns the scores that best computes for each node.
func sumsOf(c *framework.Cycle, set *plugins.Set, nodes []*state.Node, room *framework.Buffers) []int64 {
	c.Buffers = room
	if best(c, set, nodes, nil, nil); len(nodes) < 2 {
		return nil
	}
	return slices.Clone(room.Sums)
}

// TestAgainstModel compares which nodes fit, and the preemption victims if none fits, with a naive
// model that recounts all pods each time.
func TestAgainstModel(t *testing.T) {
	now := time.Unix(3000, 0)
	set := plugins.Default()
	evicted, placed := 0, 0
	room := &framework.Buffers{}
	for seed := range uint64(4000) {
		rng := rand.New(rand.NewPCG(seed, 7))
		w := randomWorld(rng)
		s := w.state()
		p := randomPod(rng, "new")
		p.DeletionTimestamp = nil
		var budgets []*policyv1.PodDisruptionBudget
		var read []*budget
		for i := range rng.IntN(3) {
			b := &policyv1.PodDisruptionBudget{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint(i)},
				Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprintf("a%d", rng.IntN(3))}}},
				Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: int32(rng.IntN(2))},
			}
			budgets, read = append(budgets, b), append(read, newBudget(b))
		}
		before := remember(s)
		cycle := &framework.Cycle{Pod: state.NewPod(p), State: s, Buffers: room}
		fitting, failed := candidates(cycle, &set, nil, nil)
		got, want := sets.New[string](), sets.New[string]()
		for _, n := range fitting {
			got.Insert(n.Name)
		}
		for _, n := range w.nodes {
			if w.fits(p, n) {
				want.Insert(n.Name)
			}
		}
		if !got.Equal(want) {
			t.Fatalf("seed %d: fits %v, want %v", seed, sets.List(got), sets.List(want))
		}
		if failed == nil {
			placed++
			cycle.Buffers = nil
			fresh, _ := candidates(cycle, &set, nil, nil)
			sums := sumsOf(cycle, &set, fresh, &framework.Buffers{})
			if again := sumsOf(cycle, &set, fitting, room); !slices.Equal(again, sums) {
				t.Fatalf("seed %d: scores with reused buffers %v, want %v", seed, again, sums)
			}
			continue
		}
		v := preempt(failed, set.Preemption, read, now)
		if after := remember(s); after != before {
			t.Fatalf("seed %d: state not restored:\n%s\nwas\n%s", seed, after, before)
		}
		// The model's best node of those where preemption may help.
		bestRank, bestGone := []int64(nil), map[string]string{}
		for _, n := range failed.resolvable {
			gone, violations, ok := w.evict(p, n.Object, budgets)
			if !ok {
				continue
			}
			rank := []int64{int64(violations), -1 << 40, 0, int64(len(gone)), 0}
			names := []string{}
			first := now
			for _, q := range gone {
				rank[1] = max(rank[1], int64(*q.Spec.Priority))
				rank[2] += int64(*q.Spec.Priority) + 1<<31
				names = append(names, q.Name)
			}
			for _, q := range gone {
				if int64(*q.Spec.Priority) == rank[1] && q.Status.StartTime.Time.Before(first) {
					first = q.Status.StartTime.Time
				}
			}
			rank[4] = -first.Unix()
			switch c := slices.Compare(rank, bestRank); {
			case bestRank == nil || c < 0:
				bestRank, bestGone = rank, map[string]string{n.Name: strings.Join(names, " ")}
			case c == 0:
				bestGone[n.Name] = strings.Join(names, " ")
			}
		}
		if v == nil {
			if bestRank != nil {
				t.Fatalf("seed %d: no victims (%s), want %v", seed, failed, bestGone)
			}
			continue
		}
		evicted++
		names := []string{}
		for _, q := range v.pods {
			names = append(names, q.Object.Name)
		}
		if want, ok := bestGone[v.node.Name]; !ok || want != strings.Join(names, " ") {
			t.Fatalf("seed %d: evicts %v on %s, want %v", seed, names, v.node.Name, bestGone)
		}
	}
	if evicted < 100 || placed < 100 {
		t.Errorf("only %d evictions and %d placements", evicted, placed)
	}
}
