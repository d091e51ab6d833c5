package service

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"hyperkube/components/cluster/progress"
	"hyperkube/components/cluster/service/servicetest"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/testing/testisolate"
)

func TestMain(m *testing.M) {
	servicetest.RunFake()
	testisolate.Main(m, testisolate.Mounts)
}

func TestQuote(t *testing.T) {
	for path, want := range map[string]string{
		"/usr/local/bin/hyperkube":    `"/usr/local/bin/hyperkube"`,
		"/opt/my programs/hyperkube":  `"/opt/my programs/hyperkube"`,
		`/opt/100%/"a"\b/hyperkube`:   `"/opt/100%%/\"a\"\\b/hyperkube"`,
		"/home/u/it's here/hyperkube": `"/home/u/it's here/hyperkube"`,
	} {
		if got := Quote(path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	if got, want := quoteArgument("--node-name=$HOME"), `"--node-name=$$HOME"`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestUnit checks the life of a unit: install, start, stop and removal.
func TestUnit(t *testing.T) {
	systemd := servicetest.New(t)
	ctx, l, steps := t.Context(), layout.Default(), progress.New(func(progress.Step) {})
	if HasSystemd() || Cluster.Exists(l) {
		t.Error("found systemd on a machine without")
	}
	if stopped, err := Cluster.Stop(ctx, l); stopped || err != nil {
		t.Errorf("stopped without systemd: %v, %v", stopped, err)
	}
	systemd.Boot(t)
	if stopped, err := Cluster.Stop(ctx, l); stopped || err != nil || len(systemd.Calls()) > 0 {
		t.Errorf("stopped without a unit: %v, %v", stopped, err)
	}
	for _, want := range []bool{true, false} {
		if changed, err := Cluster.Install(ctx, Definition{Command: []string{"/bin/hyperkube", "up", "--nodes=2"}, SystemdUnit: strings.ToUpper}); err != nil || changed != want {
			t.Errorf("installed: changed %v, want %v: %v", changed, want, err)
		}
		if got, want := systemd.Calls(), []string{"daemon-reload", "enable_hyperkube.service"}; !slices.Equal(got, want) {
			t.Errorf("installed by %v, want %v", got, want)
		}
	}
	if err := Cluster.Start(ctx, time.Minute, steps); err != nil {
		t.Fatal(err)
	}
	if pid, err := Cluster.MainPID(ctx); pid != 0 || err != nil {
		t.Errorf("main PID %d, %v", pid, err)
	}
	if stopped, err := Cluster.Stop(ctx, l); !stopped || err != nil {
		t.Errorf("stopped: %v, %v", stopped, err)
	}
	if got, want := systemd.Calls(), []string{"restart_hyperkube.service", "stop_hyperkube.service"}; !slices.Equal(got, want) {
		t.Errorf("started and stopped by %v, want %v", got, want)
	}
	if stopped, err := Cluster.Stop(ctx, layout.Under(t.TempDir())); stopped || err != nil {
		t.Errorf("stopped for another layout: %v, %v", stopped, err)
	}
	systemd.Block(t)
	if err := Cluster.Start(ctx, 200*time.Millisecond, steps); err == nil || !strings.Contains(err.Error(), "after 200ms: etcd has exited") || !strings.Contains(err.Error(), "journalctl -u hyperkube") {
		t.Errorf("unit that never starts: %v", err)
	}
	systemd.Calls()
	for _, want := range []bool{true, false} {
		if removed, err := Cluster.Remove(ctx, l); removed != want || err != nil {
			t.Errorf("removed %v, want %v: %v", removed, want, err)
		}
	}
	if got, want := systemd.Calls(), []string{"disable_now_hyperkube.service", "daemon-reload"}; !slices.Equal(got, want) {
		t.Errorf("removed by %v, want %v", got, want)
	}
	if _, err := os.Stat(Cluster.File()); err == nil {
		t.Error("the unit still exists")
	}
}
