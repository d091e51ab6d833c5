package controlplane

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"hyperkube/manifests"
)

// patchFiles creates a directory with files.
func patchFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// podOf decodes a manifest.
func podOf(t *testing.T, manifest []byte) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict(manifest, pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

// renderedPod returns the manifest of a component with the given values.
func renderedPod(t *testing.T, component string, values manifests.ControlPlane) *corev1.Pod {
	t.Helper()
	data, err := values.StaticPod(component)
	if err != nil {
		t.Fatal(err)
	}
	return podOf(t, data)
}

// TestPatches: the patches of a directory are applied to the manifests in the order of the file
// names.
func TestPatches(t *testing.T) {
	m := newTestNode(t)
	m.settings.Patches = patchFiles(t, map[string]string{
		"kube-apiserver0.yaml":                   "spec: {containers: [{name: kube-apiserver, resources: {requests: {cpu: 1m}}}]}\n---\nmetadata: {labels: {a: first}}",
		"kube-apiserver1+merge.yaml":             `metadata: {labels: {a: then, b: c}}`,
		"kube-scheduler+json.json":               `[{"op": "add", "path": "/metadata/labels/d", "value": "e"}]`,
		"etcd-more.yaml":                         `spec: {priority: 7}`,
		"README.md":                              "for people",
		"kube-controller-manager+strategic.yaml": "",
	})
	if err := m.prepare(); err != nil {
		t.Fatal(err)
	}
	read := func(name string) *corev1.Pod {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(m.layout.StaticPods(), name+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		return podOf(t, data)
	}
	api := read("kube-apiserver")
	if api.Labels["a"] != "then" || api.Labels["b"] != "c" || api.Labels["component"] != "kube-apiserver" {
		t.Errorf("labels of the API server: %v", api.Labels)
	}
	if c := api.Spec.Containers; len(c) != 1 || c[0].Resources.Requests.Cpu().String() != "1m" || c[0].Resources.Requests.Memory().IsZero() || len(c[0].Args) == 0 {
		t.Errorf("containers of the API server: %+v", c)
	}
	if got := read("kube-scheduler").Labels["d"]; got != "e" {
		t.Errorf("label of the scheduler: %q", got)
	}
	if got := read("etcd").Spec.Priority; got == nil || *got != 7 {
		t.Errorf("priority of etcd: %v", got)
	}
}

// TestPatchesRefused: patches without effect, and patches that make a manifest invalid, are errors.
func TestPatchesRefused(t *testing.T) {
	for file, c := range map[string]struct{ text, want string }{
		"corednsdeployment.yaml":       {"spec: {}", "does not match a component"},
		"kubeletconfiguration.yaml":    {"a: b", "does not match a component"},
		"kube-apiserver+other.yaml":    {"spec: {}", "expected a name like"},
		"kube-apiserver.yml":           {"spec: {}", "expected a name like"},
		"kube-apiserver.yaml":          {"spec: {colour: red}", `the result is not a valid Pod: error unmarshaling JSON: while decoding JSON: json: unknown field "colour"`},
		"kube-scheduler+json.yaml":     {`[{op: remove, path: /spec/nothing}]`, "applying patch kube-scheduler+json.yaml: "},
		"kube-scheduler+merge.json":    {"\tx", "patch kube-scheduler+merge.json: "},
		"kube-controller-manager.yaml": {"a b: [", "patch kube-controller-manager.yaml: "},
	} {
		m := newTestNode(t)
		m.settings.Patches = patchFiles(t, map[string]string{file: c.text})
		if err := m.prepare(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", file, err, c.want)
		}
	}
	m := newTestNode(t)
	m.settings.Patches = filepath.Join(t.TempDir(), "nowhere")
	if err := m.prepare(); err == nil {
		t.Error("a missing directory was accepted")
	}
}
