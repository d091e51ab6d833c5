package admission

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzConfiguration parses arbitrary files and the plugin configurations in them.
func FuzzConfiguration(f *testing.F) {
	f.Add("{apiVersion: apiserver.config.k8s.io/v1, kind: AdmissionConfiguration, plugins: [{name: EventRateLimit, configuration: {apiVersion: eventratelimit.admission.k8s.io/v1alpha1, kind: Configuration, limits: [{type: Server, qps: 1, burst: 2}]}}]}")
	f.Add("podNodeSelectorPluginConfig: {a: b=c}")
	f.Add("{apiVersion: apiserver.config.k8s.io/v1, kind: AdmissionConfiguration, plugins: [{name: X, path: .}]}")
	f.Fuzz(func(t *testing.T, text string) {
		file := filepath.Join(t.TempDir(), "admission.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		plugins, err := LoadConfiguration(file)
		if err != nil {
			return
		}
		for _, data := range plugins {
			var into map[string]any
			_ = decodeConfiguration(data, "eventratelimit.admission.k8s.io/v1alpha1", &into)
		}
	})
}
