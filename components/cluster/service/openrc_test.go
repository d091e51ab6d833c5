package service

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hyperkube/components/cluster/progress"
	"hyperkube/components/cluster/service/servicetest"
	"hyperkube/internal/host/layout"
)

// definition is a service whose arguments contain special characters of shells.
var definition = Definition{
	Description: "it's a cluster",
	Command:     []string{"/opt/my  programs/hyperkube", "up", "--node-name=$HOME `id` 'a  b' \"*\" \\ ;&|é"},
}

// TestOpenRC checks the life of a service of OpenRC: install, start, stop and removal.
func TestOpenRC(t *testing.T) {
	rc := servicetest.NewOpenRC(t)
	ctx, l, steps := t.Context(), layout.Default(), progress.New(func(progress.Step) {})
	if HasManager() || OpenRCStopsPods() {
		t.Error("found OpenRC on a machine without")
	}
	rc.Boot(t)
	if !HasManager() || HasSystemd() || Cluster.Exists(l) || OpenRCStopsPods() {
		t.Error("OpenRC was not found, or services that are not installed")
	}
	for _, want := range []bool{true, false} {
		if changed, err := Cluster.Install(ctx, definition); err != nil || changed != want {
			t.Errorf("installed: changed %v, want %v: %v", changed, want, err)
		}
	}
	if info, err := os.Stat("/etc/init.d/hyperkube"); err != nil || info.Mode() != 0o755 {
		t.Errorf("init script: %v, %v", info, err)
	}
	if !Cluster.Exists(l) || !OpenRCStopsPods() || Node.Exists(l) || Cluster.Exists(layout.Under(t.TempDir())) {
		t.Error("Exists does not match the installed service")
	}
	rc.SetNotifications(t, "STATUS=waiting for etcd", "READY=1\nSTATUS=")
	if err := Cluster.Start(ctx, time.Minute, steps); err != nil {
		t.Error(err)
	}
	if layout.Exists("/run/hyperkube.notify") {
		t.Error("the socket for notifications remains")
	}
	want := []string{"rc-update add hyperkube default", "rc-service hyperkube stop", "rc-service hyperkube start"}
	if got := rc.Calls(); !slices.Equal(got, want) {
		t.Errorf("installed and started by %v, want %v", got, want)
	}
	rc.SetNotifications(t, "STOPPING=1")
	if err := Cluster.Start(ctx, time.Minute, steps); err == nil || !strings.Contains(err.Error(), "the OpenRC service hyperkube stopped before it was ready; OpenRC keeps restarting it; see `tail -n 100 /var/lib/hyperkube/logs/hyperkube.log`") {
		t.Errorf("service that stops: %v", err)
	}
	rc.SetNotifications(t, "STATUS=etcd has exited")
	if err := Cluster.Start(ctx, time.Second, steps); err == nil || !strings.Contains(err.Error(), "after 1s: etcd has exited") {
		t.Errorf("service that never starts: %v", err)
	}
	if pid, err := Cluster.MainPID(ctx); pid != 0 || err != nil {
		t.Errorf("main PID %d, %v", pid, err)
	}
	rc.SetMainPID(t, "hyperkube", "123")
	if pid, err := Cluster.MainPID(ctx); pid != 123 || err != nil {
		t.Errorf("main PID %d, %v", pid, err)
	}
	rc.Calls()
	if stopped, err := Cluster.Stop(ctx, l); !stopped || err != nil {
		t.Errorf("stopped: %v, %v", stopped, err)
	}
	for _, want := range []bool{true, false} {
		if removed, err := Cluster.Remove(ctx, l); removed != want || err != nil {
			t.Errorf("removed %v, want %v: %v", removed, want, err)
		}
	}
	want = []string{"rc-service hyperkube stop", "rc-service hyperkube stop", "rc-update del hyperkube default"}
	if got := rc.Calls(); !slices.Equal(got, want) {
		t.Errorf("stopped and removed by %v, want %v", got, want)
	}
	if layout.Exists(Cluster.File()) {
		t.Error("the init script remains")
	}
	for got, want := range map[string]string{
		Node.StartCommand(): "rc-service hyperkube-node start", Node.Describe(): "OpenRC service hyperkube-node",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestStartCanceled checks that the wait for a service returns when the user interrupts it.
func TestStartCanceled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	progress.NotifySystemd("STATUS=waiting for etcd")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var status string
	err = openRC{}.waitReady(ctx, Cluster, conn, func(text string) {
		status = text
		cancel()
	})
	if !errors.Is(err, context.Canceled) || status != "waiting for etcd" {
		t.Errorf("canceled while %q: %v", status, err)
	}
}

// TestInitScript runs functions of the init script with a shell, as OpenRC does.
func TestInitScript(t *testing.T) {
	dir := t.TempDir()
	script, err := openRC{}.script(Cluster, definition)
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"@name@", "@program@", "@log@"} {
		if strings.Contains(script, word) {
			t.Errorf("%s was not replaced", word)
		}
	}
	file := filepath.Join(dir, "hyperkube")
	if err := os.WriteFile(file, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("sh", "-n", file).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	// sh runs commands with the functions that OpenRC provides. The stand-in for the program prints its arguments.
	sh := func(commands string, env ...string) string {
		t.Helper()
		prelude := "yesno() { [ \"$1\" = YES ]; }; ebegin() { :; }; eend() { :; }; need() { echo need $*; }; use() { echo use $*; }; want() { echo want $*; }; after() { echo after $*; }; keyword() { echo keyword $*; }\n"
		cmd := exec.Command("sh", "-c", prelude+strings.ReplaceAll(script, escapeShell(definition.Command[0])+" stop", "echo stop")+"\n"+commands)
		cmd.Env, cmd.Dir = append(os.Environ(), env...), dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v: %s", commands, err, out)
		}
		return string(out)
	}
	for _, c := range []struct{ commands, env, want string }{
		{`eval printf '%s\\n' $command -- $command_args`, "A=", definition.Command[0] + "\n--\n" + definition.Command[1] + "\n" + definition.Command[2] + "\n"},
		{`echo "$description"; echo ulimit $rc_ulimit`, "A=", "it's a cluster\nulimit -n 1048576\n"},
		{`echo ulimit $rc_ulimit`, "rc_ulimit=-n 1000", "ulimit -n 1000\n"},
		{"stop_pre; stop_post", "RC_RUNLEVEL=default", ""},
		{"stop_pre; stop_post", "RC_GOINGDOWN=YES", "stop --suspend-pods=pods\nstop --suspend-pods=processes\n"},
		{"stop_pre; stop_post", "RC_RUNLEVEL=shutdown", "stop --suspend-pods=pods\nstop --suspend-pods=processes\n"},
		{"runlevel() { echo 2 6; }; stop_pre; stop_post", "RC_RUNLEVEL=default", "stop --suspend-pods=pods\nstop --suspend-pods=processes\n"},
		{"runlevel() { echo N 2; }; stop_pre; stop_post", "RC_RUNLEVEL=default", ""},
		{"depend", "A=", "want localmount cgroups\nuse net networking dns logger\nafter bootmisc firewall iptables ip6tables nftables\nkeyword -timeout\n"},
	} {
		if got := sh(c.commands, c.env); got != c.want {
			t.Errorf("%s with %s printed %q, want %q", c.commands, c.env, got, c.want)
		}
	}
	if _, err := (openRC{}).script(Cluster, Definition{Command: []string{"a", "b\nc"}}); err == nil {
		t.Error("an argument with a line break was accepted")
	}
}
