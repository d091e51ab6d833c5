package controlplane

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/internal/host/layout"
)

// runPhase runs a part of init that needs no cluster.
func runPhase(t *testing.T, o *initOptions, l layout.Node, name, part string, given ...string) {
	t.Helper()
	m, err := o.newNode(l, io.Discard, func(flag string) bool { return slices.Contains(given, flag) }, false)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(initPhases(), func(p initPhase) bool { return p.name == name })
	if i < 0 || part != "" && !slices.Contains(initPhases()[i].parts, part) {
		t.Fatalf("no part %s of phase %s", part, name)
	}
	if err := initPhases()[i].run(t.Context(), m, part, io.Discard); err != nil {
		t.Fatalf("%s %s: %v", name, part, err)
	}
}

// TestInitPhases: running the phases of init one after the other creates the same files as init,
// and each phase creates only its own files.
func TestInitPhases(t *testing.T) {
	l := layout.Under(t.TempDir())
	o := &initOptions{flags: controlPlaneSettings{Port: 6443, NodeName: "m", Advertise: "192.0.2.1"}}
	missing := func(names ...string) {
		t.Helper()
		for _, name := range names {
			if layout.Exists(filepath.Join(l.Etc, name)) {
				t.Errorf("%s exists too early", name)
			}
		}
	}
	exists := func(names ...string) {
		t.Helper()
		for _, name := range names {
			if !layout.Exists(filepath.Join(l.Etc, name)) {
				t.Errorf("%s is missing", name)
			}
		}
	}
	runPhase(t, o, l, "certs", "all")
	exists("pki/apiserver.crt", "pki/etcd/server.crt")
	missing("admin.conf", "manifests/etcd.yaml")
	if !clusterconfig.HasJoined(l) {
		t.Error("reset would not find the node")
	}
	runPhase(t, o, l, "kubeconfig", "admin")
	exists("admin.conf", "kubelet.conf")
	missing("scheduler.conf")
	runPhase(t, o, l, "kubeconfig", "all")
	exists("scheduler.conf", "controller-manager.conf", "super-admin.conf")
	runPhase(t, o, l, "control-plane", "apiserver")
	exists("manifests/kube-apiserver.yaml")
	missing("manifests/kube-scheduler.yaml")
	runPhase(t, o, l, "control-plane", "all")
	exists("manifests/kube-scheduler.yaml", "manifests/kube-controller-manager.yaml")
	missing("manifests/etcd.yaml")
	runPhase(t, o, l, "etcd", "local")
	exists("manifests/etcd.yaml")

	// Flags of a phase are applied, and are stored for later phases.
	o.flags.Port = 7443
	runPhase(t, o, l, "control-plane", "apiserver", "apiserver-bind-port")
	data, err := os.ReadFile(filepath.Join(l.StaticPods(), "kube-apiserver.yaml"))
	if err != nil || !strings.Contains(string(data), "--secure-port=7443") {
		t.Errorf("changed port: %v\n%s", err, data)
	}
	o.flags.Port = 6443
	if m, err := o.newNode(l, io.Discard, func(string) bool { return false }, true); err != nil || m.settings.Port != 7443 || m.certificateKey == nil {
		t.Errorf("later phase: %+v, %v", m, err)
	}
}

// TestInitPhasesOfAdditionalNode: the phases of init also work on an additional control plane node, with
// the settings from joining.
func TestInitPhasesOfAdditionalNode(t *testing.T) {
	m := newTestNode(t)
	m.layout, m.etcdMembers = layout.Under(t.TempDir()), "a=https://192.0.2.2:2380"
	m.settings.Advertise = "192.0.2.1"
	if _, err := m.member().setUpAdditional(); err != nil {
		t.Fatal(err)
	}
	runPhase(t, &initOptions{flags: controlPlaneSettings{Port: 6443}}, m.layout, "etcd", "local")
	data, err := os.ReadFile(etcdManifest(m.layout))
	if err != nil || !strings.Contains(string(data), m.etcdMembers) {
		t.Errorf("%v\n%s", err, data)
	}
	if layout.Exists(settingsFile(m.layout)) || layout.Exists(clusterconfig.File(m.layout)) {
		t.Error("the machine has the files of the first control plane node")
	}
}
