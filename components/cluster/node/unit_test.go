package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hyperkube/components/cluster/progress"
	"hyperkube/internal/host/layout"
)

func TestUnitPath(t *testing.T) {
	for path, want := range map[string]string{
		"/usr/local/bin/hyperkube":    `"/usr/local/bin/hyperkube"`,
		"/opt/my programs/hyperkube":  `"/opt/my programs/hyperkube"`,
		`/opt/100%/"a"\b/hyperkube`:   `"/opt/100%%/\"a\"\\b/hyperkube"`,
		"/home/u/it's here/hyperkube": `"/home/u/it's here/hyperkube"`,
	} {
		if got := unitPath(path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

// TestUnitIsValid verifies the unit with systemd-analyze.
func TestUnitIsValid(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("needs systemd-analyze")
	}
	dir := t.TempDir()
	program, file := filepath.Join(dir, "100% of hyper kube"), filepath.Join(dir, unitName)
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, fmt.Appendf(nil, unitTemplate, unitPath(program)), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(analyze, "verify", file).CombinedOutput(); err != nil || strings.Contains(string(out), dir) || strings.Contains(string(out), unitName+":") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestUnitStartAndStop checks that the unit is started and stopped on a machine with systemd.
func TestUnitStartAndStop(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount")
	}
	if _, err := os.Stat(filepath.Dir(unitFile)); err != nil {
		t.Skip("needs a directory of units:", err)
	}
	for _, dir := range []string{"/run", filepath.Dir(unitFile)} {
		if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
			t.Skip("mounting:", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	}
	bin := t.TempDir()
	calls := filepath.Join(bin, "calls")
	script := "#!/bin/sh\necho \"$@\" >> " + calls + "\ncase $1 in show) echo etcd has exited;; restart) [ ! -e " + bin + "/stuck ] || exec sleep 100;; esac\n"
	if err := os.WriteFile(filepath.Join(bin, "systemctl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	called := func() []string {
		data, _ := os.ReadFile(calls)
		_ = os.Remove(calls)
		return strings.Fields(strings.ReplaceAll(strings.ReplaceAll(string(data), " ", "_"), "--", ""))
	}
	ctx, l, steps := t.Context(), layout.Default(), progress.New(func(progress.Step) {})

	if stopped, err := StopUnit(ctx, l); stopped || err != nil {
		t.Errorf("stopped without systemd: %v, %v", stopped, err)
	}
	if err := os.MkdirAll("/run/systemd/system", 0o755); err != nil {
		t.Fatal(err)
	}
	if stopped, err := StopUnit(ctx, l); stopped || err != nil || len(called()) > 0 {
		t.Errorf("stopped without a unit: %v, %v", stopped, err)
	}
	if err := Start(ctx, l, false, time.Minute, steps); err != nil {
		t.Fatal(err)
	}
	if got, want := called(), []string{"daemon-reload", "enable_" + unitName, "restart_" + unitName}; !slices.Equal(got, want) {
		t.Errorf("started by %v, want %v", got, want)
	}
	if stopped, err := StopUnit(ctx, l); !stopped || err != nil {
		t.Errorf("stopped: %v, %v", stopped, err)
	}
	if got := called(); !slices.Equal(got, []string{"stop_" + unitName}) {
		t.Errorf("stopped by %v", got)
	}
	if stopped, err := StopUnit(ctx, layout.Under(bin)); stopped || err != nil {
		t.Errorf("stopped for another layout: %v, %v", stopped, err)
	}
	if err := os.WriteFile(filepath.Join(bin, "stuck"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Start(ctx, l, false, 200*time.Millisecond, steps); err == nil || !strings.Contains(err.Error(), "after 200ms: etcd has exited") || !strings.Contains(err.Error(), "journalctl") {
		t.Errorf("unit that never starts: %v", err)
	}
	if err := RemoveUnit(ctx, l); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(unitFile); err == nil {
		t.Error("the unit still exists")
	}
}
