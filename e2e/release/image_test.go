package release

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"hyperkube/internal/testing/testwait"
)

// TestImage runs a cluster in a container of the release's image, which is a privileged pod of a cluster that the
// program of the release runs on this machine.
func TestImage(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if _, err := os.Stat("/var/lib/hyperkube/cluster.json"); err == nil {
		t.Fatal("this machine has a cluster: remove it with hyperkube reset")
	}
	files, root := t.TempDir(), t.TempDir()
	unpack(t, hostArchive(t), files)
	program := filepath.Join(files, strings.TrimSuffix(filepath.Base(hostArchive(t)), ".tar.gz"), "bin/hyperkube")
	run := func(args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // also in a cleanup
		defer cancel()
		cmd := exec.CommandContext(ctx, program, args...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	t.Cleanup(func() { run("reset", "--root", root) })
	run("up", "--root", root, "--no-kubeconfig")
	run("image", "import", "--root", root, find(t, "hyperkube-*-linux-"+runtime.GOARCH+".oci.tar"))
	kubectl := func(args ...string) string {
		t.Helper()
		return run(append([]string{"kubectl", "--kubeconfig", filepath.Join(root, "var/lib/hyperkube/admin.conf")}, args...)...)
	}
	manifest := filepath.Join(files, "pod.yaml")
	if err := os.WriteFile(manifest, fmt.Appendf(nil, `apiVersion: v1
kind: Pod
metadata: {name: nested}
spec:
  containers:
  - name: hyperkube
    image: localhost/hyperkube:%s
    securityContext: {privileged: true}
    volumeMounts: [{name: data, mountPath: /var/lib/hyperkube}]
  volumes: [{name: data, emptyDir: {}}]
`, strings.ReplaceAll(versionOf(t), "+", "-")), 0o644); err != nil {
		t.Fatal(err)
	}
	kubectl("apply", "-f", manifest)
	kubectl("wait", "--for=condition=Ready", "pod/nested", "--timeout=2m")
	nested := func(args ...string) *exec.Cmd {
		return exec.CommandContext(t.Context(), program, append([]string{"kubectl", "--kubeconfig", filepath.Join(root, "var/lib/hyperkube/admin.conf"), "exec", "nested", "--", "/usr/local/bin/kubectl", "--kubeconfig", "/var/lib/hyperkube/admin.conf"}, args...)...)
	}
	testwait.Succeed(t, "a pod in the nested cluster", func() error {
		out, err := nested("wait", "--for=condition=Ready", "pod", "-l", "k8s-app=kube-dns", "-n", "kube-system", "--timeout=60s").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	if out, err := nested("get", "nodes").CombinedOutput(); err != nil || !strings.Contains(string(out), " Ready ") {
		t.Errorf("get nodes: %v\n%s", err, out)
	}
	kubectl("delete", "pod", "nested", "--timeout=2m")
}
