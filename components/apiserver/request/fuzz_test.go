package request

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// FuzzRequest parses arbitrary paths and queries.
func FuzzRequest(f *testing.F) {
	f.Add("/api/v1/namespaces/x/pods/y/log", "watch=1&labelSelector=a%20in%20(b)&fieldSelector=metadata.name%3Dx&limit=5")
	f.Add("/apis/apps/v1/watch/deployments", "continue=x&resourceVersionMatch=Exact&resourceVersion=1")
	f.Add("/apis//v1//", "timeoutSeconds=-1&gracePeriodSeconds=9999999999999999999")
	f.Fuzz(func(t *testing.T, path, raw string) {
		query, err := url.ParseQuery(raw)
		if err != nil {
			return
		}
		u := &url.URL{Path: path, RawQuery: raw}
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete, "FLY"} {
			info, err := Parse(method, u, query)
			if info == nil {
				t.Fatal("no information")
			}
			if err == nil {
				LongRunning(info)
			}
			if strings.Contains(info.Name, "/") && info.FieldSelector == "" {
				t.Errorf("a name with a slash: %q", info.Name)
			}
		}
		if o, err := ListOptions(query); err == nil {
			_ = CheckListOptions(o)
			_, _ = ResourceVersion(o.ResourceVersion)
		}
		_, _ = CreateOptions(query)
		_, _ = UpdateOptions(query)
		_, _ = PatchOptions(query, types.ApplyYAMLPatchType)
		if o, err := DeleteOptions(query); err == nil {
			_ = CheckDeleteOptions(o)
		}
	})
}

// FuzzContinue checks that no token gives access to keys outside of the prefix.
func FuzzContinue(f *testing.F) {
	const prefix = "/registry/pods/x/"
	token, err := EncodeContinue(prefix+"y\x00", prefix, 7)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(token)
	f.Add("eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiIuLi8uLi9zZWNyZXRzIn0")
	f.Fuzz(func(t *testing.T, token string) {
		key, _, err := DecodeContinue(token, prefix)
		if err == nil && (!strings.HasPrefix(key, prefix) || strings.Contains(key, "/../")) {
			t.Errorf("token %q leads to %q", token, key)
		}
	})
}
