//go:build generate

// Command generate writes the schemas of all published kinds, made of the
// definitions that openapi-gen found in the libraries' types. It is run by
// scripts/generate-openapi, which also makes the package definitions that it
// needs; so it is built with a tag.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"reflect"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"hyperkube/components/apiserver/openapi/generate/definitions"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: generate FILE")
	}
	kinds := kindsByModel()
	out := map[string]map[string]json.RawMessage{"v2": {}, "v3": {}}
	for version, prefix := range map[string]string{"v2": "#/definitions/", "v3": "#/components/schemas/"} {
		refs := func(path string) spec.Ref { return spec.MustCreateRef(prefix + path) }
		for name, definition := range definitions.GetOpenAPIDefinitions(refs) {
			schema, err := finish(version, definition, kinds[name])
			if err != nil {
				log.Fatalf("%s: %v", name, err)
			}
			out[version][name] = schema
		}
	}
	data, err := json.Marshal(out)
	if err != nil {
		log.Fatal(err)
	}
	var packed bytes.Buffer
	zip, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := zip.Write(data); err != nil {
		log.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(os.Args[1], packed.Bytes(), 0o644); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d schemas, %d bytes, %d packed\n", len(out["v3"]), len(data), packed.Len())
}

// kindsByModel maps the names of models to the kinds they are served as.
func kindsByModel() map[string][]map[string]string {
	out := map[string][]map[string]string{}
	known := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, apiextensionsv1.AddToScheme, apiregistrationv1.AddToScheme} {
		if err := add(known); err != nil {
			log.Fatal(err)
		}
	}
	for gvk, goType := range known.AllKnownTypes() {
		named, ok := reflect.New(goType).Interface().(interface{ OpenAPIModelName() string })
		if !ok || gvk.Version == "__internal" || strings.Contains(gvk.Version, "alpha") || strings.Contains(gvk.Version, "beta") {
			continue
		}
		name := named.OpenAPIModelName()
		out[name] = append(out[name], map[string]string{"group": gvk.Group, "kind": gvk.Kind, "version": gvk.Version})
	}
	for _, kinds := range out {
		slices.SortFunc(kinds, func(a, b map[string]string) int {
			return strings.Compare(a["group"]+"/"+a["version"], b["group"]+"/"+b["version"])
		})
	}
	return out
}

// finish makes the schema of one version of OpenAPI.
func finish(version string, d common.OpenAPIDefinition, kinds []map[string]string) (json.RawMessage, error) {
	schema := d.Schema
	if v2, ok := schema.Extensions[common.ExtensionV2Schema]; ok {
		if version == "v2" {
			schema = v2.(spec.Schema)
		} else {
			delete(schema.Extensions, common.ExtensionV2Schema)
		}
	}
	data, err := json.Marshal(schema)
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	if err := json.Unmarshal(data, &tree); err != nil {
		return nil, err
	}
	if version == "v3" {
		wrap(tree)
	}
	if len(kinds) > 0 {
		tree["x-kubernetes-group-version-kind"] = kinds
	}
	return json.Marshal(tree)
}

// wrap puts each reference that has siblings into an allOf: in OpenAPI v3 they
// would not count.
func wrap(v any) {
	switch v := v.(type) {
	case map[string]any:
		if ref, ok := v["$ref"].(string); ok && len(v) > 1 {
			delete(v, "$ref")
			v["allOf"] = []any{map[string]any{"$ref": ref}}
		}
		for _, child := range v {
			wrap(child)
		}
	case []any:
		for _, child := range v {
			wrap(child)
		}
	}
}
