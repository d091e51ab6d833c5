package check

import (
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"hyperkube/internal/host/layout"
)

// ownCommand matches a command of this program in backquotes. The groups are its first word and the rest.
var ownCommand = regexp.MustCompile("`hyperkube ([a-z]+)([^`]*)`")

// adapt returns fix with commands that work on this machine, because the checks write those of a cluster of `up` with the
// default paths. With other paths, the commands get --root or the kubeconfig. After init and join, kubectl and etcdctl get
// the files of this control plane node. On other nodes, the operator must run kubectl on a control plane node.
func (m *Machine) adapt(fix string) string {
	root := m.Layout.Root()
	return ownCommand.ReplaceAllStringFunc(fix, func(command string) string {
		parts := ownCommand.FindStringSubmatch(command)
		name, rest := parts[1], parts[2]
		joined := m.Cluster.Joined
		switch {
		case strings.Contains(rest, "--root"):
			return command
		case name == "kubectl" && joined && !m.Cluster.ControlPlane:
			return command + " on a control plane node"
		case name == "kubectl" && joined:
			return "`hyperkube kubectl --kubeconfig=" + filepath.Join(m.Layout.Etc, "admin.conf") + rest + "`"
		case name == "kubectl" && root != "":
			return "`hyperkube kubectl --kubeconfig=" + filepath.Join(m.Layout.Data, "admin.conf") + rest + "`"
		case name == "etcdctl" && joined:
			dir := filepath.Join(m.Layout.Etc, "pki", "etcd")
			return "`hyperkube etcdctl --cacert=" + dir + "/ca.crt --cert=" + dir + "/server.crt --key=" + dir + "/server.key" + rest + "`"
		case name == "kubectl", name == "etcdctl", root == "":
			return command
		}
		return "`hyperkube " + name + rest + " --root=" + root + "`"
	})
}

var (
	securePort = regexp.MustCompile(`--secure-port=(\d+)`)
	serverPort = regexp.MustCompile(`server: ["']?https://\S+:(\d+)`)
)

// apiPort returns the port of the API server of this machine: that of its static pod, or that in the kubeconfig of a
// cluster of `up`. Before the first start it returns the default port.
func (m *Machine) apiPort() int {
	source, pattern := filepath.Join(m.Layout.Data, "admin.conf"), serverPort
	if m.Cluster.Joined {
		source, pattern = filepath.Join(m.Layout.StaticPods(), "kube-apiserver.yaml"), securePort
	}
	if found := pattern.FindStringSubmatch(m.read(source)); found != nil {
		if port, err := strconv.Atoi(found[1]); err == nil {
			return port
		}
	}
	return layout.PortAPIServer
}
