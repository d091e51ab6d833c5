package request

import (
	"net/url"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		method, url                                     string
		resource                                        bool
		verb, group, version, namespace, res, name, sub string
	}{
		{"GET", "/api", false, "get", "", "", "", "", "", ""},
		{"GET", "/apis/apps/v1", false, "get", "", "", "", "", "", ""},
		{"GET", "/healthz", false, "get", "", "", "", "", "", ""},
		{"GET", "/api/v1/pods", true, "list", "", "v1", "", "pods", "", ""},
		{"GET", "/api/v1/pods?watch=1", true, "watch", "", "v1", "", "pods", "", ""},
		{"GET", "/api/v1/pods?watch=false", true, "list", "", "v1", "", "pods", "", ""},
		{"GET", "/api/v1/pods?fieldSelector=metadata.name%3Dx", true, "list", "", "v1", "", "pods", "x", ""},
		{"POST", "/api/v1/namespaces", true, "create", "", "v1", "", "namespaces", "", ""},
		{"GET", "/api/v1/namespaces/a", true, "get", "", "v1", "a", "namespaces", "a", ""},
		{"PUT", "/api/v1/namespaces/a/finalize", true, "update", "", "v1", "a", "namespaces", "a", "finalize"},
		{"GET", "/api/v1/namespaces/a/pods", true, "list", "", "v1", "a", "pods", "", ""},
		{"DELETE", "/api/v1/namespaces/a/pods", true, "deletecollection", "", "v1", "a", "pods", "", ""},
		{"DELETE", "/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dx", true, "deletecollection", "", "v1", "a", "pods", "", ""},
		{"GET", "/api/v1/pods?watch=1&fieldSelector=metadata.name%3Dx", true, "watch", "", "v1", "", "pods", "x", ""},
		{"GET", "/api/v1/watch/pods?fieldSelector=metadata.name%3Dx", true, "watch", "", "v1", "", "pods", "", ""},
		{"DELETE", "/api/v1/namespaces/a/pods/b", true, "delete", "", "v1", "a", "pods", "b", ""},
		{"PATCH", "/apis/apps/v1/namespaces/a/deployments/b/scale", true, "patch", "apps", "v1", "a", "deployments", "b", "scale"},
		{"GET", "/api/v1/namespaces/a/services/b/proxy/x/y", true, "get", "", "v1", "a", "services", "b", "proxy"},
		{"GET", "/api/v1/watch/namespaces/a/pods", true, "watch", "", "v1", "a", "pods", "", ""},
		{"GET", "/api/v1/watch/namespaces/a/pods/b", true, "watch", "", "v1", "a", "pods", "b", ""},
	} {
		u, err := url.Parse(tc.url)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Parse(tc.method, u, u.Query())
		if err != nil {
			t.Errorf("%s %s: %v", tc.method, tc.url, err)
			continue
		}
		if got.IsResourceRequest != tc.resource || got.Verb != tc.verb || got.APIGroup != tc.group || got.APIVersion != tc.version ||
			got.Namespace != tc.namespace || got.Resource != tc.res || got.Name != tc.name || got.Subresource != tc.sub {
			t.Errorf("%s %s: %+v", tc.method, tc.url, *got)
		}
	}
}

func TestContinue(t *testing.T) {
	token, err := EncodeContinue("ns/b", "ns/", 7)
	if err != nil {
		t.Fatal(err)
	}
	key, revision, err := DecodeContinue(token, "ns/")
	if err != nil || key != "ns/b" || revision != 7 {
		t.Errorf("got %q %d %v", key, revision, err)
	}
	if _, err := EncodeContinue("other/b", "ns/", 7); err == nil {
		t.Error("encoded a key outside of the prefix")
	}
	if _, _, err := DecodeContinue("!", ""); err == nil || !strings.Contains(err.Error(), "continue key is not valid") {
		t.Errorf("got %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("GET", "/api/v1/namespaces/a/pods/b/status", "watch=1&fieldSelector=metadata.name=x")
	f.Add("DELETE", "/apis/apps/v1/watch", "")
	f.Fuzz(func(t *testing.T, method, path, query string) {
		values, _ := url.ParseQuery(query)
		info, err := Parse(method, &url.URL{Path: path}, values)
		if info == nil {
			t.Fatal("no info")
		}
		if err == nil && info.IsResourceRequest && len(info.Parts) == 0 {
			t.Errorf("%q is a resource without parts", path)
		}
	})
}

func FuzzDecodeContinue(f *testing.F) {
	token, _ := EncodeContinue("ns/b", "ns/", 7)
	f.Add(token)
	f.Add("eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiIuLi9rdWJlLXN5c3RlbS94In0")
	f.Fuzz(func(t *testing.T, token string) {
		key, _, err := DecodeContinue(token, "ns/")
		if err == nil && (!strings.HasPrefix(key, "ns/") || strings.Contains(key, "/../")) {
			t.Errorf("%q leads to %q", token, key)
		}
	})
}
