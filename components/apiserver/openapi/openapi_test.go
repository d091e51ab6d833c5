package openapi

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"hyperkube/components/apiserver/registry"
	"hyperkube/internal/api/apps"
	"hyperkube/internal/api/core"
)

type served []*registry.Resource

func (s served) Resources() []*registry.Resource { return s }
func (s served) GroupVersions() []schema.GroupVersion {
	return []schema.GroupVersion{{Version: "v1"}, {Group: "apps", Version: "v1"}}
}

func handler() *Handler {
	var s served
	for _, r := range append(core.Resources(), apps.Resources()...) {
		s = append(s, &registry.Resource{Resource: r})
	}
	return New(s, "v1.37.2")
}

func get(t *testing.T, h http.Handler, path string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	req := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w
}

func TestV3(t *testing.T) {
	h := handler()
	var index struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	if err := json.Unmarshal(get(t, h, "/openapi/v3").Body.Bytes(), &index); err != nil {
		t.Fatal(err)
	}
	url := index.Paths["apis/apps/v1"].ServerRelativeURL
	if !strings.HasPrefix(url, "/openapi/v3/apis/apps/v1?hash=") {
		t.Fatalf("index %v", index)
	}
	w := get(t, h, url)
	if w.Code != http.StatusOK || w.Header().Get("Cache-Control") == "" {
		t.Fatalf("status %d, %v", w.Code, w.Header())
	}
	var doc struct {
		Paths      map[string]map[string]any
		Components struct{ Schemas map[string]map[string]any }
	}
	if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	patch, _ := doc.Paths["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"].(map[string]any)
	if patch == nil {
		t.Fatal("deployments cannot be patched")
	}
	// kubectl checks for this before it uses server-side field validation.
	if text, _ := json.Marshal(patch); !strings.Contains(string(text), `"fieldValidation"`) ||
		!strings.Contains(string(text), "patchAppsV1NamespacedDeployment") {
		t.Errorf("patch is %s", text)
	}
	// All referenced schemas exist.
	for _, match := range reference.FindAllStringSubmatch(w.Body.String(), -1) {
		if doc.Components.Schemas[match[1]] == nil {
			t.Errorf("no schema %s", match[1])
		}
	}
	if doc.Components.Schemas["io.k8s.api.core.v1.PodSpec"] == nil {
		t.Error("no PodSpec")
	}
	if again := get(t, h, url, "If-None-Match", w.Header().Get("Etag")); again.Code != http.StatusNotModified {
		t.Errorf("status %d for what has not changed", again.Code)
	}
	if again := get(t, h, url, "If-None-Match", "*"); again.Code != http.StatusNotModified {
		t.Errorf("status %d for what has not changed, whatever it is", again.Code)
	}
	if again := get(t, h, url, "If-Modified-Since", w.Header().Get("Last-Modified")); again.Code != http.StatusNotModified {
		t.Errorf("status %d for what is not newer than %q", again.Code, w.Header().Get("Last-Modified"))
	}
	if again := get(t, h, url, "If-Modified-Since", "Mon, 02 Jan 2006 15:04:05 GMT"); again.Code != http.StatusOK {
		t.Errorf("status %d for what is newer", again.Code)
	}
	if other := get(t, h, "/openapi/v3/apis/apps/v1?hash=0"); other.Code != http.StatusMovedPermanently || other.Header().Get("Location") != url {
		t.Errorf("status %d and %q for an old address of %q", other.Code, other.Header().Get("Location"), url)
	}
	if none := get(t, h, "/openapi/v3/apis/none/v1"); none.Code != http.StatusNotFound {
		t.Errorf("status %d for what is not served", none.Code)
	}
}

func TestV3Protobuf(t *testing.T) {
	h := handler()
	const url = "/openapi/v3/apis/apps/v1"
	for _, accept := range []string{mimeProtoV3, mimeProtoV3Old, mimeProtoV3Old + ",application/json"} {
		w := get(t, h, url, "Accept", accept)
		var doc openapi_v3.Document
		if err := proto.Unmarshal(w.Body.Bytes(), &doc); err != nil || w.Header().Get("Content-Type") != mimeProtoV3 {
			t.Fatalf("%s: %v, %v", accept, w.Header(), err)
		}
		if len(doc.Paths.Path) < 20 || len(doc.Components.Schemas.AdditionalProperties) < 50 {
			t.Errorf("%d paths, %d schemas", len(doc.Paths.Path), len(doc.Components.Schemas.AdditionalProperties))
		}
	}
	for _, accept := range []string{"", "*/*", "application/*", "application/json"} {
		if w := get(t, h, url, "Accept", accept); !json.Valid(w.Body.Bytes()) || w.Header().Get("Content-Type") != mimeJSON {
			t.Errorf("%q: no JSON", accept)
		}
	}
	if w := get(t, h, url, "Accept", "text/html"); w.Code != http.StatusNotAcceptable || w.Body.Len() > 0 {
		t.Errorf("text/html: %d, %s", w.Code, w.Body)
	}
}

func TestV2(t *testing.T) {
	h := handler()
	w := get(t, h, "/openapi/v2", "Accept", mimeProtoV2)
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	var doc openapi_v2.Document
	if err := proto.Unmarshal(w.Body.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	if len(doc.Paths.Path) < 20 || len(doc.Definitions.AdditionalProperties) < 100 {
		t.Errorf("%d paths, %d definitions", len(doc.Paths.Path), len(doc.Definitions.AdditionalProperties))
	}
	if w := get(t, h, "/openapi/v2"); !json.Valid(w.Body.Bytes()) || w.Header().Get("Content-Type") != mimeJSON {
		t.Error("no JSON")
	}
}

func TestOperationIDsAreUnique(t *testing.T) {
	var doc struct{ Paths map[string]map[string]any }
	if err := json.Unmarshal(get(t, handler(), "/openapi/v2").Body.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	seen := map[any]string{}
	for path, item := range doc.Paths {
		for method, op := range item {
			if op, ok := op.(map[string]any); ok {
				if other := seen[op["operationId"]]; other != "" {
					t.Errorf("%v is %s %s and %s", op["operationId"], method, path, other)
				}
				seen[op["operationId"]] = method + " " + path
			}
		}
	}
}

// TestReferences checks that every model to which a schema refers exists.
func TestReferences(t *testing.T) {
	schemas, err := unpack()
	if err != nil {
		t.Fatal(err)
	}
	for version, all := range schemas {
		for name, raw := range all {
			for _, to := range references(raw) {
				if _, ok := all[to]; !ok {
					t.Errorf("%s: %s refers to %s, which does not exist", version, name, to)
				}
			}
		}
	}
}

// TestAsUpstream compares parts of the documents with those of kube-apiserver v1.37, byte for byte.
func TestAsUpstream(t *testing.T) {
	h := handler()
	for _, c := range []struct{ path, want string }{
		{
			"/openapi/v2",
			`"/api/v1/namespaces/{namespace}/configmaps/{name}":{"get":{"description":"read the specified ConfigMap","consumes":["*/*"],` +
				`"produces":["application/json","application/yaml","application/vnd.kubernetes.protobuf"],"schemes":["https"],"tags":["core_v1"],` +
				`"operationId":"readCoreV1NamespacedConfigMap","responses":{"200":{"description":"OK","schema":{"$ref":"#/definitions/io.k8s.api.core.v1.ConfigMap"}},` +
				`"401":{"description":"Unauthorized"}},"x-kubernetes-action":"get","x-kubernetes-group-version-kind":{"group":"","kind":"ConfigMap","version":"v1"}},"put":`,
		},
		{"/openapi/v2", `"watch-XNNPZGbK":{"uniqueItems":true,"type":"boolean","description":"Watch for changes`},
		{"/openapi/v2", `{"$ref":"#/parameters/fieldManager-Qy4HdaTW"}`},
		{"/openapi/v2", `"/api/v1/watch/namespaces/{namespace}/pods/{name}":{"get":`},
		{"/openapi/v2", `"operationId":"deleteAppsV1CollectionNamespacedDeployment"`},
		{
			"/openapi/v3/apis/apps/v1",
			`"200":{"description":"OK","content":{"application/json":{"schema":{"$ref":"#/components/schemas/io.k8s.api.autoscaling.v1.Scale"}},`,
		},
		{"/openapi/v3/apis/apps/v1", `"x-kubernetes-group-version-kind":[{"group":"","kind":"DeleteOptions","version":"v1"},{"group":"apps","kind":"DeleteOptions","version":"v1"}]`},
		{"/openapi/v3/version", `{"openapi":"3.0.0","info":{"title":"Kubernetes","version":"1.37"},"paths":{"/version/":{"get":{"tags":["version"],"description":"get the version information for this server","operationId":"getCodeVersion",`},
		{"/openapi/v3/apis/apps", `"operationId":"getAppsAPIGroup"`},
		{"/openapi/v3", `"apis/apps":{"serverRelativeURL":"/openapi/v3/apis/apps?hash=`},
	} {
		if got := get(t, h, c.path).Body.String(); !strings.Contains(got, c.want) {
			t.Errorf("%s has no %s", c.path, c.want)
		}
	}
	if w := get(t, h, "/openapi/v2", "Accept", "text/html"); w.Code != http.StatusNotAcceptable {
		t.Errorf("text/html: %d", w.Code)
	}
	if w := get(t, h, "/openapi/v3/none"); w.Code != http.StatusNotFound || w.Body.Len() > 0 {
		t.Errorf("no document: %d, %s", w.Code, w.Body)
	}
}
