package node

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hyperkube/components/cluster/progress"
	"hyperkube/components/cluster/service"
	"hyperkube/components/cluster/service/servicetest"
	"hyperkube/internal/host/layout"
)

// TestUnitIsValid verifies the unit with systemd-analyze.
func TestUnitIsValid(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("needs systemd-analyze")
	}
	dir := t.TempDir()
	program, file := filepath.Join(dir, "100% of hyper kube"), filepath.Join(dir, "hyperkube-node.service")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(systemdUnit(service.Quote(program)+" node")), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(analyze, "verify", file).CombinedOutput(); err != nil || strings.Contains(string(out), dir) || strings.Contains(string(out), filepath.Base(file)+":") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestStartUnit checks that Start installs and starts the unit on a machine with systemd.
func TestStartUnit(t *testing.T) {
	systemd := servicetest.New(t)
	systemd.Boot(t)
	l := layout.Default()
	if err := Start(t.Context(), l, false, time.Minute, progress.New(func(progress.Step) {})); err != nil {
		t.Fatal(err)
	}
	unit := "hyperkube-node.service"
	if got, want := systemd.Calls(), []string{"daemon-reload", "enable_" + unit, "restart_" + unit}; !slices.Equal(got, want) {
		t.Errorf("started by %v, want %v", got, want)
	}
	if !service.Node.Exists(l) {
		t.Error("no unit was installed")
	}
}
