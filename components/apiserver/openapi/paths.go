package openapi

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	"hyperkube/components/apiserver/registry"
	"hyperkube/internal/api"
)

// paths collects the path items of a document.
type paths struct {
	prefix string // of references
	v3     bool
	out    map[string]any
	// models are the schemas that the paths refer to.
	models []string
	// custom are the schemas of custom resources.
	custom map[string]json.RawMessage
}

const (
	metaModel   = "io.k8s.apimachinery.pkg.apis.meta.v1."
	scaleModel  = "io.k8s.api.autoscaling.v1.Scale"
	statusModel = metaModel + "Status"
)

// Media types of request and answer bodies.
var (
	bodyTypes  = []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf"}
	watchTypes = append(slices.Clone(bodyTypes), "application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch")
	patchTypes = []string{
		"application/apply-patch+yaml", "application/json-patch+json",
		"application/merge-patch+json", "application/strategic-merge-patch+json",
	}
)

// verb is how one verb looks in a document.
type verb struct {
	method, action, id string
	// query names the parameters.
	query []string
}

var (
	writeQuery = []string{"dryRun", "fieldManager", "fieldValidation"}
	listQuery  = []string{
		"allowWatchBookmarks", "continue", "fieldSelector", "labelSelector", "limit", "resourceVersion",
		"resourceVersionMatch", "sendInitialEvents", "timeoutSeconds", "watch",
	}
	deleteQuery = []string{"dryRun", "gracePeriodSeconds", "ignoreStoreReadErrorWithClusterBreakingPotential", "orphanDependents", "propagationPolicy"}

	collectionVerbs = map[string]verb{
		"list":             {"get", "list", "list", listQuery},
		"create":           {"post", "post", "create", writeQuery},
		"deletecollection": {"delete", "deletecollection", "deleteCollection", append(slices.Clone(deleteQuery), listQuery[1:9]...)},
	}
	objectVerbs = map[string]verb{
		"get":    {"get", "get", "read", nil},
		"update": {"put", "put", "replace", writeQuery},
		"patch":  {"patch", "patch", "patch", append(slices.Clone(writeQuery), "force")},
		"delete": {"delete", "delete", "delete", deleteQuery},
	}
)

// modelOf names the schema of a Go type, "" if it has none.
func modelOf(obj runtime.Object) string {
	if named, ok := obj.(interface{ OpenAPIModelName() string }); ok {
		return named.OpenAPIModelName()
	}
	return ""
}

// modelsOf names the schemas of a resource's objects and lists, "" if there are
// none.
func (p *paths) modelsOf(r *registry.Resource) (model, listModel string) {
	if r.Custom != nil {
		// A definition that cannot be published does not take the others
		// with it.
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

// with adds the schemas of custom resources to all, which is the caller's.
func (p *paths) with(all map[string]json.RawMessage) map[string]json.RawMessage {
	maps.Copy(all, p.custom)
	return all
}

// add adds the paths of a resource and its subresources.
func (p *paths) add(r *registry.Resource) {
	model, listModel := p.modelsOf(r)
	if model == "" {
		return
	}
	p.models = append(p.models, model, statusModel, metaModel+"DeleteOptions", metaModel+"Patch", metaModel+"WatchEvent")
	if listModel != "" {
		p.models = append(p.models, listModel)
	}
	base := "/" + groupPath(r.GroupVersion())
	if r.Scope == api.Namespaced {
		base += "/namespaces/{namespace}"
	}
	collection, object := base+"/"+r.Plural, base+"/"+r.Plural+"/{name}"
	for _, name := range r.Verbs {
		if v, ok := collectionVerbs[name]; ok {
			answer := model
			switch name {
			case "list":
				answer = listModel
			case "deletecollection":
				answer = statusModel
			}
			p.operation(collection, r, "", v, model, answer)
			if name == "list" && r.Scope == api.Namespaced {
				all := v
				all.id = "listForAllNamespaces"
				p.operation("/"+groupPath(r.GroupVersion())+"/"+r.Plural, r, "", all, model, answer)
			}
		}
		if v, ok := objectVerbs[name]; ok {
			answer := model
			if name == "delete" && r.BeforeDelete == nil {
				answer = statusModel
			}
			p.operation(object, r, "", v, model, answer)
		}
	}
	for name, view := range r.Views {
		for _, verb := range view.Verbs {
			if v, ok := objectVerbs[verb]; ok {
				p.operation(object+"/"+name, r, name, v, model, model)
			}
		}
	}
	if r.Scale != nil {
		p.models = append(p.models, scaleModel)
		for _, name := range []string{"get", "update", "patch"} {
			p.operation(object+"/scale", r, "scale", objectVerbs[name], scaleModel, scaleModel)
		}
	}
}

// operation adds one operation, and its path's item when it is the first there.
func (p *paths) operation(path string, r *registry.Resource, sub string, v verb, body, answer string) {
	item, _ := p.out[path].(map[string]any)
	if item == nil {
		item = map[string]any{"parameters": p.pathParameters(path)}
		p.out[path] = item
	}
	gvk := map[string]string{"group": r.Group, "kind": r.Kind, "version": r.Version}
	if sub == "scale" {
		gvk = map[string]string{"group": "autoscaling", "kind": "Scale", "version": "v1"}
	}
	op := map[string]any{
		"operationId":                     operationID(r, sub, v, path),
		"tags":                            []string{tag(r)},
		"x-kubernetes-action":             v.action,
		"x-kubernetes-group-version-kind": gvk,
		"responses":                       p.responses(r, v, answer),
	}
	var parameters []any
	for _, name := range v.query {
		parameters = append(parameters, p.parameter(name, "query", queryType(name), false))
	}
	switch v.method {
	case "post", "put":
		parameters = p.body(op, parameters, body, []string{"*/*"}, true)
	case "patch":
		types := patchTypes
		if r.Custom != nil {
			types = patchTypes[:3]
		}
		parameters = p.body(op, parameters, metaModel+"Patch", types, true)
	case "delete":
		parameters = p.body(op, parameters, metaModel+"DeleteOptions", []string{"*/*"}, false)
	}
	if len(parameters) > 0 {
		op["parameters"] = parameters
	}
	if !p.v3 {
		op["schemes"] = []string{"https"}
		op["produces"] = answerTypes(r, v)
	}
	item[v.method] = op
}

func (p *paths) ref(model string) map[string]any { return map[string]any{"$ref": p.prefix + model} }

func (p *paths) body(op map[string]any, parameters []any, model string, types []string, required bool) []any {
	if !p.v3 {
		op["consumes"] = types
		b := map[string]any{"name": "body", "in": "body", "schema": p.ref(model)}
		if required {
			b["required"] = true
		}
		return append(parameters, b)
	}
	b := map[string]any{"content": p.content(model, types)}
	if required {
		b["required"] = true
	}
	op["requestBody"] = b
	return parameters
}

func (p *paths) content(model string, types []string) map[string]any {
	content := map[string]any{}
	for _, t := range types {
		content[t] = map[string]any{"schema": p.ref(model)}
	}
	return content
}

func answerTypes(r *registry.Resource, v verb) []string {
	if r.Custom != nil {
		return bodyTypes[:2]
	}
	if v.action == "list" {
		return watchTypes
	}
	return bodyTypes
}

func (p *paths) responses(r *registry.Resource, v verb, model string) map[string]any {
	answer := func(text string) map[string]any {
		if p.v3 {
			return map[string]any{"description": text, "content": p.content(model, answerTypes(r, v))}
		}
		return map[string]any{"description": text, "schema": p.ref(model)}
	}
	out := map[string]any{"200": answer("OK"), "401": map[string]any{"description": "Unauthorized"}}
	switch v.method {
	case "post":
		out["201"], out["202"] = answer("Created"), answer("Accepted")
	case "put", "patch":
		out["201"] = answer("Created")
	case "delete":
		if v.action == "delete" {
			out["202"] = answer("Accepted")
		}
	}
	return out
}

func (p *paths) pathParameters(path string) []any {
	var out []any
	for _, name := range []string{"name", "namespace"} {
		if strings.Contains(path, "{"+name+"}") {
			out = append(out, p.parameter(name, "path", "string", true))
		}
	}
	return append(out, p.parameter("pretty", "query", "string", false))
}

func (p *paths) parameter(name, in, kind string, required bool) map[string]any {
	out := map[string]any{"name": name, "in": in}
	if required {
		out["required"] = true
	}
	kindOf := map[string]any{"type": kind, "uniqueItems": true}
	if p.v3 {
		out["schema"] = kindOf
	} else {
		maps.Copy(out, kindOf)
	}
	return out
}

func queryType(name string) string {
	switch name {
	case "allowWatchBookmarks", "watch", "sendInitialEvents", "force", "orphanDependents", "ignoreStoreReadErrorWithClusterBreakingPotential":
		return "boolean"
	case "limit", "timeoutSeconds", "gracePeriodSeconds":
		return "integer"
	}
	return "string"
}

// tag groups operations, e.g. "apps_v1" or "core_v1".
func tag(r *registry.Resource) string {
	group := r.Group
	if group == "" {
		group = "core"
	}
	return camel(strings.TrimSuffix(group, ".k8s.io"), false) + "_" + r.Version
}

// operationID is unique in a document, e.g. "patchAppsV1NamespacedDeploymentStatus".
func operationID(r *registry.Resource, sub string, v verb, path string) string {
	group := r.Group
	if group == "" {
		group = "core"
	}
	scope := ""
	if strings.Contains(path, "{namespace}") {
		scope = "Namespaced"
	}
	name := v.id
	suffix := ""
	if base, ok := strings.CutSuffix(name, "ForAllNamespaces"); ok {
		name, suffix = base, "ForAllNamespaces"
	}
	if v.action == "deletecollection" {
		group = camel(strings.TrimSuffix(group, ".k8s.io"), true)
		return "delete" + group + strings.ToUpper(r.Version[:1]) + r.Version[1:] + "Collection" + scope + r.Kind
	}
	return name + camel(strings.TrimSuffix(group, ".k8s.io"), true) + strings.ToUpper(r.Version[:1]) + r.Version[1:] +
		scope + r.Kind + camel(sub, true) + suffix
}

// camel joins dotted words, "rbac.authorization" to "rbacAuthorization".
func camel(text string, upperFirst bool) string {
	words := strings.Split(text, ".")
	for i, word := range words {
		if word != "" && (i > 0 || upperFirst) {
			words[i] = strings.ToUpper(word[:1]) + word[1:]
		}
	}
	return strings.Join(words, "")
}
