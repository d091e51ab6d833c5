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

// operation is an API operation, independent of the OpenAPI version.
type operation struct {
	path, method string
	id, text     string
	tag          string
	action       string // "" for paths that are not resources
	kind         groupVersionKind
	// consumes and produces are media types.
	consumes, produces []string
	parameters         []parameter
	// body is the model of the request body, or "" if there is none.
	body         string
	bodyRequired bool
	// answer is the model of the response, or "" for text.
	answer string
	// answers are status codes in addition to 200, e.g. 201.
	answers []int
}

type groupVersionKind struct{ group, version, kind string }

// parameter is a query or path parameter.
type parameter struct{ name, in, kind, text string }

var answerTexts = map[int]string{200: "OK", 201: "Created", 202: "Accepted", 401: "Unauthorized"}

// paths collects the operations of a document.
type paths struct {
	v3 bool
	// operations by path, in the order of addition.
	operations map[string][]*operation
	// models are the schemas to which the operations refer.
	models []string
	// custom contains the schemas of custom resources.
	custom map[string]json.RawMessage
}

func newPaths(v3 bool) *paths { return &paths{v3: v3, operations: map[string][]*operation{}} }

func (p *paths) add(op *operation) {
	p.operations[op.path] = append(p.operations[op.path], op)
	for _, model := range []string{op.body, op.answer} {
		if model != "" {
			p.models = append(p.models, model)
		}
	}
}

// with adds the schemas of custom resources to all. The caller must own the map.
func (p *paths) with(all map[string]json.RawMessage) map[string]json.RawMessage {
	maps.Copy(all, p.custom)
	return all
}

// members are the members of a JSON object in a fixed order, so that equal documents are equal byte
// for byte.
type members []member

type member struct {
	name  string
	value any
}

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

// encode is json.Marshal without HTML escapes.
func encode(v any) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}

// methods is the order of methods in a path item.
var methods = []string{"get", "put", "post", "delete", "options", "head", "patch"}

// items returns the path items by path. It adds shared v2 parameters to shared, by name.
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

type nameIn struct{ name, in string }

// commonParameters returns the parameters that all operations of a path have.
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

func sorted(all []parameter) []parameter {
	slices.SortFunc(all, func(a, b parameter) int { return cmp.Or(strings.Compare(a.name, b.name), strings.Compare(a.in, b.in)) })
	return all
}

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

// schema returns a reference to a model.
func (p *paths) schema(model string) members {
	switch {
	case model == "":
		return members{{"type", "string"}}
	case p.v3:
		return members{{"$ref", "#/components/schemas/" + model}}
	}
	return members{{"$ref", "#/definitions/" + model}}
}

func (p *paths) content(schema members, types []string) map[string]any {
	out := make(map[string]any, len(types))
	for _, t := range types {
		out[t] = members{{"schema", schema}}
	}
	return out
}

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

// body returns the v2 parameter of the request body.
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

// share moves a parameter to the document's shared parameters, with a name that contains a hash of
// its content.
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
