package metrics

import (
	"maps"
	"net/http"
	"testing"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// TestUnknownResource checks that requests for resources that are not served are counted together,
// but dry runs separately.
func TestUnknownResource(t *testing.T) {
	m := New()
	m.Served = func(*apirequest.RequestInfo) bool { return false }
	for _, a := range []Answer{{DryRun: true}, {}, {}} {
		for _, resource := range []string{"unicorns", "dragons"} {
			a.Method, a.Code = http.MethodPost, http.StatusNotFound
			m.Request(&apirequest.RequestInfo{IsResourceRequest: true, Verb: "create", Resource: resource}, a)
		}
	}
	families, err := m.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "apiserver_request_total" {
			continue
		}
		for _, series := range f.GetMetric() {
			for _, label := range series.GetLabel() {
				switch label.GetName() {
				case "dry_run":
					got[label.GetValue()] += series.GetCounter().GetValue()
				case "resource":
					if label.GetValue() != "" {
						t.Errorf("counted with the name of an unknown resource: %s", label.GetValue())
					}
				}
			}
		}
	}
	if want := map[string]float64{"": 4, "All": 2}; !maps.Equal(got, want) {
		t.Errorf("by dry run %v, want %v", got, want)
	}
}
