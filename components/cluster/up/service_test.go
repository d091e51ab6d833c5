package up

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hyperkube/components/cluster/service"
	"hyperkube/components/cluster/service/servicetest"
	"hyperkube/internal/host/layout"
	"hyperkube/packaging"
)

// TestUnitIsValid verifies the unit with systemd-analyze.
func TestUnitIsValid(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("needs systemd-analyze")
	}
	dir := t.TempDir()
	program, file := filepath.Join(dir, "hyperkube"), filepath.Join(dir, packaging.UnitName)
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(packaging.Unit(service.Quote(program)+" up "+service.Quote("--node-name=$$a %b"))), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(analyze, "--man=no", "verify", file).CombinedOutput(); err != nil || strings.Contains(string(out), dir) || strings.Contains(string(out), filepath.Base(file)+":") {
		t.Errorf("%v: %s", err, out)
	}
}

// runManageService runs `up` with args until its service is managed. It returns whether nothing is left to do.
func runManageService(t *testing.T, l layout.Node, args ...string) (done bool, out string, err error) {
	t.Helper()
	o := &upOptions{}
	cmd := newCommand(o)
	var buf bytes.Buffer
	cmd.SetOut(&buf)
	cmd.SetContext(t.Context())
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	done, err = o.manageService(cmd, l)
	return done, buf.String(), err
}

func TestService(t *testing.T) {
	systemd := servicetest.New(t)
	l := layout.Default()
	if done, _, err := runManageService(t, l); done || err != nil {
		t.Errorf("up without a service: %v, %v", done, err)
	}
	for _, c := range []struct {
		l    layout.Node
		args []string
		want string
	}{
		{l, []string{"--service"}, "--service needs systemd or OpenRC"},
		{l, []string{"--service", "--foreground"}, "exclude each other"},
		{layout.Under(t.TempDir()), []string{"--service"}, "cannot be used with --root"},
		{l, []string{"--service", "--kubelet-config=missing.yaml"}, "missing.yaml"},
	} {
		if c.want == "missing.yaml" {
			systemd.Boot(t)
		}
		if done, _, err := runManageService(t, c.l, c.args...); done || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, %v", c.args, done, err)
		}
	}
	if got := systemd.Calls(); len(got) > 0 {
		t.Errorf("rejected flags led to %v", got)
	}

	install, restart := []string{"daemon-reload", "enable_hyperkube.service"}, []string{"restart_hyperkube.service"}
	check := func(wantDone bool, line string, calls []string, args ...string) {
		t.Helper()
		done, out, err := runManageService(t, l, append(args, "--no-kubeconfig")...)
		if err != nil || done != wantDone {
			t.Fatalf("%v: %v, %v: %s", args, done, err, out)
		}
		if got := systemd.Calls(); !slices.Equal(got, calls) {
			t.Errorf("%v called %v, want %v", args, got, calls)
		}
		unit, err := os.ReadFile(service.Cluster.File())
		if line != "" && !strings.Contains(string(unit), line+"\n") || line == "" && err == nil {
			t.Errorf("%v: the unit is %s, want a line with %s", args, unit, line)
		}
	}
	all := slices.Concat(install, restart)
	wd := t.TempDir()
	t.Chdir(wd)
	if err := os.Mkdir("dropins", 0o700); err != nil {
		t.Fatal(err)
	}
	check(true, `" up --foreground --no-kubeconfig`, all, "--service")
	// The unit stays without the flag, and is not written again without flags.
	check(true, `" up --foreground --no-kubeconfig`, restart)
	check(true, `" up --foreground --no-kubeconfig "--kubelet-config-dir=`+wd+`/dropins" "--nodes=2"`, all, "--nodes=2", "--kubelet-config-dir=dropins")
	check(false, "", []string{"disable_now_hyperkube.service", "daemon-reload"}, "--service=false")
}
