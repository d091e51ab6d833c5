package openapi

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"hyperkube/components/apiserver/registry"
	"hyperkube/internal/api"
)

const (
	metaModel      = "io.k8s.apimachinery.pkg.apis.meta.v1."
	scaleModel     = "io.k8s.api.autoscaling.v1.Scale"
	statusModel    = metaModel + "Status"
	patchModel     = metaModel + "Patch"
	deleteModel    = metaModel + "DeleteOptions"
	watchModel     = metaModel + "WatchEvent"
	kindExtension  = "x-kubernetes-group-version-kind"
	textDeprecated = ". deprecated: use the 'watch' parameter with a list operation instead"
)

// Media types of request and response bodies in the documents.
var (
	bodyTypes  = []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf"}
	watchTypes = append(slices.Clone(bodyTypes), "application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch")
	patchTypes = []string{
		"application/json-patch+json", "application/merge-patch+json",
		"application/strategic-merge-patch+json", "application/apply-patch+yaml",
	}
	customPatchTypes = []string{"application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"}
	anyType          = []string{"*/*"}
)

// modelOf returns the name of the schema of a Go type, or "" if it has none.
func modelOf(obj runtime.Object) string {
	if named, ok := obj.(interface{ OpenAPIModelName() string }); ok {
		return named.OpenAPIModelName()
	}
	return ""
}

// modelsOf returns the names of the schemas of a resource's objects and lists. They are "" if there are none or a
// custom resource's schema cannot be published, and then the resource is not in the document. It adds the schemas of
// a custom resource to p.custom.
func (p *paths) modelsOf(r *registry.Resource) (model, listModel string) {
	if r.Custom != nil {
		// Skip a definition that cannot be published, so that the others are published.
		m, err := r.Custom.Models(p.v3)
		if err != nil {
			return "", ""
		}
		if p.custom == nil {
			p.custom = map[string]json.RawMessage{}
		}
		p.custom[m.Name], p.custom[m.ListName] = m.Object, m.List
		return m.Name, m.ListName
	}
	if r.NewList != nil {
		listModel = modelOf(r.NewList())
	}
	return modelOf(r.New()), listModel
}

// resourceOperations contains what the OpenAPI operations of one resource have in common: schemas, paths, and parts of
// the operation IDs.
type resourceOperations struct {
	*registry.Resource
	model, listModel string
	// base is the path of the collection in one namespace. all is the path for all namespaces, or
	// "" for cluster-scoped resources.
	base, all  string
	namespaced string // part of operation IDs
	tag        string
}

// resource adds all operations of the resource r and its subresources to the document. It adds nothing if r has no
// schema.
func (p *paths) resource(r *registry.Resource) {
	w := resourceOperations{Resource: r, tag: tag(r.Group, r.Version)}
	w.model, w.listModel = p.modelsOf(r)
	if w.model == "" {
		return
	}
	base := "/" + groupPath(r.GroupVersion())
	w.base = base + "/" + r.Plural
	if r.Scope == api.Namespaced {
		w.namespaced, w.all = "Namespaced", w.base
		w.base = base + "/namespaces/{namespace}/" + r.Plural
	}
	verbs := r.Verbs
	if r.Review {
		verbs = []string{"create"}
	}
	for _, name := range verbs {
		p.verb(w, name)
	}
	for name, view := range r.Views {
		for _, verb := range view.Verbs {
			p.object(w, verb, name, w.model, kindOfResource(w))
		}
	}
	if r.Scale != nil {
		kind := groupVersionKind{"autoscaling", "v1", "Scale"}
		if r.Custom != nil {
			kind = kindOfResource(w)
		}
		for _, verb := range []string{"get", "update", "patch"} {
			p.object(w, verb, "scale", scaleModel, kind)
		}
	}
	for name, action := range r.Actions() {
		if name != "" {
			p.create(w, "/{name}/"+name, name, modelOf(action.New()), kindOfGVK(action.Kind))
		}
	}
	for name, stream := range r.Streams() {
		p.stream(w, name, stream)
	}
}

// kindOfGVK converts a kind to the form that operations contain.
func kindOfGVK(gvk schema.GroupVersionKind) groupVersionKind {
	return groupVersionKind{gvk.Group, gvk.Version, gvk.Kind}
}

// kindOfResource returns the kind of the resource's objects in the form in which operations contain it.
func kindOfResource(w resourceOperations) groupVersionKind { return kindOfGVK(w.GVK()) }

// newOperation returns an operation of a resource with its ID and path parameters. method is the HTTP method, verb
// the Kubernetes action, name the first word of the ID (such as "read"), sub the subresource or "", and kind the kind
// of the operation. The caller sets the description, the bodies and the query parameters.
func (w resourceOperations) newOperation(method, verb, name, path, sub string, kind groupVersionKind) *operation {
	op := &operation{
		path: path, method: method, action: verb, kind: kind, tag: w.tag,
		consumes: anyType, produces: bodyTypes,
	}
	if w.Custom != nil {
		op.consumes, op.produces = bodyTypes[:2], bodyTypes[:2]
	}
	namespaced, suffix := w.namespaced, ""
	if w.all != "" && !strings.Contains(path, "{namespace}") {
		namespaced, suffix = "", "ForAllNamespaces"
	}
	if verb == "watchlist" {
		suffix = "List" + suffix
	}
	op.id = operationID(w.Group, w.Version, name, namespaced+w.Kind+upper(sub)+suffix)
	if strings.Contains(path, "{name}") {
		op.parameters = append(op.parameters, parameter{"name", "path", "string", "name of the " + kind.kind})
	}
	if strings.Contains(path, "{namespace}") {
		op.parameters = append(op.parameters, namespaceParameter)
	}
	if verb != "connect" {
		op.parameters = append(op.parameters, pretty)
	}
	return op
}

// query adds more, query parameters, to the parameters of the operation.
func (op *operation) query(more []parameter) { op.parameters = append(op.parameters, more...) }

// verb adds the operations of a verb, such as "list", on the resource itself.
func (p *paths) verb(w resourceOperations, verb string) {
	switch verb {
	case "list":
		p.list(w, w.base)
		if w.all != "" {
			p.list(w, w.all)
		}
	case "watch":
		p.watches(w)
	case "create":
		p.create(w, "", "", w.model, kindOfResource(w))
	case "deletecollection":
		op := w.newOperation("delete", "deletecollection", "deletecollection", w.base, "", kindOfResource(w))
		op.text, op.answer = "delete collection of "+w.Kind, statusModel
		if w.Custom != nil {
			op.query(listQuery)
		} else {
			op.body = deleteModel
			op.query(deleteCollectionQuery())
		}
		p.add(op)
	case "delete":
		op := w.newOperation("delete", "delete", "delete", w.base+"/{name}", "", kindOfResource(w))
		op.text, op.answer, op.answers, op.body = "delete"+article(w.Kind)+w.Kind, statusModel, []int{202}, deleteModel
		if registry.ReturnsDeleted(w.GroupResource()) {
			op.answer = w.model
		}
		op.query(deleteQuery)
		p.add(op)
	default:
		p.object(w, verb, "", w.model, kindOfResource(w))
	}
}

// list adds the operation that lists the resource at the URL path, which is for one namespace or for all namespaces.
func (p *paths) list(w resourceOperations, path string) {
	op := w.newOperation("get", "list", "list", path, "", kindOfResource(w))
	op.text, op.answer = "list objects of kind "+w.Kind, w.listModel
	if w.Custom == nil {
		op.produces = watchTypes
		if slices.Contains(w.Verbs, "watch") {
			op.text = "list or watch objects of kind " + w.Kind
		}
	}
	op.query(listQuery)
	p.add(op)
}

// watches adds the deprecated paths for watching built-in kinds, which begin with /watch after the version. It does
// nothing for custom resources.
func (p *paths) watches(w resourceOperations) {
	if w.Custom != nil {
		return
	}
	prefix := "/" + groupPath(w.GroupVersion())
	at := func(path string) string { return prefix + "/watch" + strings.TrimPrefix(path, prefix) }
	add := func(verb, path, text string) {
		op := w.newOperation("get", verb, "watch", path, "", kindOfResource(w))
		op.text, op.answer, op.produces = text, watchModel, watchTypes
		op.query(listQuery)
		p.add(op)
	}
	many := "watch individual changes to a list of " + w.Kind + textDeprecated + "."
	add("watchlist", at(w.base), many)
	if w.all != "" {
		add("watchlist", at(w.all), many)
	}
	add("watch", at(w.base)+"/{name}", "watch changes to an object of kind "+w.Kind+textDeprecated+
		", filtered to a single item with the 'fieldSelector' parameter.")
}

// create adds the POST of a new object, or of the subresource sub at the path below the
// collection's path. model is the name of the schema of the request and the response.
func (p *paths) create(w resourceOperations, below, sub, model string, kind groupVersionKind) {
	op := w.newOperation("post", "post", "create", w.base+below, sub, kind)
	op.text = "create" + article(w.Kind) + w.Kind
	if sub != "" {
		op.text = "create " + sub + " of" + article(w.Kind) + w.Kind
	}
	op.body, op.bodyRequired, op.answer, op.answers = model, true, model, []int{201, 202}
	op.query(createQuery)
	p.add(op)
}

// object adds the operation of a verb (get, update or patch) on single objects, or on their
// subresource sub. It ignores other verbs. model and kind are those of the body.
func (p *paths) object(w resourceOperations, verb, sub, model string, kind groupVersionKind) {
	path, of := w.base+"/{name}", "the specified "+w.Kind
	if sub != "" {
		path, of = path+"/"+sub, sub+" of "+of
	}
	var op *operation
	switch verb {
	case "get":
		op = w.newOperation("get", "get", "read", path, sub, kind)
		op.text = "read " + of
		if w.Custom != nil {
			op.query(getQuery)
		}
	case "update":
		op = w.newOperation("put", "put", "replace", path, sub, kind)
		op.text, op.answers, op.body, op.bodyRequired = "replace "+of, []int{201}, model, true
		op.query(updateQuery)
	case "patch":
		op = w.newOperation("patch", "patch", "patch", path, sub, kind)
		op.text, op.body, op.bodyRequired = "partially update "+of, patchModel, true
		op.consumes = customPatchTypes
		if w.Custom == nil {
			op.consumes, op.answers = patchTypes, []int{201}
		}
		op.query(patchQuery)
	default:
		return
	}
	op.answer = model
	p.add(op)
}

// stream adds the operations of a subresource that connects to a container or another server, such
// as log, exec or proxy.
func (p *paths) stream(w resourceOperations, name string, s *registry.Stream) {
	kind, path := kindOfGVK(s.Kind), w.base+"/{name}/"+name
	if name == "log" {
		op := w.newOperation("get", "get", "read", path, name, kind)
		op.text, op.produces = "read log of the specified "+w.Kind, append([]string{"text/plain"}, bodyTypes...)
		op.query(queryParameters(corev1.PodLogOptions{}))
		p.add(op)
		return
	}
	methods, below := []string{http.MethodGet, http.MethodPost}, []string{""}
	if name == "proxy" {
		methods, below = []string{
			http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodHead, http.MethodOptions,
		}, []string{"", "/{path}"}
	}
	for _, rest := range below {
		for _, method := range methods {
			op := w.newOperation(strings.ToLower(method), "connect", "connect", path+rest, "", kind)
			op.id = operationID(w.Group, w.Version, "connect", upper(strings.ToLower(method))+w.namespaced+w.Kind+upper(name))
			if rest != "" {
				op.id += "WithPath"
				op.query([]parameter{pathParameter})
			}
			op.text, op.produces = "connect "+method+" requests to "+name+" of "+w.Kind, anyType
			op.query(streamQuery(s.Kind.Kind))
			p.add(op)
		}
	}
}

// article returns the indefinite article for a noun, surrounded by spaces, such as " an " for "Ingress". For a plural
// it returns only a space.
func article(noun string) string {
	switch {
	case !strings.HasSuffix(noun, "ss") && strings.HasSuffix(noun, "s"):
		return " "
	case strings.ContainsAny(noun[:1], "aeiouAEIOU"):
		return " an "
	}
	return " a "
}

// tag returns the tag of a group version's operations, by which clients group them, e.g. "apps_v1" or "core_v1". For
// an empty version it is that of the group.
func tag(group, version string) string {
	out := groupName(group, false)
	if version != "" {
		out += "_" + version
	}
	return out
}

// groupName returns the form of an API group in operation IDs and tags, e.g. "rbacAuthorization"
// for "rbac.authorization.k8s.io".
func groupName(group string, upperFirst bool) string {
	if group == "" {
		group = "core"
	}
	words := strings.Split(strings.TrimSuffix(group, ".k8s.io"), ".")
	for i := range words {
		if i > 0 || upperFirst {
			words[i] = upper(words[i])
		}
	}
	return strings.Join(words, "")
}

// operationID returns the ID of an operation, which is unique in the document, e.g.
// "patchAppsV1NamespacedDeploymentStatus". rest is its last part.
func operationID(group, version, name, rest string) string {
	if name == "deletecollection" {
		name, rest = "delete", "Collection"+rest
	}
	return name + groupName(group, true) + upper(version) + rest
}

// upper returns a word with its first letter in upper case.
func upper(word string) string {
	if word == "" {
		return ""
	}
	return strings.ToUpper(word[:1]) + word[1:]
}

// general adds the operation at a path that is not a resource: discovery, version and OpenID
// documents.
func (p *paths) general(path string) {
	op := &operation{path: path + "/", method: "get", produces: bodyTypes, consumes: bodyTypes}
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	switch {
	case path == "/version":
		op.id, op.text, op.tag = "getCodeVersion", "get the version information for this server", "version"
		op.consumes, op.produces, op.answer = bodyTypes[:1], bodyTypes[:1], "io.k8s.apimachinery.pkg.version.Info"
	case path == "/.well-known/openid-configuration":
		op.id, op.tag = "getServiceAccountIssuerOpenIDConfiguration", "WellKnown"
		op.text = "get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'"
		op.consumes, op.produces = nil, bodyTypes[:1]
	case path == "/openid/v1/jwks":
		op.id, op.tag = "getServiceAccountIssuerOpenIDKeyset", "openid"
		op.text = "get service account issuer OpenID JSON Web Key Set (contains public token verification keys)"
		op.consumes, op.produces = nil, []string{"application/jwk-set+json"}
	case path == "/api":
		op.id, op.text, op.tag, op.answer = "getCoreAPIVersions", "get available API versions", "core", metaModel+"APIVersions"
	case path == "/apis":
		op.id, op.text, op.tag, op.answer = "getAPIVersions", "get available API versions", "apis", metaModel+"APIGroupList"
	case len(parts) == 2 && parts[0] == "apis":
		op.id, op.text = operationID(parts[1], "", "get", "APIGroup"), "get information of a group"
		op.tag, op.answer = tag(parts[1], ""), metaModel+"APIGroup"
	default:
		group, version := "", parts[len(parts)-1]
		if len(parts) == 3 {
			group = parts[1]
		}
		op.id, op.text = operationID(group, version, "get", "APIResources"), "get available resources"
		op.tag, op.answer = tag(group, version), metaModel+"APIResourceList"
	}
	p.add(op)
}

// sections returns the names of all v3 documents. The value is the group and version in the
// document, or nil for documents about paths that are not resources. The caller must hold h.mu.
func (h *Handler) sections() map[string]*schema.GroupVersion {
	out := map[string]*schema.GroupVersion{
		"version": nil, ".well-known/openid-configuration": nil, "openid/v1/jwks": nil, "api": nil, "apis": nil,
	}
	for _, gv := range h.registry.GroupVersions() {
		out[groupPath(gv)] = &gv
		if gv.Group != "" && !h.custom(gv.Group) {
			out["apis/"+gv.Group] = nil
		}
	}
	return out
}

// custom reports whether no built-in resource of the API group is served. As in upstream, the documents do not
// include the discovery paths of groups of custom resources. The caller must hold h.mu.
func (h *Handler) custom(group string) bool {
	for _, r := range h.served {
		if r.Group == group && r.Custom == nil {
			return false
		}
	}
	return true
}

// section adds the operations of the v3 document with this name to p: those of all resources of the group and version
// gv and its discovery path or, if gv is nil, that of the path with this name.
func (h *Handler) section(p *paths, name string, gv *schema.GroupVersion) {
	if gv == nil {
		p.general("/" + name)
		return
	}
	if !h.custom(gv.Group) {
		p.general("/" + name)
	}
	for _, r := range h.served {
		if r.GroupVersion() == *gv {
			p.resource(r)
		}
	}
}
