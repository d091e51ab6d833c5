package compose_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// ignoredInStrategic are patches of which a strategic merge patch ignores the malformed part, as in upstream: the
// kind, numbers that the server sets, and directives for lists that the object does not have.
var ignoredInStrategic = map[string]bool{
	`{"apiVersion":"a/b/c"}`:                                 true,
	`{"metadata":{"generation":1e300}}`:                      true,
	`{"metadata":{"$deleteFromPrimitiveList/finalizers":1}}`: true,
	`{"metadata":{"ownerReferences":[{"$patch":"delete"}]}}`: true,
}

// malformedPatches returns patches of all types that no object accepts, except that some subresources ignore metadata.
func malformedPatches() []malformation {
	rejected := []int{400, 409, 413, 422}
	deep := 100_000
	var list []malformation
	add := func(media, query string, bodies ...string) {
		for i, body := range bodies {
			want := rejected
			if media == mediaStrategic && ignoredInStrategic[body] {
				want = append([]int{200}, rejected...)
			}
			list = append(list, malformation{name: fmt.Sprintf("%s %d", media, i), media: media, query: query, body: body, want: want})
		}
	}
	broken := []string{
		"", " ", "{", "[", "x", `"x"`, "1", "true", "\x00", "\xff\xfe", "{}{}", `{"metadata":`, "{\"a\":\"\\ud8",
		strings.Repeat("[", deep), strings.Repeat(`{"a":`, deep), strings.Repeat("[", deep) + strings.Repeat("]", deep),
		strings.Repeat(`{"a":`, deep) + "1" + strings.Repeat("}", deep),
		`{"metadata":` + strings.Repeat(`{"a":`, deep) + "1" + strings.Repeat("}", deep+1),
		`{"x":"` + strings.Repeat("x", 3<<20) + `"}`,
	}
	add(mediaMerge, "", broken...)
	add(mediaStrategic, "", broken...)
	add(mediaJSONPatch, "", broken...)
	add(mediaApply, "fieldManager=m&force=true", broken...)
	// Merge patches. null would delete the object's root.
	bad := []string{
		"[]", "[1]", `{"metadata":[]}`, `{"metadata":1}`, `{"metadata":{"labels":[]}}`, `{"metadata":{"labels":{"a":{}}}}`, `{"metadata":{"labels":{"a":[1]}}}`,
		`{"metadata":{"labels":{"` + strings.Repeat("k", 100_000) + `":"v"}}}`, `{"metadata":{"labels":{"a":"` + strings.Repeat("v", 100_000) + `"}}}`,
		`{"metadata":{"labels":{"a":"b c"}}}`, `{"metadata":{"annotations":{"a b":"c"}}}`, `{"metadata":{"annotations":{"a":"` + strings.Repeat("v", 300<<10) + `"}}}`,
		`{"metadata":{"name":"other"}}`, `{"metadata":{"namespace":"other"}}`, `{"metadata":{"uid":"other"}}`, `{"metadata":{"resourceVersion":"1"}}`, `{"metadata":{"resourceVersion":"-1"}}`, `{"metadata":{"resourceVersion":{}}}`,
		`{"metadata":{"finalizers":{}}}`, `{"metadata":{"finalizers":[1]}}`, `{"metadata":{"finalizers":["a b"]}}`,
		`{"metadata":{"ownerReferences":[{}]}}`, `{"metadata":{"ownerReferences":[{"apiVersion":"a/b/c","kind":"","name":"","uid":""}]}}`, `{"metadata":{"ownerReferences":"x"}}`,
		`{"metadata":{"managedFields":"x"}}`, `{"metadata":{"managedFields":[1]}}`,
		`{"metadata":{"creationTimestamp":1}}`, `{"metadata":{"generation":1e300}}`, `{"metadata":{"generation":0.5}}`,
		`{"apiVersion":1}`, `{"apiVersion":"a/b/c"}`, `{"metadata":{"labels":{"a":1e400}}}`,
	}
	add(mediaMerge, "", bad...)
	add(mediaStrategic, "", bad...)
	add(mediaStrategic, "",
		`{"$patch":1}`, `{"$patch":"unknown"}`, `{"$patch":{}}`, `{"metadata":{"$patch":"unknown"}}`, `{"metadata":{"$patch":[]}}`, `{"metadata":{"$retainKeys":1}}`,
		`{"metadata":{"$deleteFromPrimitiveList/finalizers":1}}`,
		`{"metadata":{"finalizers":[{"$patch":"replace"},1]}}`, `{"metadata":{"ownerReferences":[{"$patch":"delete"}]}}`, `{"metadata":{"ownerReferences":[null]}}`,
	)
	add(mediaJSONPatch, "",
		`{}`, `[1]`, `[null]`, `[[]]`, `[{}]`, `[{"op":1,"path":"/a"}]`, `[{"op":"fly","path":"/a"}]`, `[{"op":"add"}]`, `[{"op":"add","path":1}]`, `[{"op":"add","path":"a"}]`,
		`[{"op":"remove","path":""}]`, `[{"op":"remove","path":"/none"}]`, `[{"op":"remove","path":"/metadata/none/x"}]`, `[{"op":"replace","path":"/none/x","value":1}]`,
		`[{"op":"replace","path":"","value":1}]`, `[{"op":"replace","path":"","value":[]}]`, `[{"op":"replace","path":"/metadata","value":null}]`, `[{"op":"replace","path":"/metadata","value":[]}]`,
		`[{"op":"add","path":"/metadata/finalizers","value":[]},{"op":"add","path":"/metadata/finalizers/99999999999999999999","value":"x"}]`,
		`[{"op":"add","path":"/metadata/finalizers","value":[]},{"op":"add","path":"/metadata/finalizers/1000000000","value":"x"}]`,
		`[{"op":"add","path":"/metadata/finalizers","value":[]},{"op":"add","path":"/metadata/finalizers/-2","value":"x"}]`,
		`[{"op":"add","path":"/metadata/finalizers","value":[]},{"op":"remove","path":"/metadata/finalizers/-"}]`,
		`[{"op":"test","path":"/metadata/name","value":"other"}]`, `[{"op":"test","path":"/none","value":1}]`, `[{"op":"test"}]`,
		`[{"op":"copy","path":"/a"}]`, `[{"op":"move","from":"/none","path":"/a"}]`, `[{"op":"move","from":"","path":"/a"}]`,
		`[{"op":"add","path":"/metadata/labels","value":{"a":{}}}]`, `[{"op":"add","path":"/~2/~","value":1}]`,
		"["+strings.Repeat(`{"op":"test","path":"/metadata/name","value":"target"},`, 20_000)+`{"op":"test","path":"/metadata/name","value":"target"}]`,
		// Each copy doubles the annotations.
		`[{"op":"add","path":"/metadata/annotations","value":{"a":"`+strings.Repeat("x", 1000)+`"}},`+strings.Repeat(`{"op":"copy","from":"/metadata","path":"/metadata/annotations/b"},`, 60)+`{"op":"test","path":"/metadata/name","value":"target"}]`,
	)
	add(mediaApply, "fieldManager=m&force=true",
		"[]", "metadata:\n\tname: x", "metadata: *none", "metadata: &a {labels: *a}", aliasBomb(12), "{}", "metadata: {name: other}", "apiVersion: v1",
		"apiVersion: none/v1\nkind: None\nmetadata: {name: target}\n", "apiVersion: a/b/c\nkind: X\nmetadata: {name: target}\n", "%YAML 9.9\n---\n{}", "metadata: {name: \"\x01\"}",
	)
	list = append(list,
		malformation{name: "apply without a manager", media: mediaApply, body: "{}", want: rejected},
		malformation{name: "a manager of many characters", media: mediaApply, query: "fieldManager=" + strings.Repeat("m", 129), body: "{}", want: rejected},
		malformation{name: "a manager that cannot be printed", media: mediaApply, query: "fieldManager=%00%ff", body: "{}", want: rejected},
		malformation{name: "a forced merge patch", media: mediaMerge, query: "force=true", body: "{}", want: rejected},
		malformation{name: "force that is neither true nor false", media: mediaApply, query: "fieldManager=m&force=maybe", body: "{}", want: rejected},
		malformation{name: "an unknown dry run", media: mediaMerge, query: "dryRun=Some&dryRun=None", body: "{}", want: rejected},
		malformation{name: "an unknown validation", media: mediaMerge, query: "fieldValidation=Some", body: "{}", want: rejected},
	)
	for _, media := range []string{"", mediaJSON, mediaYAML, mediaProto, "application/apply-patch+cbor", "application/cbor", "text/plain", "a/b; charset=\xff", "application/merge-patch", ";"} {
		list = append(list, malformation{name: "a patch of the type " + media, media: media, body: "{}", want: []int{400, 415}})
	}
	return list
}

// TestMalformedPatches sends each malformed patch to objects and subresources, as a dry run. No object may be changed.
func TestMalformedPatches(t *testing.T) {
	m := newMalformedServer(t)
	paths := []string{
		inDefault + "configmaps/target", inDefault + "pods/target", inDefault + "pods/target/status", inDefault + "pods/target/ephemeralcontainers", inDefault + "services/target",
		"/api/v1/nodes/target", "/api/v1/nodes/target/status", "/api/v1/namespaces/default", deployments + "/target", deployments + "/target/scale",
		customThings + "/target", customThings + "/target/scale", customThings + "/target/status",
		"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.example.org", inDefault + "configmaps/absent",
	}
	versions := func() string {
		var all strings.Builder
		for _, path := range paths {
			if strings.HasSuffix(path, "/target") || strings.HasSuffix(path, ".org") {
				_, text := m.send(&attempt{user: "admin", groups: []string{"system:masters"}, request: "GET " + path})
				all.WriteString(text)
			}
		}
		return all.String()
	}
	before := versions()
	for _, path := range paths {
		for _, p := range malformedPatches() {
			want := p.want
			switch {
			case p.media == mediaStrategic && strings.HasPrefix(path, customThings):
				want = []int{415}
			case strings.HasSuffix(path, "/absent"):
				want = append([]int{404}, want...)
			case ignoresMetadata(path) && strings.Contains(p.body, "metadata"):
				want = append([]int{200}, want...)
			}
			m.check(p.name, http.MethodPatch, path+"?dryRun=All&"+p.query, http.Header{"Content-Type": {p.media}}, p.body, want)
		}
	}
	if after := versions(); after != before {
		t.Errorf("objects have changed:\n%s\nfrom\n%s", after, before)
	}
}

// ignoresMetadata reports whether updates of the path ignore some metadata: that of subresources, and the namespace of
// objects without one.
func ignoresMetadata(path string) bool {
	for _, end := range []string{"/scale", "/status", "/ephemeralcontainers", "nodes/target", "namespaces/default", ".org"} {
		if strings.HasSuffix(path, end) {
			return true
		}
	}
	return false
}
