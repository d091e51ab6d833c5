package pods

import (
	"testing"

	"hyperkube/components/kubelet/podstate"
)

// TestSidecarsToStop: sidecars end one by one after the app containers, but none
// later than the pod's grace period.
func TestSidecarsToStop(t *testing.T) {
	order := map[string]int{"first": 0, "second": 1, "third": 2}
	for name, tc := range map[string]struct {
		running    []string
		apps, over bool
		want       string
	}{
		"app containers first":   {running: []string{"first", "third", "second"}, apps: true},
		"the last one":           {running: []string{"first", "third", "second"}, want: "third "},
		"then the one before":    {running: []string{"first", "second"}, want: "second "},
		"all when time is over":  {running: []string{"first", "second"}, over: true, want: "first second "},
		"even beside containers": {running: []string{"first"}, apps: true, over: true, want: "first "},
	} {
		var list []*podstate.Container
		for _, n := range tc.running {
			list = append(list, &podstate.Container{Name: n})
		}
		got := ""
		for _, st := range sidecarsToStop(list, order, tc.apps, tc.over) {
			got += st.Name + " "
		}
		if got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
