package clusterconfig

import (
	"path/filepath"

	"hyperkube/internal/host/layout"
)

// ControlPlaneRole is the label of nodes that run a control plane, and the taint of control plane nodes of init and
// join.
const ControlPlaneRole = "node-role.kubernetes.io/control-plane"

// HasJoined reports whether init or join has set up this machine.
func HasJoined(l layout.Node) bool { return layout.Exists(NodeFile(l)) }

// IsControlPlane reports whether init or join has set up this machine as a control plane node.
func IsControlPlane(l layout.Node) bool {
	return HasJoined(l) && layout.Exists(filepath.Join(l.StaticPods(), "kube-apiserver.yaml"))
}

// HasExternalCA reports whether this machine has the certificate of the cluster's CA without its
// key. Such a machine cannot sign certificates.
func HasExternalCA(l layout.Node) bool {
	authority := filepath.Join(l.Etc, "pki", "ca")
	return layout.Exists(authority+".crt") && !layout.Exists(authority+".key")
}

// NodeFile returns the path of the file in which `init`, `join` and `up --nodes` save the options of the node. For the
// layout of the first node of `up`, the file does not exist.
func NodeFile(l layout.Node) string { return filepath.Join(l.Data, "node.json") }

// AdminKubeconfig returns the path of the kubeconfig that the commands use. A worker has only the
// kubeconfig of its kubelet.
func AdminKubeconfig(l layout.Node) string {
	if !HasJoined(l) {
		return filepath.Join(l.Data, "admin.conf")
	}
	if admin := filepath.Join(l.Etc, "admin.conf"); layout.Exists(admin) {
		return admin
	}
	return filepath.Join(l.Etc, "kubelet.conf")
}

// KeyDir returns the directory of the cluster's keys, for clusters of `up` and of `init`.
func KeyDir(l layout.Node) string {
	if dir := l.PKI(); layout.Exists(dir) {
		return dir
	}
	return filepath.Join(l.Etc, "pki")
}

// EtcdClientFiles returns the paths of the credentials with which this machine connects to its etcd member: the
// certificate of the CA, the client certificate and its key.
func EtcdClientFiles(l layout.Node) (ca, cert, key string) {
	dir := filepath.Join(KeyDir(l), "etcd")
	return filepath.Join(dir, "ca.crt"), filepath.Join(dir, "healthcheck-client.crt"), filepath.Join(dir, "healthcheck-client.key")
}
