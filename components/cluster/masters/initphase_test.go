package masters

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hyperkube/components/cluster/identity"
	"hyperkube/internal/layout"
)

// runPhase runs a part of init that needs no cluster.
func runPhase(t *testing.T, o *initOptions, l layout.Node, name, part string, given ...string) {
	t.Helper()
	m, err := o.again(l, io.Discard, func(flag string) bool { return slices.Contains(given, flag) }, false)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(initPhases(), func(p initPhase) bool { return p.name == name })
	if i < 0 || part != "" && !slices.Contains(initPhases()[i].parts, part) {
		t.Fatalf("there is no part %s of a phase %s", part, name)
	}
	if err := initPhases()[i].run(t.Context(), m, part, io.Discard); err != nil {
		t.Fatalf("%s %s: %v", name, part, err)
	}
}

// TestInitPhases: parts of init that are run one after the other make what init makes,
// and each makes only what is its own.
func TestInitPhases(t *testing.T) {
	l := layout.Under(t.TempDir())
	o := &initOptions{given: masterSettings{Port: 6443, NodeName: "m", Advertise: "192.0.2.1"}}
	missing := func(names ...string) {
		t.Helper()
		for _, name := range names {
			if layout.Exists(filepath.Join(l.Etc, name)) {
				t.Errorf("%s is there too soon", name)
			}
		}
	}
	there := func(names ...string) {
		t.Helper()
		for _, name := range names {
			if !layout.Exists(filepath.Join(l.Etc, name)) {
				t.Errorf("%s is missing", name)
			}
		}
	}
	runPhase(t, o, l, "certs", "all")
	there("pki/apiserver.crt", "pki/etcd/server.crt")
	missing("admin.conf", "manifests/etcd.yaml")
	if !identity.HasJoined(l) {
		t.Error("reset would find nothing")
	}
	runPhase(t, o, l, "kubeconfig", "admin")
	there("admin.conf", "kubelet.conf")
	missing("scheduler.conf")
	runPhase(t, o, l, "kubeconfig", "all")
	there("scheduler.conf", "controller-manager.conf", "super-admin.conf")
	runPhase(t, o, l, "control-plane", "apiserver")
	there("manifests/kube-apiserver.yaml")
	missing("manifests/kube-scheduler.yaml")
	runPhase(t, o, l, "control-plane", "all")
	there("manifests/kube-scheduler.yaml", "manifests/kube-controller-manager.yaml")
	missing("manifests/etcd.yaml")
	runPhase(t, o, l, "etcd", "local")
	there("manifests/etcd.yaml")

	// What is said to a part is heeded, and kept for later ones.
	o.given.Port = 7443
	runPhase(t, o, l, "control-plane", "apiserver", "apiserver-bind-port")
	data, err := os.ReadFile(filepath.Join(l.StaticPods(), "kube-apiserver.yaml"))
	if err != nil || !strings.Contains(string(data), "--secure-port=7443") {
		t.Errorf("another port: %v\n%s", err, data)
	}
	o.given.Port = 6443
	if m, err := o.again(l, io.Discard, func(string) bool { return false }, true); err != nil || m.settings.Port != 7443 || m.certificateKey == nil {
		t.Errorf("later: %+v, %v", m, err)
	}
}

// TestPhasesOfFurtherMaster: a machine that has joined as a master has the parts of init
// too, with what it has joined with.
func TestPhasesOfFurtherMaster(t *testing.T) {
	m := testMaster(t)
	m.layout, m.etcdMembers = layout.Under(t.TempDir()), "a=https://192.0.2.2:2380"
	m.settings.Advertise = "192.0.2.1"
	if _, err := m.startKeys(); err != nil {
		t.Fatal(err)
	}
	runPhase(t, &initOptions{given: masterSettings{Port: 6443}}, m.layout, "etcd", "local")
	data, err := os.ReadFile(etcdManifest(m.layout))
	if err != nil || !strings.Contains(string(data), m.etcdMembers) {
		t.Errorf("%v\n%s", err, data)
	}
	if layout.Exists(settingsFile(m.layout)) || layout.Exists(identity.File(m.layout)) {
		t.Error("it is taken for the first master from now on")
	}
}
