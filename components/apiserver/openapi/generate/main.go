//go:build generate

// Command generate writes the OpenAPI schemas of all published kinds, based on the definitions that
// openapi-gen generates from the Go types. scripts/generate-openapi runs it and generates the
// package definitions, which it imports. Therefore it has a build tag.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
	admissionv1 "k8s.io/api/admission/v1"
	admissionv1beta1 "k8s.io/api/admission/v1beta1"
	imagepolicyv1alpha1 "k8s.io/api/imagepolicy/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationv1beta1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1beta1"
	builderutil "k8s.io/kube-openapi/pkg/builder3/util"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"hyperkube/components/apiserver/openapi/generate/definitions"
	"hyperkube/components/apiserver/openapi/version2"
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
	var plain bytes.Buffer
	encoder := json.NewEncoder(&plain)
	encoder.SetEscapeHTML(false) // v3 escapes HTML when it is sent
	if err := encoder.Encode(out); err != nil {
		log.Fatal(err)
	}
	data := plain.Bytes()
	zip, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1))
	if err != nil {
		log.Fatal(err)
	}
	packed := zip.EncodeAll(data, nil)
	if err := os.WriteFile(os.Args[1], packed, 0o644); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d schemas, %d bytes, %d packed\n", len(out["v3"]), len(data), len(packed))
}

// kindsByModel returns the kinds that each Go type represents, as values of the extension
// x-kubernetes-group-version-kind. The key is the name of the type's schema. Common types, such as
// DeleteOptions, have a kind in every group.
func kindsByModel() map[string][]any {
	found := map[string][]schema.GroupVersionKind{}
	known := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		scheme.AddToScheme, apiextensionsv1.AddToScheme, apiregistrationv1.AddToScheme,
		// Only the kinds that exist in every group are published for these.
		admissionv1.AddToScheme, admissionv1beta1.AddToScheme, imagepolicyv1alpha1.AddToScheme,
		apiextensionsv1beta1.AddToScheme, apiregistrationv1beta1.AddToScheme,
	} {
		if err := add(known); err != nil {
			log.Fatal(err)
		}
	}
	for gvk, goType := range known.AllKnownTypes() {
		named, ok := reflect.New(goType).Interface().(interface{ OpenAPIModelName() string })
		if !ok || gvk.Version == runtime.APIVersionInternal {
			continue
		}
		name := named.OpenAPIModelName()
		found[name] = append(found[name], gvk)
	}
	out := map[string][]any{}
	for name, kinds := range found {
		slices.SortFunc(kinds, func(a, b schema.GroupVersionKind) int {
			return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Version, b.Version))
		})
		for _, gvk := range kinds {
			out[name] = append(out[name], map[string]any{"group": gvk.Group, "kind": gvk.Kind, "version": gvk.Version})
		}
	}
	return out
}

// finish returns the JSON of a type's schema for one OpenAPI version ("v2" or "v3"), with the extension that names its
// kinds. The properties are in the kube-openapi library's order.
func finish(version string, d common.OpenAPIDefinition, kinds []any) (json.RawMessage, error) {
	schema := d.Schema
	if v2, ok := schema.Extensions[common.ExtensionV2Schema]; ok {
		if version == "v2" {
			schema = v2.(spec.Schema)
		} else {
			delete(schema.Extensions, common.ExtensionV2Schema)
		}
	}
	if len(kinds) > 0 {
		schema.VendorExtensible.AddExtension("x-kubernetes-group-version-kind", kinds)
	}
	out := &schema
	if version == "v3" {
		// In v3, siblings of a reference are ignored.
		out = builderutil.WrapRefs(out)
	} else {
		out = version2.WithoutDefaults(out)
	}
	return out.MarshalJSON()
}
