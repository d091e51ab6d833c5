package garbagecollector

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// mapping is the resource that serves the objects of a kind, and whether the resource is namespaced.
type mapping struct {
	gvr        schema.GroupVersionResource
	namespaced bool
}

// served contains the resources that the API server serves, as found by one discovery. It does not change after keep.
type served struct {
	// kinds maps each kind, in each version, to its resource.
	kinds map[schema.GroupVersionKind]mapping
	// deletable are the resources to watch, each in one version, with their kinds.
	deletable map[schema.GroupVersionResource]schema.GroupVersionKind
	// failed are the group versions that could not be discovered.
	failed map[schema.GroupVersion]error
}

// ignored reports whether a resource is not watched. This applies to Events, which are numerous and short-lived, and
// have neither owners nor dependents.
func ignored(gr schema.GroupResource) bool {
	return gr.Resource == "events" && (gr.Group == "" || gr.Group == "events.k8s.io")
}

// discoverAll requests the served resources from the API server. If some groups could not be discovered, it returns an
// error together with an incomplete result. The result is nil if discovery has failed completely.
func discoverAll(d discovery.DiscoveryInterface) (*served, error) {
	groups, lists, err := d.ServerGroupsAndResources()
	if err != nil && len(lists) == 0 {
		return nil, err
	}
	s := &served{
		kinds:     map[schema.GroupVersionKind]mapping{},
		deletable: map[schema.GroupVersionResource]schema.GroupVersionKind{},
		failed:    map[schema.GroupVersion]error{},
	}
	if failed, ok := errors.AsType[*discovery.ErrGroupDiscoveryFailed](err); ok {
		s.failed = failed.Groups
	}
	// The preference of each version; lower is preferred.
	rank := map[schema.GroupVersion]int{}
	for _, g := range groups {
		for i, v := range g.Versions {
			gv := schema.GroupVersion{Group: g.Name, Version: v.Version}
			rank[gv] = i + 1
			if v.Version == g.PreferredVersion.Version {
				rank[gv] = 0
			}
		}
	}
	best := map[schema.GroupResource]schema.GroupVersion{}
	for _, l := range lists {
		gv, parseErr := schema.ParseGroupVersion(l.GroupVersion)
		if parseErr != nil {
			err = errors.Join(err, fmt.Errorf("discovery: %w", parseErr))
			continue
		}
		for _, r := range l.APIResources {
			if strings.Contains(r.Name, "/") || r.Kind == "" {
				continue
			}
			gvk, gvr := gv.WithKind(r.Kind), gv.WithResource(r.Name)
			// If two resources have the same kind, the deletable one takes precedence.
			deletable := canDelete(r)
			if _, ok := s.kinds[gvk]; !ok || deletable {
				s.kinds[gvk] = mapping{gvr: gvr, namespaced: r.Namespaced}
			}
			gr := gvr.GroupResource()
			if !deletable || ignored(gr) {
				continue
			}
			if old, ok := best[gr]; ok {
				if rank[old] <= rank[gv] {
					continue
				}
				delete(s.deletable, old.WithResource(r.Name))
			}
			best[gr] = gv
			s.deletable[gvr] = gvk
		}
	}
	return s, err
}

// canDelete reports whether objects of a resource can be deleted and watched.
func canDelete(r metav1.APIResource) bool {
	for _, v := range []string{"delete", "list", "watch"} {
		if !slices.Contains(r.Verbs, v) {
			return false
		}
	}
	return true
}

// keep copies the resources of those group versions from before that could not be discovered now. The watches of an
// aggregated API server that is temporarily unavailable must not stop.
func (s *served) keep(before *served) {
	for gvr, gvk := range before.deletable {
		if _, down := s.failed[gvr.GroupVersion()]; down {
			s.deletable[gvr] = gvk
		}
	}
	for gvk, m := range before.kinds {
		if _, down := s.failed[gvk.GroupVersion()]; down {
			s.kinds[gvk] = m
		}
	}
}

// locate returns the resource of a kind, or an error if the kind is not served according to the last discovery.
func (c *Collector) locate(gvk schema.GroupVersionKind) (mapping, error) {
	c.mu.Lock()
	m, ok := c.served.kinds[gvk]
	c.mu.Unlock()
	if !ok {
		return mapping{}, fmt.Errorf("no matches for kind %q in version %q", gvk.Kind, gvk.GroupVersion())
	}
	return m, nil
}
