package integration

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"

	"hyperkube/components/apiserver"
	"hyperkube/internal/testing/testwait"
)

// TestCustomAnswers compares responses for custom resources with those of kube-apiserver v1.37.
func TestCustomAnswers(t *testing.T) {
	s := startServer(t, apiserver.Config{})
	d, err := dynamic.NewForConfig(admin(s))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	(&custom{t, d, ctx}).define(foos, "Established=True")
	a := newAPI(t, s)
	const v1, v2 = "/apis/example.com/v1/namespaces/default/foos", "/apis/example.com/v2/namespaces/default/foos"
	const head = `{"apiVersion":"example.com/v1","kind":"Foo","metadata":{"name":"a"`
	// Discovery is updated after a definition is established.
	testwait.Until(t, "discovery of the definition", func() bool { return a.do("GET", "/apis/example.com/v1", "").code == 200 })
	for _, tc := range []struct {
		name, method, path, body string
		header                   []string
		code                     int
		want                     []string
	}{
		{"subresources", "GET", "/apis/example.com/v1", "", nil, 200, []string{`{"name":"foos/status","singularName":"","namespaced":true,"kind":"Foo","verbs":["get","patch","update"]},{"name":"foos/scale"`}},
		{"none", "GET", v1, "", nil, 200, []string{`"metadata":{"resourceVersion":`, `"continue":""`, `"items":[]`}},
		{"no metadata", "GET", v1, "", []string{"Accept: application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}, 200, []string{`"items":null`}},
		{"create", "POST", v1, head + `,"finalizers":["a.b/c"]},"spec":{}}`, nil, 201, []string{`"replicas":1`}},
		{"items", "GET", v1, "", nil, 200, []string{`"items":[{"kind":"Foo","apiVersion":"example.com/v1",`}},
		{"stored defaults", "POST", v2 + "?dryRun=All", `{"apiVersion":"example.com/v2","kind":"Foo","metadata":{"name":"b"},"spec":{"none":1}}`, nil, 201, []string{`"replicas":1`}},
		{"kind", "POST", v1, `{"apiVersion":"example.com/v1","kind":"Bar","metadata":{"name":"b"}}`, nil, 422, []string{`Bar.example.com \"b\" is invalid: kind: Invalid value: \"Bar\": must be Foo`}},
		{"patched definition", "PATCH", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/foos.example.com", `{"spec":{"group":1}}`, []string{mrg}, 422, []string{`json: cannot unmarshal number into Go struct field CustomResourceDefinitionSpec.spec.group of type string`}},
		{"deleted definition", "DELETE", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/foos.example.com", `{"preconditions":{"resourceVersion":"1"}}`, []string{jsn}, 409, []string{`on customresourcedefinitions.apiextensions.k8s.io \"foos.example.com\": precondition failed: ResourceVersion in precondition: 1, ResourceVersion in object meta: `}},
		{"patched kind", "PATCH", v1 + "/a", `{"kind":"Bar"}`, []string{mrg}, 422, []string{`Bar.example.com \"a\" is invalid: kind: Invalid value: \"Bar\": must be Foo`}},
		{"no kind", "POST", v1, `{"apiVersion":"example.com/v1"}`, nil, 400, []string{"the object provided is unrecognized (must be of type Foo): Object 'Kind' is missing"}},
		{"no text", "POST", v1, `{"apiVersion":{},"kind":"Foo"}`, nil, 400, []string{"couldn't get version/kind; json parse error"}},
		{"applied number", "PATCH", v1 + "/n?fieldManager=m", strings.Replace(head, `"a"`, `"n"`, 1) + `},"spec":{"replicas":2.0}}`, []string{ssa}, 201, []string{`"replicas":2`}},
		{"applied owner", "PATCH", v1 + "/a?fieldManager=m", head + `,"ownerReferences":[{"apiVersion":"v1"}]}}`, []string{ssa}, 422, []string{"metadata.ownerReferences[0].uid: Required value: must not be empty"}},
		{"labels twice", "PATCH", v1 + "/a", `{"metadata":{"labels":{"A B":"x"}}}`, []string{mrg}, 422, []string{`"field":"metadata.labels"},{"reason":"FieldValueInvalid"`}},
		{"scale as table", "GET", v1 + "/a/scale", ``, []string{tabl}, 200, []string{`{"name":"Available","type":"integer","format":"","description":"Number of actual replicas","priority":0},{"name":"Age","type":"date"`, `"rows":[{"cells":["a",`}},
		{"scale", "PATCH", v1 + "/a/scale", `{"spec":{"replicas":-1}}`, []string{mrg}, 422, []string{`Foo.example.com \"a\" is invalid: .spec.replicas: Invalid value: -1: should be a non-negative integer`}},
		{"only metadata", "GET", v1, "", []string{"Accept: application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}, 406, []string{"the requested object is a list (*unstructured.UnstructuredList)"}},
		{"protobuf", "GET", v1 + "/a", "", []string{"Accept: application/cbor"}, 406, []string{"application/json, application/yaml, application/vnd.kubernetes.protobuf"}},
		{"as protobuf", "GET", v1 + "/a", "", []string{"Accept: application/vnd.kubernetes.protobuf"}, 406, []string{"only the following media types are accepted: application/json, application/yaml"}},
		{"watched as protobuf", "GET", v1 + "?watch=1", "", []string{"Accept: application/vnd.kubernetes.protobuf;stream=watch"}, 406, []string{"only the following media types are accepted"}},
		{"metadata as protobuf", "GET", v1, "", []string{"Accept: application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}, 200, []string{"k8s\x00", "PartialObjectMetadataList"}},
		{"sent as protobuf", "PUT", v1 + "/a", "k8s\x00", []string{"Content-Type: application/vnd.kubernetes.protobuf"}, 400, []string{"does not implement the protobuf marshalling interface"}},
		{"scale to nothing", "PATCH", v1 + "/a/scale", `{"spec":{"replicas":0}}`, []string{mrg}, 200, nil},
		{"scale of nothing as table", "GET", v1 + "/a/scale", "", []string{tabl}, 200, []string{`"rows":[{"cells":["a",null,0,`}},
		{"a change of none", "PUT", v1, head + `}}`, []string{jsn}, 400, []string{"name must be provided"}},
		{"status is not made", "POST", v1 + "/a/status", head + `}}`, nil, 405, []string{`create is not supported on resources of kind \"foos.example.com\"`}},
		{"deleting", "DELETE", v1 + "/a", "", nil, 200, []string{`"deletionTimestamp"`}},
		{"name of it", "POST", v1, head + `},"spec":{}}`, nil, 409, []string{`object is being deleted: foos.example.com \"a\" already exists`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			header := tc.header
			if tc.method == http.MethodPost {
				header = append(header, jsn)
			}
			r := a.do(tc.method, tc.path, tc.body, header...)
			if r.code != tc.code {
				t.Errorf("status %d, not %d", r.code, tc.code)
			}
			for _, want := range tc.want {
				if !strings.Contains(r.body, want) {
					t.Errorf("no %s in %s", want, r.body)
				}
			}
		})
	}
}

// TestNoConversion uses a conversion webhook whose Service does not exist.
func TestNoConversion(t *testing.T) {
	s := startServer(t, apiserver.Config{})
	d, err := dynamic.NewForConfig(admin(s))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	(&custom{t, d, ctx}).define(foos+`
  conversion:
    strategy: Webhook
    webhook: {conversionReviewVersions: [v1], clientConfig: {service: {name: nowhere, namespace: default, path: /convert}}}`, "Established=True")
	a := newAPI(t, s)
	r := a.do("POST", "/apis/example.com/v2/namespaces/default/foos", `{"apiVersion":"example.com/v2","kind":"Foo","metadata":{"name":"a"}}`, jsn)
	const want = `conversion webhook for example.com/v2, Kind=Foo failed: Post \"https://nowhere.default.svc:443/convert?timeout=30s\": service \"nowhere\" not found"`
	if r.code != 500 || !strings.Contains(r.body, want) {
		t.Errorf("got %d %s\nwant 500 %s", r.code, r.body, want)
	}
}
