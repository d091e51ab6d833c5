//go:build cgo

package main

import (
	"os"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestCDI creates containers with CDI devices.
func TestCDI(t *testing.T) {
	dir := t.TempDir()
	text := `{"cdiVersion": "0.6.0", "kind": "vendor.example/thing", "containerEdits": {"env": ["ALL=things"]}, "devices": [
		{"name": "a", "containerEdits": {
			"env": ["THING=a", "FROM=vendor"],
			"deviceNodes": [{"path": "/dev/thing", "hostPath": "/dev/zero", "permissions": "r"}],
			"mounts": [{"hostPath": "` + dir + `", "containerPath": "/vendor", "options": ["ro", "nosuid"]},
				{"hostPath": "/var/lib/no-kubelet/plugins/metadata", "containerPath": "/metadata", "options": ["ro"]}],
			"hooks": [{"hookName": "createRuntime", "path": "/bin/sh", "args": ["sh", "-c", "cat > ` + dir + `/state"]}],
			"additionalGids": [4711]}}]}`
	if err := os.WriteFile(dir+"/vendor.json", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	// CDI files refer to the kubelet's directory by the path that drivers in pods use.
	if err := os.MkdirAll(dir+"/kubelet/plugins", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/kubelet/plugins/metadata", []byte("of a device\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, "--cdi-dirs", dir, "--kubelet-dir", dir+"/kubelet", "--known-kubelet-dir", "/var/lib/no-kubelet").imported()
	for name, change := range map[string]func(*runtimeapi.PodSandboxConfig){"host": func(*runtimeapi.PodSandboxConfig) {}, "users": inUserNS(65536 * 3)} {
		pod := n.run(n.pod(name, change))
		device := func(names ...string) func(*runtimeapi.ContainerConfig) {
			return func(c *runtimeapi.ContainerConfig) {
				for _, d := range names {
					c.CDIDevices = append(c.CDIDevices, &runtimeapi.CDIDevice{Name: d})
				}
			}
		}
		got := n.output(pod, shell("c", "echo $ALL $THING $FROM; head -c 1 /dev/thing | wc -c; ls /vendor/vendor.json; touch /vendor/x 2>&1; id -G; cat /metadata", device("vendor.example/thing=a")))
		if want := "things a vendor\n1\n/vendor/vendor.json\ntouch: /vendor/x: Read-only file system\n0 4711\nof a device\n"; got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
		if state, err := os.ReadFile(dir + "/state"); err != nil || !strings.Contains(string(state), `"ociVersion"`) {
			t.Errorf("%s: the hook got state %q, %v", name, state, err)
		}
		if _, err := n.create(pod, shell("bad", "true", device("vendor.example/thing=b"))); err == nil ||
			!strings.Contains(err.Error(), "CDI device injection failed: unresolvable CDI devices vendor.example/thing=b") {
			t.Errorf("%s: an unknown device: %v", name, err)
		}
	}
}
