package topology

import (
	"context"
	"errors"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/resources/numa"
)

// two is a machine with two nodes. four is a machine with four nodes, of which 0 and 2 are close.
var (
	two  = numa.Machine{{ID: 0, Distances: []int{10, 21}}, {ID: 1, Distances: []int{21, 10}}}
	four = numa.Machine{
		{ID: 0, Distances: []int{10, 30, 12, 30}}, {ID: 1, Distances: []int{30, 10, 30, 12}},
		{ID: 2, Distances: []int{12, 30, 10, 30}}, {ID: 3, Distances: []int{30, 12, 30, 10}},
	}
)

// fixed is a provider that always returns the same hints.
type fixed struct {
	hints   Hints
	got     []numa.Set
	fails   error
	settled []bool
}

func (f *fixed) Hints(*v1.Pod, *v1.Container) Hints { return f.hints }
func (f *fixed) PodHints(*v1.Pod) Hints             { return f.hints }

func (f *fixed) Allocate(_ context.Context, _ *v1.Pod, _ *v1.Container, nodes numa.Set) error {
	f.got = append(f.got, nodes)
	return f.fails
}

func (f *fixed) Settle(_ *v1.Pod, ok bool) error { f.settled = append(f.settled, ok); return nil }

func yes(nodes numa.Set) Hint { return Hint{Nodes: nodes, Preferred: true} }
func no(nodes numa.Set) Hint  { return Hint{Nodes: nodes} }

func TestPolicies(t *testing.T) {
	const refused = numa.Set(1 << 60)
	for name, c := range map[string]struct {
		machine numa.Machine
		closest bool
		hints   []Hints
		// the results of best-effort, restricted and single-numa-node
		effort, restricted, single numa.Set
	}{
		"no hints":                      {two, false, []Hints{nil, {}}, 3, 3, 0},
		"no hints for one resource":     {two, false, []Hints{{"a": nil}, {"b": {yes(2)}}}, 2, 2, 2},
		"the same node":                 {two, false, []Hints{{"a": {yes(1), yes(2), no(3)}}, {"b": {yes(2), no(3)}}}, 2, 2, 2},
		"both nodes":                    {two, false, []Hints{{"a": {yes(1), yes(2), no(3)}}, {"b": {yes(1), yes(2), no(3)}}}, 1, 1, 1},
		"different nodes":               {two, false, []Hints{{"a": {yes(1), no(3)}}, {"b": {yes(2), no(3)}}}, 1, refused, refused},
		"more than one node":            {two, false, []Hints{{"a": {yes(3)}}}, 3, 3, refused},
		"not enough on one node":        {two, false, []Hints{{"a": {no(3)}}}, 3, refused, refused},
		"not available":                 {two, false, []Hints{{"a": {}}}, 3, refused, refused},
		"two resources of one provider": {two, false, []Hints{{"a": {yes(1), yes(2)}, "b": {yes(2)}}}, 2, 2, 2},
		"lowest pair of nodes":          {four, false, []Hints{{"a": {yes(3), yes(5), yes(10)}}}, 3, 3, refused},
		"closest pair of nodes":         {four, true, []Hints{{"a": {yes(3), yes(5), yes(10)}}}, 5, 5, refused},
		"minimum number of nodes":       {four, false, []Hints{{"a": {no(7), no(15)}}, {"b": {no(1), no(3)}}}, 3, refused, refused},
		"no set of nodes fits":          {four, false, []Hints{{"a": {no(15)}}, {"b": {no(6), no(15)}}}, 15, refused, refused},
	} {
		for policy, want := range map[string]numa.Set{BestEffort: c.effort, Restricted: c.restricted, SingleNode: c.single, None: 0} {
			options := map[string]string{}
			if c.closest {
				options[optionClosest] = "true"
			}
			var providers []Provider
			for _, h := range c.hints {
				providers = append(providers, &fixed{hints: h})
			}
			for _, scope := range []string{ScopeContainer, ScopePod} {
				first := &fixed{}
				m, err := New(Config{Policy: policy, Scope: scope, Options: options, Machine: c.machine, Providers: append([]Provider{first}, providers...)})
				if err != nil {
					t.Fatal(err)
				}
				pod := &v1.Pod{}
				pod.Spec.Containers = make([]v1.Container, 1)
				err = m.Admit(t.Context(), pod)
				switch {
				case want == refused:
					if !errors.Is(err, ErrAffinity) || len(first.got) > 0 || !slices.Equal(first.settled, []bool{false}) {
						t.Errorf("%s: %s admits: %v", name, policy, err)
					}
				case err != nil || !slices.Equal(first.got, []numa.Set{want}) || !slices.Equal(first.settled, []bool{true}):
					t.Errorf("%s: %s in scope %s gives %v, %v; want %v", name, policy, scope, first.got, err, want)
				}
			}
		}
	}
}

func TestProviderFails(t *testing.T) {
	p := &fixed{fails: errors.New("no")}
	m, err := New(Config{Providers: []Provider{p}})
	if err != nil {
		t.Fatal(err)
	}
	pod := &v1.Pod{}
	pod.Spec.Containers = make([]v1.Container, 2)
	if err := m.Admit(t.Context(), pod); err == nil || len(p.got) != 1 || !slices.Equal(p.settled, []bool{false}) {
		t.Errorf("%v, %v, %v", err, p.got, p.settled)
	}
}

func TestCheck(t *testing.T) {
	many := make(numa.Machine, 9)
	for _, c := range []struct {
		cfg Config
		ok  bool
	}{
		{Config{}, true},
		{Config{Policy: "some"}, false},
		{Config{Scope: "node"}, false},
		{Config{Policy: Restricted, Machine: many}, false},
		{Config{Policy: None, Machine: many}, true},
		{Config{Policy: Restricted, Machine: many, Options: map[string]string{optionMostNUMA: "9"}}, true},
		{Config{Options: map[string]string{optionMostNUMA: "7"}}, false},
		{Config{Options: map[string]string{optionClosest: "perhaps"}}, false},
		{Config{Options: map[string]string{"other": "true"}}, false},
	} {
		if _, err := New(c.cfg); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.cfg, err)
		}
	}
}

func TestRequest(t *testing.T) {
	always := v1.ContainerRestartPolicyAlways
	pod := &v1.Pod{}
	need := map[string]int64{"init": 5, "side": 2, "late": 4, "a": 1, "b": 2}
	pod.Spec.InitContainers = []v1.Container{{Name: "init"}, {Name: "side", RestartPolicy: &always}, {Name: "late"}}
	pod.Spec.Containers = []v1.Container{{Name: "a"}, {Name: "b"}}
	if n := Request(pod, func(c *v1.Container) int64 { return need[c.Name] }); n != 6 {
		t.Errorf("%d", n)
	}
}
