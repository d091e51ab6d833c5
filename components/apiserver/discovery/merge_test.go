package discovery

import (
	"slices"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

type others struct {
	priorities map[string][2]int32
	versions   []Version
}

func (others) Generation() uint64 { return 1 }

func (o others) Priority(gv schema.GroupVersion) (int32, int32) {
	p := o.priorities[gv.String()]
	return p[0], p[1]
}

func (o others) Versions() []Version { return o.versions }

func TestMerge(t *testing.T) {
	served := func(versions ...string) (out []apidiscoveryv2.APIVersionDiscovery) {
		for _, v := range versions {
			out = append(out, apidiscoveryv2.APIVersionDiscovery{Version: v, Freshness: "Current"})
		}
		return out
	}
	group := func(name string, versions ...string) *apidiscoveryv2.APIGroupDiscovery {
		return &apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: name}, Versions: served(versions...)}
	}
	h := New(Config{Aggregation: others{
		priorities: map[string][2]int32{
			"v1": {18000, 1}, "apps/v1": {17800, 15}, "b/v1": {1000, 100}, "a/v1": {1000, 100},
			"mix/v1": {500, 1}, "mix/v2": {20000, 1}, "mix/v1beta1": {500, 1},
		},
		versions: []Version{
			{"mix", apidiscoveryv2.APIVersionDiscovery{Version: "v2", Freshness: "Stale"}},
			{"a", apidiscoveryv2.APIVersionDiscovery{Version: "v1", Freshness: "Stale"}},
		},
	}})
	groups := map[string]*apidiscoveryv2.APIGroupDiscovery{
		"": group("", "v1"), "b": group("b", "v1"), "apps": group("apps", "v1"), "mix": group("mix", "v1beta1", "v1"), "a": group("a", "v1"),
	}
	order := h.merge(groups, []string{"", "b", "apps", "mix", "a"})
	if want := []string{"mix", "", "apps", "a", "b"}; !slices.Equal(order, want) {
		t.Errorf("groups %q, want %q", order, want)
	}
	var versions []string
	for _, v := range groups["mix"].Versions {
		versions = append(versions, v.Version)
	}
	if want := []string{"v2", "v1", "v1beta1"}; !slices.Equal(versions, want) {
		t.Errorf("versions %q, want %q", versions, want)
	}
	if got := groups["a"].Versions; len(got) != 1 || got[0].Freshness != "Stale" {
		t.Errorf("the aggregated version does not replace the local one: %v", got)
	}
}
