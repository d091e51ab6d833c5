package check

import (
	"context"
	"errors"
	"slices"
	"testing"

	"hyperkube/internal/host/layout"
)

// TestAdapt checks the commands of fixes for each kind of machine.
func TestAdapt(t *testing.T) {
	up, worker, controlPlane := Cluster{Exists: true}, Cluster{Exists: true, Joined: true}, Cluster{Exists: true, Joined: true, ControlPlane: true}
	for _, c := range []struct {
		name      string
		layout    layout.Node
		cluster   Cluster
		fix, want string
	}{
		{"up", layout.Default(), up, "see `hyperkube kubectl get nodes`, then run `hyperkube stop`", "see `hyperkube kubectl get nodes`, then run `hyperkube stop`"},
		{"root", layout.Under("/srv/a"), up, "run `hyperkube image import FILE`, then `hyperkube up`", "run `hyperkube image import FILE --root=/srv/a`, then `hyperkube up --root=/srv/a`"},
		{"root, start command", layout.Under("/srv/a"), up, "run `hyperkube up --root=/srv/a`", "run `hyperkube up --root=/srv/a`"},
		{"root, kubectl", layout.Under("/srv/a"), up, "`hyperkube kubectl delete events -A --all`", "`hyperkube kubectl --kubeconfig=/srv/a/var/lib/hyperkube/admin.conf delete events -A --all`"},
		{"root, other programs", layout.Under("/srv/a"), up, "run `date -s` or `rm /x`", "run `date -s` or `rm /x`"},
		{"control plane node", layout.Default(), controlPlane, "`hyperkube kubectl describe node n`", "`hyperkube kubectl --kubeconfig=/etc/kubernetes/admin.conf describe node n`"},
		{"control plane node, etcd", layout.Default(), controlPlane, "`hyperkube etcdctl member remove ID`", "`hyperkube etcdctl --cacert=/etc/kubernetes/pki/etcd/ca.crt --cert=/etc/kubernetes/pki/etcd/server.crt --key=/etc/kubernetes/pki/etcd/server.key member remove ID`"},
		{"control plane node, root", layout.Under("/srv/a"), controlPlane, "`hyperkube kubectl get nodes` or `hyperkube certs renew all`", "`hyperkube kubectl --kubeconfig=/srv/a/etc/kubernetes/admin.conf get nodes` or `hyperkube certs renew all --root=/srv/a`"},
		{"worker", layout.Default(), worker, "see `hyperkube kubectl describe node n`", "see `hyperkube kubectl describe node n` on a control plane node"},
		{"worker, status", layout.Default(), worker, "see `hyperkube status`", "see `hyperkube status`"},
		{"worker, root", layout.Under("/srv/a"), worker, "join again: `hyperkube reset`", "join again: `hyperkube reset --root=/srv/a`"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &Machine{Layout: c.layout, Cluster: c.cluster}
			if got := m.adapt(c.fix); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// TestReportIsAdapted checks that reports contain adapted commands.
func TestReportIsAdapted(t *testing.T) {
	m := healthy(t)
	m.Layout = layout.Under("/srv/a")
	m.Probes.API = func(context.Context) (APIStatus, error) { return APIStatus{}, errors.New("connection refused") }
	for _, f := range Run(t.Context(), m).Findings {
		if f.Check == "api-server" && f.Fix == "see why with `hyperkube status --root=/srv/a`, which also prints where the log is" {
			return
		}
	}
	t.Error("no finding with the flag --root")
}

// TestPorts checks which ports must be free on a stopped machine.
func TestPorts(t *testing.T) {
	for _, c := range []struct {
		name       string
		cluster    Cluster
		file, text string
		want       []int
	}{
		{"no cluster", Cluster{}, "/none", "", []int{6443, 2379, 2380, 10250, 10256}},
		{"up with another port", Cluster{Exists: true}, "/var/lib/hyperkube/admin.conf", "clusters:\n- cluster:\n    server: https://127.0.0.1:7443\n", []int{7443, 2379, 2380, 10250, 10256}},
		{"init with another port", Cluster{Exists: true, Joined: true, ControlPlane: true}, "/etc/kubernetes/manifests/kube-apiserver.yaml", "    - --secure-port=8443\n", []int{8443, 2379, 2380, 10250, 10256}},
		{"worker", Cluster{Exists: true, Joined: true}, "/none", "", []int{10250, 10256}},
		{"running", Cluster{Exists: true, MainPID: 1}, "/none", "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := healthy(t)
			m.Cluster = c.cluster
			m.set(c.file, c.text)
			if got := m.ports(); !slices.Equal(got, c.want) {
				t.Errorf("ports %v, want %v", got, c.want)
			}
		})
	}
}
