package browser

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestKill kills the main process of the cluster, and starts it again. The page shows the failure and then a change after the start.
func TestKill(t *testing.T) {
	root := os.Getenv(insideEnv)
	if _, err := os.Stat(filepath.Join(root, "external")); err == nil {
		t.Skip("the cluster is not one of this test")
	}
	b := newTab(t, serve(t))
	b.open("/r/core/v1/configmaps?ns=default")
	b.see("kube-root-ca.crt")
	data, err := os.ReadFile(filepath.Join(root, "run/hyperkube/hyperkube.pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.see("connects again automatically")
	if out, err := exec.CommandContext(t.Context(), binary, "up", "--root", root).CombinedOutput(); err != nil {
		t.Fatalf("hyperkube up: %v\n%s", err, out)
	}
	kubectl(t, "create", "configmap", "after-kill", "-n", "default")
	b.see("after-kill")
	b.until(`!document.body.innerText.includes("connects again automatically")`)
	kubectl(t, "delete", "configmap", "after-kill", "-n", "default")
	b.until(`!document.body.innerText.includes("after-kill")`)
	b.taken() // requests failed in the meantime
}
