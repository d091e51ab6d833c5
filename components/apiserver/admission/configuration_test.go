package admission

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLoadConfiguration(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("limits.yaml", "limits: []")
	for name, tc := range map[string]struct {
		text string
		want map[string]string // a substring of each configuration
		err  string
	}{
		"inline and by path": {`---
{apiVersion: apiserver.config.k8s.io/v1, kind: AdmissionConfiguration, plugins: [
			{name: PodSecurity, configuration: {apiVersion: pod-security.admission.config.k8s.io/v1, kind: PodSecurityConfiguration}},
			{name: EventRateLimit, path: limits.yaml}, {name: Nothing}]}`,
			map[string]string{"PodSecurity": "PodSecurityConfiguration", "EventRateLimit": "limits"}, ""},
		"missing path": {`---
{apiVersion: apiserver.config.k8s.io/v1, kind: AdmissionConfiguration, plugins: [{name: X, path: none}]}`, nil, "admission plugin X"},
		"unknown field": {`---
{apiVersion: apiserver.config.k8s.io/v1, kind: AdmissionConfiguration, plugin: []}`, nil, "unknown field"},
		"other kind":  {"---\n{apiVersion: v1, kind: Pod}", nil, `no kind "Pod" is registered`},
		"unversioned": {"podNodeSelectorPluginConfig: {a: b=c}", map[string]string{"PodNodeSelector": "b=c", "ImagePolicyWebhook": "b=c"}, ""},
		"nothing":     {`{}`, nil, "Object 'Kind' is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := LoadConfiguration(write("config.yaml", tc.text))
			wantErr(t, err, tc.err)
			if len(got) != len(tc.want) {
				t.Errorf("got %v", got)
			}
			for k, v := range tc.want {
				if !strings.Contains(string(got[k]), v) {
					t.Errorf("%s: got %q", k, got[k])
				}
			}
		})
	}
	if _, err := LoadConfiguration(filepath.Join(dir, "none")); err == nil {
		t.Error("a missing file is accepted")
	}
}
