package discovery

import (
	"cmp"
	"slices"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
)

// merge adds the versions of aggregated servers to groups, where they replace this server's versions of the same
// name. It sorts the versions of each group and returns the names of all groups, both by descending priority. The
// priority of a group is the highest one of its versions. order contains the names of the groups so far.
func (h *Handler) merge(groups map[string]*apidiscoveryv2.APIGroupDiscovery, order []string) []string {
	for _, v := range h.cfg.Aggregation.Versions() {
		g := groups[v.Group]
		if g == nil {
			g = &apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: v.Group}}
			groups[v.Group] = g
			order = append(order, v.Group)
		}
		i := slices.IndexFunc(g.Versions, func(have apidiscoveryv2.APIVersionDiscovery) bool {
			return have.Version == v.Discovery.Version
		})
		if i >= 0 {
			g.Versions[i] = v.Discovery
		} else {
			g.Versions = append(g.Versions, v.Discovery)
		}
	}
	highest := make(map[string]int32, len(groups))
	for name, g := range groups {
		of := make(map[string]int32, len(g.Versions))
		for _, v := range g.Versions {
			var group int32
			group, of[v.Version] = h.cfg.Aggregation.Priority(schema.GroupVersion{Group: name, Version: v.Version})
			highest[name] = max(highest[name], group)
		}
		slices.SortStableFunc(g.Versions, func(a, b apidiscoveryv2.APIVersionDiscovery) int {
			return cmp.Or(cmp.Compare(of[b.Version], of[a.Version]), version.CompareKubeAwareVersionStrings(b.Version, a.Version))
		})
	}
	slices.SortStableFunc(order, func(a, b string) int {
		return cmp.Or(cmp.Compare(highest[b], highest[a]), cmp.Compare(a, b))
	})
	return order
}
