package e2e

import (
	"strings"
	"testing"
)

// A definition with many features. %NS% keeps the names of concurrent tests unique.
const gadgets = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.%NS%.example.com}
spec:
  group: "%NS%.example.com"
  scope: Namespaced
  names: {plural: gadgets, kind: Gadget, shortNames: [gd%NS%]}
  versions:
  - name: v1
    served: true
    storage: true
    selectableFields: [{jsonPath: .spec.color}]
    additionalPrinterColumns:
    - {name: Color, type: string, jsonPath: .spec.color}
    - {name: Replicas, type: integer, jsonPath: .spec.replicas}
    subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            description: What the gadget should be.
            x-kubernetes-validations: [{rule: "self.replicas <= self.most", message: "too many replicas"}]
            properties:
              color: {type: string, enum: [red, blue]}
              replicas: {type: integer, default: 1}
              most: {type: integer, default: 10}
              parts: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [name], items: {type: object, required: [name], properties: {name: {type: string}, size: {type: integer}}}}
          status: {type: object, properties: {replicas: {type: integer}}}
  - name: v1alpha1
    served: true
    storage: false
    deprecated: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// TestCustomResources defines a kind and uses it immediately, like helm does with a chart's
// definitions.
func TestCustomResources(t *testing.T) {
	s := newSpace(t)
	fill := strings.NewReplacer("%NS%", s.name).Replace
	name := fill("gadgets.%NS%.example.com")
	gadget := func(name, spec string) string {
		return fill("---\n{apiVersion: %NS%.example.com/v1, kind: Gadget, metadata: {name: " + name + "}, spec: {" + spec + "}}")
	}
	s.apply(fill(gadgets))
	t.Cleanup(func() { _, _ = s.run("", "delete", "crd", name, "--ignore-not-found") })
	s.do("wait", "--for=condition=Established", "crd/"+name, "--timeout=180s")
	if out, err := s.run(gadget("one", "color: red, parts: [{name: a, size: 1}]"), "apply", "--server-side", "-f", "-"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	s.contains(s.do("get", fill("gd%NS%")), "COLOR", "REPLICAS", "one", "red")
	s.contains(s.do("explain", fill("gadgets.%NS%.example.com.spec")), "What the gadget should be", "replicas")
	for _, refused := range []struct{ spec, why string }{
		{"color: green", "Unsupported value"}, {"replicas: 11", "too many replicas"}, {"bogus: 1", `unknown field "spec.bogus"`},
	} {
		if out, err := s.run(gadget("two", refused.spec), "create", "-f", "-"); err == nil || !strings.Contains(out, refused.why) {
			t.Errorf("%s: %v, %s", refused.spec, err, out)
		}
	}
	s.do("scale", fill("gd%NS%"), "one", "--replicas=4")
	s.do("patch", fill("gd%NS%"), "one", "--subresource=status", "--type=merge", "-p", `{"status":{"replicas":3}}`)
	if got := s.do("get", fill("gd%NS%"), "one", "-o", "jsonpath={.spec.replicas} {.status.replicas} {.metadata.generation}"); got != "4 3 2" {
		t.Errorf("scale is %s", got)
	}
	if out, err := s.run(gadget("one", "parts: [{name: b, size: 2}]"), "apply", "--server-side", "--field-manager=another", "-f", "-"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if got := s.do("get", fill("gd%NS%"), "one", "-o", "jsonpath={.spec.parts[*].name}"); got != "a b" {
		t.Errorf("parts %s", got)
	}
	s.contains(s.do("get", fill("gadgets.v1alpha1.%NS%.example.com"), "one", "-o", "yaml"), fill("apiVersion: %NS%.example.com/v1alpha1"), "is deprecated; use")
	s.contains(s.do("get", fill("gd%NS%"), "--field-selector=spec.color=red", "-o", "name"), "one")

	s.do("delete", "crd", name, "--timeout=180s")
	if out, err := s.run("", "get", fill("gadgets.%NS%.example.com")); err == nil || !strings.Contains(out, "the server doesn't have a resource type") {
		t.Errorf("after the definition is deleted: %v, %s", err, out)
	}
}
