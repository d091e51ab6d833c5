package openapi

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// operation is an API operation (a method at a path), in a form that is independent of the OpenAPI
// version.
type operation struct {
	path, method string
	id, text     string
	tag          string
	action       string // "" for paths that are not resources
	kind         groupVersionKind
	// consumes and produces are the media types of the request body and the response.
	consumes, produces []string
	parameters         []parameter
	// body is the name of the schema of the request body, or "" if there is none.
	body         string
	bodyRequired bool
	// answer is the name of the schema of the response, or "" for text.
	answer string
	// answers are the status codes of successful responses in addition to 200, e.g. 201.
	answers []int
}

// groupVersionKind is the kind that an operation returns or changes.
type groupVersionKind struct{ group, version, kind string }

// parameter is a query or path parameter (in) with its type (kind) and description (text).
type parameter struct{ name, in, kind, text string }

// answerTexts are the descriptions of responses by status code.
var answerTexts = map[int]string{200: "OK", 201: "Created", 202: "Accepted", 401: "Unauthorized"}

// paths collects the operations of an OpenAPI document, by URL path, while the document is built. It also collects the
// names of the schemas to which the operations refer.
type paths struct {
	v3 bool
	// operations are the operations by path, in the order in which they were added.
	operations map[string][]*operation
	// models are the names of the schemas to which the operations refer.
	models []string
	// custom contains the schemas of custom resources by name. Those of built-in kinds are in
	// packed.
	custom map[string]json.RawMessage
}

// newPaths returns paths without operations, for a v3 document or the v2 document.
func newPaths(v3 bool) *paths { return &paths{v3: v3, operations: map[string][]*operation{}} }

// add adds an operation to the document, and the names of the schemas of its request body and response to the models.
func (p *paths) add(op *operation) {
	p.operations[op.path] = append(p.operations[op.path], op)
	for _, model := range []string{op.body, op.answer} {
		if model != "" {
			p.models = append(p.models, model)
		}
	}
}

// with adds the schemas of the document's custom resources to the map schemas, which contains the schemas of built-in kinds
// by name. It returns the same map.
func (p *paths) with(schemas map[string]json.RawMessage) map[string]json.RawMessage {
	maps.Copy(schemas, p.custom)
	return schemas
}

// members are the members of a JSON object in a fixed order. Because of the order, documents with
// the same content are the same byte for byte.
type members []member

// member is a name and value in a JSON object.
type member struct {
	name  string
	value any
}

// MarshalJSON implements json.Marshaler. It keeps the order of the members.
func (m members) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	out.WriteByte('{')
	for i, x := range m {
		if i > 0 {
			out.WriteByte(',')
		}
		out.WriteString(strconv.Quote(x.name))
		out.WriteByte(':')
		data, err := encode(x.value)
		if err != nil {
			return nil, err
		}
		out.Write(data)
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

// encode returns the JSON of v like json.Marshal, but does not escape HTML characters.
func encode(v any) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}

// methods are the HTTP methods in the order in which a document contains the operations of a path.
var methods = []string{"get", "put", "post", "delete", "options", "head", "patch"}

// items returns the value of the document's field "paths": the operations and common parameters of each path. In a v2
// document, most parameters are references. items adds these parameters to shared, the parameters of the whole document,
// by their name with a hash of the content.
func (p *paths) items(shared map[string]any) (map[string]any, error) {
	out := make(map[string]any, len(p.operations))
	for path, ops := range p.operations {
		common := commonParameters(ops)
		var item members
		for _, method := range methods {
			for _, op := range ops {
				if op.method != method {
					continue
				}
				one, err := p.item(op, common, shared)
				if err != nil {
					return nil, err
				}
				item = append(item, member{method, one})
			}
		}
		var all []any
		for _, c := range sorted(slices.Collect(maps.Values(common))) {
			one, err := p.parameter(c, shared)
			if err != nil {
				return nil, err
			}
			all = append(all, one)
		}
		if len(all) > 0 {
			item = append(item, member{"parameters", all})
		}
		out[path] = item
	}
	return out, nil
}

// nameIn identifies a parameter by its name and place (query or path).
type nameIn struct{ name, in string }

// commonParameters returns the parameters that all operations of a path have. The document contains
// them once for the path.
func commonParameters(ops []*operation) map[nameIn]parameter {
	count := map[nameIn]int{}
	common := map[nameIn]parameter{}
	for _, op := range ops {
		for _, x := range op.parameters {
			key := nameIn{x.name, x.in}
			count[key]++
			common[key] = x
		}
	}
	maps.DeleteFunc(common, func(key nameIn, _ parameter) bool { return count[key] < len(ops) })
	return common
}

// sorted sorts parameters in place by name, and by query or path, and returns them.
func sorted(all []parameter) []parameter {
	slices.SortFunc(all, func(a, b parameter) int { return cmp.Or(strings.Compare(a.name, b.name), strings.Compare(a.in, b.in)) })
	return all
}

// item returns the JSON object of one operation. common are the parameters that the path contains for all operations,
// which it omits. shared collects the parameters of the whole v2 document.
func (p *paths) item(op *operation, common map[nameIn]parameter, shared map[string]any) (members, error) {
	own := slices.DeleteFunc(slices.Clone(op.parameters), func(x parameter) bool {
		_, ok := common[nameIn{x.name, x.in}]
		return ok
	})
	var all []any
	inBody := !p.v3 && op.body != ""
	body := func() error {
		one, err := p.body(op, shared)
		all, inBody = append(all, one), false
		return err
	}
	for _, x := range sorted(own) {
		if inBody && x.name > "body" {
			if err := body(); err != nil {
				return nil, err
			}
		}
		one, err := p.parameter(x, shared)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	if inBody {
		if err := body(); err != nil {
			return nil, err
		}
	}
	var out members
	put := func(name string, value any) { out = append(out, member{name, value}) }
	put2 := func(name string, value []string) {
		if !p.v3 && len(value) > 0 {
			put(name, value)
		}
	}
	if p.v3 {
		put("tags", []string{op.tag})
	}
	put("description", op.text)
	put2("consumes", op.consumes)
	put2("produces", op.produces)
	put2("schemes", []string{"https"})
	put2("tags", []string{op.tag})
	put("operationId", op.id)
	if len(all) > 0 {
		put("parameters", all)
	}
	if p.v3 && op.body != "" {
		body := members{{"content", p.content(p.schema(op.body), op.consumes)}}
		if op.bodyRequired {
			body = append(body, member{"required", true})
		}
		put("requestBody", body)
	}
	put("responses", p.responses(op))
	if op.action != "" {
		put("x-kubernetes-action", op.action)
		kind := members{{"group", op.kind.group}, {"kind", op.kind.kind}, {"version", op.kind.version}}
		if p.v3 {
			kind[1], kind[2] = kind[2], kind[1]
		}
		put(kindExtension, kind)
	}
	return out, nil
}

// responses returns the field "responses" of an operation in the document: the schema or description of each response
// by status code.
func (p *paths) responses(op *operation) members {
	var out members
	for _, code := range append([]int{200}, op.answers...) {
		answer := members{{"description", answerTexts[code]}}
		if p.v3 {
			answer = append(answer, member{"content", p.content(p.schema(op.answer), op.produces)})
		} else {
			answer = append(answer, member{"schema", p.schema(op.answer)})
		}
		out = append(out, member{strconv.Itoa(code), answer})
	}
	return append(out, member{"401", members{{"description", answerTexts[401]}}})
}

// schema returns a JSON reference to the schema with the name model. For an empty model, it returns the schema of a
// string.
func (p *paths) schema(model string) members {
	switch {
	case model == "":
		return members{{"type", "string"}}
	case p.v3:
		return members{{"$ref", "#/components/schemas/" + model}}
	}
	return members{{"$ref", "#/definitions/" + model}}
}

// content returns the description of a request or response body for a v3 document: the same schema for each of the
// media types.
func (p *paths) content(schema members, types []string) map[string]any {
	out := make(map[string]any, len(types))
	for _, t := range types {
		out[t] = members{{"schema", schema}}
	}
	return out
}

// parameter returns the JSON object of a parameter. In v2, it adds most parameters to shared, the parameters of the
// whole document, and returns a reference.
func (p *paths) parameter(x parameter, shared map[string]any) (any, error) {
	var out members
	if !p.v3 {
		out = members{{"uniqueItems", true}, {"type", x.kind}}
		if x.text != "" {
			out = append(out, member{"description", x.text})
		}
		out = append(out, member{"name", x.name}, member{"in", x.in})
		if x.in == "path" {
			out = append(out, member{"required", true})
		}
		switch x.name {
		case "name", "fieldValidation", "dryRun":
			// Clients expect the last two at the operation.
			return out, nil
		}
		return share(x.name, out, shared)
	}
	out = members{{"name", x.name}, {"in", x.in}}
	if x.text != "" {
		out = append(out, member{"description", x.text})
	}
	if x.in == "path" {
		out = append(out, member{"required", true})
	}
	return append(out, member{"schema", members{{"type", x.kind}, {"uniqueItems", true}}}), nil
}

// body returns the v2 parameter for the request body of an operation, or a reference to it in shared if its type is a
// common one such as DeleteOptions. In v3, bodies are not parameters.
func (p *paths) body(op *operation, shared map[string]any) (any, error) {
	out := members{{"name", "body"}, {"in", "body"}}
	if op.bodyRequired {
		out = append(out, member{"required", true})
	}
	out = append(out, member{"schema", p.schema(op.body)})
	if !strings.HasPrefix(op.body, "io.k8s.apimachinery") {
		return out, nil
	}
	return share("body", out, shared)
}

// share adds a parameter to shared, the parameters of the whole document, and returns a reference
// to it. Its name contains a hash of its content, so that equal parameters are added once.
func share(name string, x members, shared map[string]any) (any, error) {
	data, err := json.Marshal(x)
	if err != nil {
		return nil, fmt.Errorf("parameter %s: %w", name, err)
	}
	sum := fnv.New64()
	_, _ = sum.Write(data)
	name += "-" + base64.URLEncoding.EncodeToString(sum.Sum(nil)[:6])
	shared[name] = x
	return members{{"$ref", "#/parameters/" + name}}, nil
}
