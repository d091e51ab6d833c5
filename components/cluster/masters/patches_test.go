package masters

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"hyperkube/manifests"
)

// patchFiles is a folder of files.
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

// podOf is what a manifest says.
func podOf(t *testing.T, manifest []byte) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict(manifest, pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

// renderedPod is the manifest of a component with those values.
func renderedPod(t *testing.T, component string, values manifests.ControlPlane) *corev1.Pod {
	t.Helper()
	data, err := values.StaticPod(component)
	if err != nil {
		t.Fatal(err)
	}
	return podOf(t, data)
}

// TestPatches: what a folder says of static pods is in their manifests, in the order of
// its files.
func TestPatches(t *testing.T) {
	m := testMaster(t)
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

// TestPatchesRefused: what would change nothing, or break a manifest, is told.
func TestPatchesRefused(t *testing.T) {
	for file, c := range map[string]struct{ text, want string }{
		"corednsdeployment.yaml":       {"spec: {}", "for nothing that can be patched here"},
		"kubeletconfiguration.yaml":    {"a: b", "for nothing that can be patched here"},
		"kube-apiserver+other.yaml":    {"spec: {}", "want a name like"},
		"kube-apiserver.yml":           {"spec: {}", "want a name like"},
		"kube-apiserver.yaml":          {"spec: {colour: red}", `leaves no Pod: error unmarshaling JSON: while decoding JSON: json: unknown field "colour"`},
		"kube-scheduler+json.yaml":     {`[{op: remove, path: /spec/nothing}]`, "the patch kube-scheduler+json.yaml: "},
		"kube-scheduler+merge.json":    {"\tx", "the patch kube-scheduler+merge.json: "},
		"kube-controller-manager.yaml": {"a b: [", "the patch kube-controller-manager.yaml: "},
	} {
		m := testMaster(t)
		m.settings.Patches = patchFiles(t, map[string]string{file: c.text})
		if err := m.prepare(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", file, err, c.want)
		}
	}
	m := testMaster(t)
	m.settings.Patches = filepath.Join(t.TempDir(), "nowhere")
	if err := m.prepare(); err == nil {
		t.Error("a folder that is not there was taken")
	}
}
