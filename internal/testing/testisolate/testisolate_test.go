package testisolate

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

const asked = "HYPERKUBE_TEST_ASKED"

func TestMain(m *testing.M) { Main(m, Mounts|Network) }

// TestNamespacesAreRemoved checks that mounts and links of a killed test, and its process, do not
// remain on the machine.
func TestNamespacesAreRemoved(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for namespaces")
	}
	if dir := os.Getenv(asked); dir != "" {
		if err := syscall.Mount("x", dir, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("ip", "link", "add", "left", "type", "bridge").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if err := os.WriteFile(dir+".pid", []byte("mounted"), 0o600); err != nil {
			t.Fatal(err)
		}
		_ = syscall.Kill(os.Getppid(), syscall.SIGKILL)
		select {}
	}
	dir := t.TempDir()
	// Remove the marker, so that the program creates namespaces itself.
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestNamespacesAreRemoved$")
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, isolatedEnv+"=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, asked+"="+dir)
	out, err := cmd.CombinedOutput() // returns when all processes have closed it, including the second one
	if err == nil || !strings.Contains(err.Error(), "killed") {
		t.Fatalf("%v: %s", err, out)
	}
	if _, err := os.Stat(dir + ".pid"); err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), dir) {
		t.Errorf("%s is mounted, %v", dir, err)
	}
	if out, err := exec.Command("ip", "link", "show", "left").CombinedOutput(); err == nil {
		t.Errorf("a link still exists: %s", out)
	}
}
