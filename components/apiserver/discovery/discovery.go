// Package discovery serves API discovery: per group and version, and aggregated in a single
// document.
//
// https://kubernetes.io/docs/concepts/overview/kubernetes-api/#discovery-api
package discovery

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"hyperkube/components/apiserver/negotiate"
	"hyperkube/components/apiserver/registry"
	"hyperkube/components/apiserver/rest"
)

// Sender sends responses: objects in the negotiated format, or errors. It is a *rest.Handler.
type Sender interface {
	SendObject(w http.ResponseWriter, req *http.Request, format negotiate.Format, code int, obj runtime.Object) error
	Error(w http.ResponseWriter, req *http.Request, err error)
}

var _ Sender = (*rest.Handler)(nil)

// Config is the configuration of a Handler, which serves the discovery documents at /api and /apis.
type Config struct {
	Registry *registry.Registry
	Sender   Sender
	// Addresses are the addresses of this server by the client's network, for the document /api. It may be nil.
	Addresses []metav1.ServerAddressByClientCIDR
	// Aggregation, unless nil, provides the APIs of other servers and the order of all groups and
	// versions.
	Aggregation Aggregation
	// Rebuilt, unless nil, is called whenever the documents are rebuilt.
	Rebuilt func()
	// NotFound handles groups that the registry does not have. Nil means 404.
	NotFound http.Handler
}

// Aggregation provides the APIs of aggregated API servers and the order of all groups. Its methods
// must be safe for concurrent use.
type Aggregation interface {
	// Generation returns a number that changes whenever the result of the other methods changes.
	Generation() uint64
	// Priority returns the priority of a group, and that of the version in the group. Higher ones
	// are listed first.
	Priority(gv schema.GroupVersion) (group, version int32)
	// Versions returns the group versions of aggregated servers. They replace those of the same
	// name in the registry.
	Versions() []Version
}

// Version is a group version that an aggregated API server serves, with its resources.
type Version struct {
	Group     string
	Discovery apidiscoveryv2.APIVersionDiscovery
}

// Handler serves /api, /apis and the discovery paths below them.
type Handler struct {
	cfg        Config
	negotiator negotiate.Negotiator
	cached     atomic.Pointer[documents]
}

// documents are the discovery responses for the resources that are served at one time. They are
// built again when the resources or the aggregated APIs change.
type documents struct {
	resources []*registry.Resource // the served resources at that time
	// generation of the aggregation at that time
	generation uint64
	core       *apidiscoveryv2.APIGroupDiscoveryList
	groups     *apidiscoveryv2.APIGroupDiscoveryList
	list       *metav1.APIGroupList
	byGroup    map[string]*metav1.APIGroup
	byGV       map[schema.GroupVersion]*metav1.APIResourceList
	etags      map[string]string
}

// New returns a Handler that serves the discovery of the resources in cfg.Registry.
func New(cfg Config) *Handler { return &Handler{cfg: cfg} }

// ServeHTTP responds to /api, /apis, /apis/GROUP and the paths of versions with their discovery document, in the
// negotiated format. Other methods than GET get the response 405, except for /apis and groups. Other paths are passed
// to Config.NotFound.
func (h *Handler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	// Group paths respond to all methods, as in upstream.
	d := h.documents()
	if groups := len(parts) <= 2 && parts[0] == "apis"; !groups && req.Method != http.MethodGet && d.serves(parts) {
		h.cfg.Sender.Error(w, req, rest.NoMethod())
		return
	}
	root := len(parts) == 1
	// Upstream's router handles versions and /api, other handlers the rest.
	routed := parts[0] == "api" || len(parts) == 3
	var obj runtime.Object
	switch {
	case root && parts[0] == "api":
		addresses := h.cfg.Addresses
		if addresses == nil {
			addresses = []metav1.ServerAddressByClientCIDR{}
		}
		obj = &metav1.APIVersions{
			TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"},
			ServerAddressByClientCIDRs: addresses,
		}
	case root:
		obj = d.list
	case len(parts) == 2 && parts[0] == "api":
		if l := d.byGV[schema.GroupVersion{Version: parts[1]}]; l != nil {
			obj = l
		}
	case len(parts) == 2:
		if g := d.byGroup[parts[1]]; g != nil {
			obj = g
		}
	case len(parts) == 3 && parts[0] == "apis":
		if l := d.byGV[schema.GroupVersion{Group: parts[1], Version: parts[2]}]; l != nil {
			obj = l
		}
	}
	if obj == nil {
		h.notFound(w, req)
		return
	}
	format, err := h.negotiator.Response(req, negotiate.Endpoint{Protobuf: true, Aggregated: root, Routed: routed})
	if err != nil {
		h.cfg.Sender.Error(w, req, err)
		return
	}
	switch {
	case parts[0] == "api" && format.As == negotiate.Aggregated:
		h.aggregated(w, req, format, d.core, d.etags["api"])
		return
	case format.As == negotiate.Aggregated:
		h.aggregated(w, req, format, d.groups, d.etags["apis"])
		return
	}
	if err := h.cfg.Sender.SendObject(w, req, format, http.StatusOK, obj); err != nil {
		h.cfg.Sender.Error(w, req, err)
	}
}

// serves reports whether a discovery path, split at its slashes, exists: /api and /apis, and the paths of group
// versions that have a document. It returns false for the paths of groups.
func (d *documents) serves(path []string) bool {
	gv := schema.GroupVersion{Version: path[len(path)-1]}
	if len(path) == 3 {
		gv.Group = path[1]
	}
	return len(path) == 1 || d.byGV[gv] != nil
}

// notFound responds that a path does not exist, with the handler Config.NotFound if it is set, otherwise with a plain
// 404.
func (h *Handler) notFound(w http.ResponseWriter, req *http.Request) {
	if h.cfg.NotFound != nil {
		h.cfg.NotFound.ServeHTTP(w, req)
		return
	}
	http.Error(w, "404 page not found", http.StatusNotFound)
}

// aggregated sends list, the discovery of all groups, in the encoding of format, or 304 if the client already has the
// document with this etag.
func (h *Handler) aggregated(w http.ResponseWriter, req *http.Request, format negotiate.Format, list *apidiscoveryv2.APIGroupDiscoveryList, etag string) {
	header := w.Header()
	header.Set("Vary", "Accept")
	header.Set("Etag", etag)
	header.Set("Cache-Control", "public")
	if slices.Contains(req.Header.Values("If-None-Match"), etag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	out := *list
	out.TypeMeta = metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/" + format.Version}
	sender := contentType{w, format.Media.String() + ";g=apidiscovery.k8s.io;v=" + format.Version + ";as=APIGroupDiscoveryList"}
	if err := h.cfg.Sender.SendObject(sender, req, negotiate.Format{Media: format.Media, Pretty: format.Pretty}, http.StatusOK, &out); err != nil {
		h.cfg.Sender.Error(w, req, err)
	}
}

// contentType is a ResponseWriter that replaces the Content-Type that the handler sets.
type contentType struct {
	http.ResponseWriter
	value string
}

// WriteHeader implements http.ResponseWriter. It replaces the Content-Type of the response.
func (c contentType) WriteHeader(code int) {
	c.Header().Set("Content-Type", c.value)
	c.ResponseWriter.WriteHeader(code)
}

// documents returns the current documents. It builds them if the served resources or the aggregated APIs have
// changed.
func (h *Handler) documents() *documents {
	all := h.cfg.Registry.Resources()
	var generation uint64
	if h.cfg.Aggregation != nil {
		generation = h.cfg.Aggregation.Generation()
	}
	d := h.cached.Load()
	if d != nil && d.generation == generation && sameSlice(d.resources, all) {
		return d
	}
	d = h.build(all)
	if h.cfg.Rebuilt != nil {
		h.cfg.Rebuilt()
	}
	d.generation = generation
	h.cached.Store(d)
	return d
}

// sameSlice reports whether a and b are the same slice in memory. Slices with equal elements are not the same.
func sameSlice(a, b []*registry.Resource) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// build creates the documents of the resources all, without custom resources that are not
// established yet.
func (h *Handler) build(all []*registry.Resource) *documents {
	visible := slices.DeleteFunc(slices.Clone(all), func(r *registry.Resource) bool { return r.Custom != nil && r.Custom.NotEstablished })
	d := &documents{
		resources: all,
		core:      &apidiscoveryv2.APIGroupDiscoveryList{},
		groups:    &apidiscoveryv2.APIGroupDiscoveryList{},
		list:      &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{}},
		byGroup:   map[string]*metav1.APIGroup{},
		byGV:      map[schema.GroupVersion]*metav1.APIResourceList{},
		etags:     map[string]string{},
	}
	groups := map[string]*apidiscoveryv2.APIGroupDiscovery{}
	var order []string
	for _, gv := range h.cfg.Registry.GroupVersions() {
		if !slices.ContainsFunc(visible, func(r *registry.Resource) bool { return r.GroupVersion() == gv }) {
			continue
		}
		list := &metav1.APIResourceList{
			TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			GroupVersion: gv.String(),
		}
		if gv.Group == "" {
			list.APIVersion = "" // as in the first version of the API
		}
		version := apidiscoveryv2.APIVersionDiscovery{Version: gv.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}
		for _, res := range visible {
			if res.GroupVersion() != gv {
				continue
			}
			plain, whole := describe(res)
			list.APIResources = append(list.APIResources, plain...)
			version.Resources = append(version.Resources, whole)
		}
		slices.SortStableFunc(list.APIResources, func(a, b metav1.APIResource) int {
			first, _, _ := strings.Cut(a.Name, "/")
			second, _, _ := strings.Cut(b.Name, "/")
			return strings.Compare(first, second)
		})
		slices.SortStableFunc(version.Resources, func(a, b apidiscoveryv2.APIResourceDiscovery) int {
			return strings.Compare(a.Resource, b.Resource)
		})
		d.byGV[gv] = list
		if groups[gv.Group] == nil {
			groups[gv.Group] = &apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: gv.Group}}
			order = append(order, gv.Group)
		}
		g := groups[gv.Group]
		g.Versions = append(g.Versions, version)
	}
	if h.cfg.Aggregation != nil {
		order = h.merge(groups, order)
	}
	for _, name := range order {
		if name == "" {
			d.core.Items = append(d.core.Items, *groups[name])
			continue
		}
		d.groups.Items = append(d.groups.Items, *groups[name])
	}
	for _, g := range d.groups.Items {
		out := metav1.APIGroup{Name: g.Name}
		for _, v := range g.Versions {
			out.Versions = append(out.Versions, metav1.GroupVersionForDiscovery{GroupVersion: g.Name + "/" + v.Version, Version: v.Version})
		}
		if len(out.Versions) > 0 {
			out.PreferredVersion = out.Versions[0]
		}
		d.list.Groups = append(d.list.Groups, out)
		single := out
		single.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
		d.byGroup[g.Name] = &single
	}
	d.etags["api"] = etag(d.core)
	d.etags["apis"] = etag(d.groups)
	return d
}

// etag returns an ETag that is a hash of the content of a discovery document, or "" if it cannot be encoded.
func etag(list *apidiscoveryv2.APIGroupDiscoveryList) string {
	data, err := list.Marshal()
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(data)
	return `"` + strings.ToUpper(hex.EncodeToString(sum[:])) + `"`
}

// describe returns the discovery entries of a resource and its subresources: as a list, for the document of a single
// version, and as one entry, for aggregated discovery.
func describe(res *registry.Resource) ([]metav1.APIResource, apidiscoveryv2.APIResourceDiscovery) {
	scope := apidiscoveryv2.ScopeCluster
	if res.Scope {
		scope = apidiscoveryv2.ScopeNamespace
	}
	verbs := slices.Sorted(slices.Values(res.Verbs))
	if res.Review {
		verbs = []string{"create"}
	}
	if res.Custom != nil {
		// As in upstream, these are not sorted.
		if verbs = []string{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}; res.Custom.Terminating {
			verbs = []string{"delete", "deletecollection", "get", "list", "watch"}
		}
	}
	main := metav1.APIResource{
		Name: res.Plural, SingularName: res.Singular, Namespaced: bool(res.Scope), Kind: res.Kind,
		Verbs: verbs, ShortNames: res.ShortNames, Categories: res.Categories,
	}
	if !res.Review && res.Computed() == nil {
		main.StorageVersionHash = storageHash(res)
	}
	whole := apidiscoveryv2.APIResourceDiscovery{
		Resource: res.Plural, SingularResource: res.Singular, Scope: scope, Verbs: verbs,
		ResponseKind: groupKind(res, res.GVK()), ShortNames: res.ShortNames, Categories: res.Categories,
	}
	plain := []metav1.APIResource{main}
	add := func(name string, kind schema.GroupVersionKind, verbs []string) {
		verbs = slices.Sorted(slices.Values(verbs))
		sub := metav1.APIResource{Name: res.Plural + "/" + name, Namespaced: bool(res.Scope), Kind: kind.Kind, Verbs: verbs}
		if kind.GroupVersion() != res.GroupVersion() {
			sub.Group, sub.Version = kind.Group, kind.Version
		}
		plain = append(plain, sub)
		whole.Subresources = append(whole.Subresources, apidiscoveryv2.APISubresourceDiscovery{
			Subresource: name, ResponseKind: groupKind(res, kind), Verbs: verbs,
		})
	}
	for _, name := range slices.Sorted(maps.Keys(res.Views)) {
		add(name, res.GVK(), res.Views[name].Verbs)
	}
	if res.Resource.Scale != nil {
		add("scale", schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}, []string{"get", "patch", "update"})
	}
	actions := res.Actions()
	for _, name := range slices.Sorted(maps.Keys(actions)) {
		if name != "" {
			add(name, actions[name].Kind, []string{"create"})
		}
	}
	streams := res.Streams()
	for _, name := range slices.Sorted(maps.Keys(streams)) {
		add(name, streams[name].Kind, streams[name].Verbs)
	}
	if res.Custom != nil {
		return plain, whole // as in upstream, status precedes scale
	}
	slices.SortFunc(plain[1:], func(a, b metav1.APIResource) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(whole.Subresources, func(a, b apidiscoveryv2.APISubresourceDiscovery) int {
		return strings.Compare(a.Subresource, b.Subresource)
	})
	return plain, whole
}

// groupKind returns gvk as the responseKind of res in aggregated discovery. For built-in resources,
// group and version are omitted if they are those of the resource.
func groupKind(res *registry.Resource, gvk schema.GroupVersionKind) *metav1.GroupVersionKind {
	if res.Custom == nil && gvk.GroupVersion() == res.GroupVersion() {
		return &metav1.GroupVersionKind{Kind: gvk.Kind}
	}
	return &metav1.GroupVersionKind{Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind}
}

// storageHash returns storageVersionHash, a hash of the kind in which the resource is stored.
// Clients use it to detect resources that share their storage.
func storageHash(res *registry.Resource) string {
	gvk := res.GVK()
	if res.StoredAs != nil {
		gvk = res.StoredAs.GroupVersionKind
	}
	sum := sha256.Sum256([]byte(gvk.Group + "/" + gvk.Version + "/" + gvk.Kind))
	return base64.StdEncoding.EncodeToString(sum[:8])
}
