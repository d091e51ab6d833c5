package aggregation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"hyperkube/components/apiserver/discovery"
)

var _ discovery.Aggregation = (*Aggregator)(nil)

// Generation implements discovery.Aggregation. The result changes whenever that of Priority or Versions may have
// changed.
func (a *Aggregator) Generation() uint64 { return a.current.Load().generation }

// Priority implements discovery.Aggregation. It returns the priorities in the APIService of the group version.
// Without an APIService it returns the defaults: those of a built-in group version, or those of custom resources.
func (a *Aggregator) Priority(gv schema.GroupVersion) (group, version int32) {
	p, ok := a.builtIn[gv]
	if set, is := a.current.Load().priorities[gv]; is {
		p, ok = set, true
	}
	if !ok {
		p = customResources
	}
	return p.Group, p.Version
}

// Versions implements discovery.Aggregation. It returns the group versions of other servers and of other components
// of this process. Those of servers that have never responded, or did not respond last, are marked as stale.
func (a *Aggregator) Versions() []discovery.Version {
	s := a.current.Load()
	out := s.localVersions()
	for gv, b := range s.remote {
		v := apidiscoveryv2.APIVersionDiscovery{Freshness: apidiscoveryv2.DiscoveryFreshnessStale}
		if f := b.discovered.Load(); f != nil {
			v = f.version
			v.Freshness = apidiscoveryv2.DiscoveryFreshnessCurrent
			if f.stale {
				v.Freshness = apidiscoveryv2.DiscoveryFreshnessStale
			}
		}
		v.Version = gv.Version
		out = append(out, discovery.Version{Group: gv.Group, Discovery: v})
	}
	return out
}

// discover reads the discovery document of the other server and publishes the result if it has changed. If the server
// does not respond within discoveryTimeout, the last result is marked as stale.
func (b *backend) discover(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, discoveryTimeout)
	defer cancel()
	v, err := b.fetch(ctx)
	if err != nil {
		b.cfg.Log.DebugContext(ctx, "reading discovery document of aggregated API server failed; its last document, if there is one, stays published and is marked as stale, retrying at the next availability check", "apiservice", b.name, "err", err)
		b.markStale()
		return
	}
	next := &discovered{version: *v}
	if old := b.discovered.Swap(next); old == nil || !reflect.DeepEqual(old, next) {
		b.publish()
	}
}

// markStale marks the last discovery result of the server as stale and publishes that. It does nothing if there is
// none or it is stale already.
func (b *backend) markStale() {
	old := b.discovered.Load()
	if old == nil || old.stale {
		return
	}
	b.discovered.Store(&discovered{version: old.version, stale: true})
	b.publish()
}

// maxDocument is the maximum number of bytes that are read of a discovery or OpenAPI document of
// another server.
const maxDocument = 64 << 20

const acceptDiscovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// fetch returns the discovery of the server's group version. It requests the aggregated document for all groups or,
// if the server does not send that, the document of this version alone.
func (b *backend) fetch(ctx context.Context) (*apidiscoveryv2.APIVersionDiscovery, error) {
	root := "/apis"
	if b.gv.Group == "" {
		root = "/api"
	}
	data, contentType, err := b.read(ctx, root, acceptDiscovery)
	if err == nil {
		if _, params, _ := mime.ParseMediaType(contentType); params["g"] == "apidiscovery.k8s.io" && params["v"] == "v2" && params["as"] == "APIGroupDiscoveryList" {
			var all apidiscoveryv2.APIGroupDiscoveryList
			if err := json.Unmarshal(data, &all); err != nil {
				return nil, fmt.Errorf("reading discovery: %w", err)
			}
			return b.pick(&all)
		}
	}
	if data, _, err = b.read(ctx, b.path(), "application/json"); err != nil {
		return nil, err
	}
	var list metav1.APIResourceList
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("reading discovery: %w", err)
	}
	return convert(b.gv, list.APIResources)
}

// read returns the document at a path of the other server in a format that the header value accept allows, and its
// Content-Type. It returns an error for another status than 200. At most maxDocument bytes are read.
func (b *backend) read(ctx context.Context, path, accept string) (data []byte, contentType string, err error) {
	resp, err := b.get(ctx, path, http.Header{"Accept": {accept}})
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, "", &statusError{resp.Request.URL, resp.StatusCode}
	}
	data, err = io.ReadAll(io.LimitReader(resp.Body, maxDocument))
	if err != nil {
		return nil, "", fmt.Errorf("reading %v: %w", resp.Request.URL, err)
	}
	return data, resp.Header.Get("Content-Type"), nil
}

// pick returns the group version of this backend from an aggregated discovery document. It returns
// one without resources if the document does not contain it.
func (b *backend) pick(all *apidiscoveryv2.APIGroupDiscoveryList) (*apidiscoveryv2.APIVersionDiscovery, error) {
	for i := range all.Items {
		for j := range all.Items[i].Versions {
			if v := &all.Items[i].Versions[j]; all.Items[i].Name == b.gv.Group && v.Version == b.gv.Version {
				complete(v)
				return v, nil
			}
		}
	}
	return &apidiscoveryv2.APIVersionDiscovery{Version: b.gv.Version}, nil
}

// complete sets kinds that are missing in a discovery document, because some clients dereference
// them without a check.
func complete(v *apidiscoveryv2.APIVersionDiscovery) {
	for i := range v.Resources {
		r := &v.Resources[i]
		if r.ResponseKind == nil {
			r.ResponseKind = &metav1.GroupVersionKind{}
		}
		for j := range r.Subresources {
			if r.Subresources[j].ResponseKind == nil {
				r.Subresources[j].ResponseKind = &metav1.GroupVersionKind{}
			}
		}
	}
}

// convert converts the resources of a group version from unaggregated to aggregated discovery. It
// returns an error for a resource without a name.
func convert(gv schema.GroupVersion, resources []metav1.APIResource) (*apidiscoveryv2.APIVersionDiscovery, error) {
	out := &apidiscoveryv2.APIVersionDiscovery{Version: gv.Version}
	at := map[string]int{}
	kind := func(r *metav1.APIResource) *metav1.GroupVersionKind {
		k := &metav1.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind}
		if k.Group == "" && k.Version == "" {
			k.Group, k.Version = gv.Group, gv.Version
		}
		return k
	}
	entry := func(name string, namespaced bool) *apidiscoveryv2.APIResourceDiscovery {
		i, ok := at[name]
		if !ok {
			i = len(out.Resources)
			at[name] = i
			out.Resources = append(out.Resources, apidiscoveryv2.APIResourceDiscovery{Resource: name, ResponseKind: &metav1.GroupVersionKind{}})
		}
		r := &out.Resources[i]
		r.Scope = apidiscoveryv2.ScopeCluster
		if namespaced {
			r.Scope = apidiscoveryv2.ScopeNamespace
		}
		return r
	}
	for i := range resources {
		in := &resources[i]
		name, sub, isSub := strings.Cut(in.Name, "/")
		if name == "" {
			return nil, errors.New("reading discovery: resource without a name")
		}
		r := entry(name, in.Namespaced)
		if isSub {
			r.Subresources = append(r.Subresources, apidiscoveryv2.APISubresourceDiscovery{Subresource: sub, ResponseKind: kind(in), Verbs: in.Verbs})
			continue
		}
		r.ResponseKind, r.SingularResource, r.Verbs = kind(in), in.SingularName, in.Verbs
		r.ShortNames, r.Categories = in.ShortNames, in.Categories
	}
	return out, nil
}
