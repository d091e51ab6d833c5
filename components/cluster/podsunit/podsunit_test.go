package podsunit

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"hyperkube/components/cluster/service"
	"hyperkube/components/cluster/service/servicetest"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/testing/testisolate"
)

func TestMain(m *testing.M) {
	servicetest.RunFake()
	testisolate.Main(m, testisolate.Mounts)
}

// TestWithoutUnit checks that nothing changes for clusters with other paths than the default ones, which have no unit on any
// machine.
func TestWithoutUnit(t *testing.T) {
	l := layout.Under(t.TempDir())
	got, err := Layout(l)
	if err != nil || got != l {
		t.Errorf("the layout is %+v, %v", got, err)
	}
	if group := RuntimeCgroup(l); group != "" {
		t.Errorf("the runtime is in the cgroup %s", group)
	}
	for what, err := range map[string]error{"start": Start(t.Context(), l), "remove": Remove(t.Context(), l)} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestRuntimeCgroup(t *testing.T) {
	first := layout.Default()
	first.CgroupRoot = cgroupRoot
	for want, l := range map[string]layout.Node{
		"/hyperkube-pods.service/runtime":                  first,
		"/hyperkube-pods.service/hyperkube-node-2/runtime": first.Numbered(2),
		"": layout.Default(),
	} {
		if got := RuntimeCgroup(l); got != want {
			t.Errorf("root %q: %q, want %q", l.CgroupRoot, got, want)
		}
	}
}

func TestStopSocket(t *testing.T) {
	systemd := servicetest.New(t)
	if socket := StopSocket(layout.Default()); socket != "" {
		t.Errorf("without systemd: %s", socket)
	}
	systemd.Boot(t)
	for want, l := range map[string]layout.Node{
		"/run/hyperkube/suspend.sock":         layout.Default(),
		"/run/hyperkube/nodes/2/suspend.sock": layout.Default().Numbered(2),
		"":                                    layout.Under("/home/user/a"),
	} {
		if got := StopSocket(l); got != want {
			t.Errorf("data in %s: %q, want %q", l.Data, got, want)
		}
	}
}

func TestText(t *testing.T) {
	got := string(text(`/opt/my programs/hyperkube`))
	for _, want := range []string{"\nExecStop=\"/opt/my programs/hyperkube\" stop --suspend-pods\n", "\nDelegate=yes\n", "\nSlice=-.slice\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("the unit does not contain %q", want)
		}
	}
	if !regexp.MustCompile(`(?m)^CPUWeight=[1-9][0-9]*$`).MatchString(got) {
		t.Errorf("the unit has no CPU weight:\n%s", got)
	}
}

// TestStopSocketOpenRC checks that the kubelet waits for the stop job on a machine with OpenRC only if a service is installed.
func TestStopSocketOpenRC(t *testing.T) {
	rc := servicetest.NewOpenRC(t)
	rc.Boot(t)
	if socket := StopSocket(layout.Default()); socket != "" {
		t.Errorf("without a service: %s", socket)
	}
	if err := os.WriteFile(service.Node.File(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := StopSocket(layout.Default().Numbered(2)), "/run/hyperkube/nodes/2/suspend.sock"; got != want {
		t.Errorf("with a service: %q, want %q", got, want)
	}
}
