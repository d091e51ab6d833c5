package identity

import (
	"path/filepath"

	"hyperkube/internal/layout"
)

// HasJoined tells whether init or join has set up this machine.
func HasJoined(l layout.Node) bool { return layout.Exists(NodeFile(l)) }

// IsMaster tells whether init or join has made a master of this machine.
func IsMaster(l layout.Node) bool {
	return HasJoined(l) && layout.Exists(filepath.Join(l.StaticPods(), "kube-apiserver.yaml"))
}

// SignsElsewhere tells whether this machine has the certificate of the cluster's authority
// and not its key, so that nothing can be signed here.
func SignsElsewhere(l layout.Node) bool {
	authority := filepath.Join(l.Etc, "pki", "ca")
	return layout.Exists(authority+".crt") && !layout.Exists(authority+".key")
}

// NodeFile is where `init` and `join` keep the options of their node.
func NodeFile(l layout.Node) string { return filepath.Join(l.Data, "node.json") }

// AdminKubeconfig is the way in that the commands themselves use. A worker has
// only that of its kubelet.
func AdminKubeconfig(l layout.Node) string {
	if !HasJoined(l) {
		return filepath.Join(l.Data, "admin.conf")
	}
	if admin := filepath.Join(l.Etc, "admin.conf"); layout.Exists(admin) {
		return admin
	}
	return filepath.Join(l.Etc, "kubelet.conf")
}
