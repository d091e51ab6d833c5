// Package layout tells where everything of one node is: paths, sockets, ports,
// cgroup root and link names. All of it derives from one Node value, so that
// several nodes share a machine without a constant in the way.
package layout

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"strconv"
)

// Node is the layout of one node of one machine. The zero value is not useful:
// take Default or Numbered.
type Node struct {
	// Etc holds PKI, kubeconfigs and static pod manifests of masters.
	Etc string
	// Data holds what must survive a reboot.
	Data string
	// Run holds sockets and state that a reboot may wipe.
	Run string
	// Kubelet is the kubelet's root directory, /var/lib/kubelet by default;
	// its place is known to CSI drivers and device plugins.
	Kubelet string
	// KnownKubelet is the path by which pods know Kubelet, if that is another.
	KnownKubelet string
	// PodLogs is /var/log/pods by default, known to log collectors.
	PodLogs string
	// ContainerLogs is /var/log/containers by default.
	ContainerLogs string
	// CgroupRoot is the cgroup, in every hierarchy, below which all of the
	// node's own cgroups are. Empty or "/" is the root.
	CgroupRoot string
	// LinkPrefix begins the name of every network link made by this node. At
	// most four bytes, for link names have fifteen.
	LinkPrefix string
}

// RuntimeName is what the container runtime's process calls itself, argv[0].
const RuntimeName = "hyperkube-runtime"

// Default is the layout of the first or only node of a machine.
func Default() Node {
	return Node{
		Etc:           "/etc/kubernetes",
		Data:          "/var/lib/hyperkube",
		Run:           "/run/hyperkube",
		Kubelet:       "/var/lib/kubelet",
		PodLogs:       "/var/log/pods",
		ContainerLogs: "/var/log/containers",
		LinkPrefix:    "hk",
	}
}

// Under is the default layout with every path below root, for tests and for
// clusters that must not touch the usual places. Its cgroups are below one
// named for root, so that they never meet those of the default layout.
func Under(root string) Node {
	n := Default()
	n.Etc = filepath.Join(root, n.Etc)
	n.Data = filepath.Join(root, n.Data)
	n.Run = filepath.Join(root, n.Run)
	n.KnownKubelet = n.Kubelet
	n.Kubelet = filepath.Join(root, n.Kubelet)
	n.PodLogs = filepath.Join(root, n.PodLogs)
	n.ContainerLogs = filepath.Join(root, n.ContainerLogs)
	sum := sha256.Sum256([]byte(filepath.Clean(root)))
	n.CgroupRoot = "/hyperkube-" + hex.EncodeToString(sum[:4])
	return n
}

// numbered is the folder of the further nodes' folders.
const numbered = "nodes"

// Numbered is the layout of the i-th further node of a machine, from 1.
func (n Node) Numbered(i int) Node {
	sub := filepath.Join(numbered, strconv.Itoa(i))
	n.Data = filepath.Join(n.Data, sub)
	n.Run = filepath.Join(n.Run, sub)
	n.KnownKubelet = Default().Kubelet
	n.Kubelet = filepath.Join(n.Data, "kubelet")
	n.PodLogs = filepath.Join(n.Data, "pod-logs")
	n.ContainerLogs = filepath.Join(n.Data, "container-logs")
	n.CgroupRoot = filepath.Join(n.CgroupRoot, "hyperkube-node-"+strconv.Itoa(i))
	return n
}

// OnMachine returns patterns of the data directories of all nodes of the machine
// that the node with the data directory data is on.
func OnMachine(data string) []string {
	if parent := filepath.Dir(data); filepath.Base(parent) == numbered {
		data = filepath.Dir(parent)
	}
	return []string{data, filepath.Join(data, numbered, "*")}
}

// PKI is where `up` keeps certificates and keys; masters made by `init` use
// Etc/pki with kubeadm's names.
func (n Node) PKI() string { return filepath.Join(n.Data, "pki") }

// Etcd is the data directory of the embedded etcd.
func (n Node) Etcd() string { return filepath.Join(n.Data, "etcd") }

// Runtime is where the container runtime keeps images and containers.
func (n Node) Runtime() string { return filepath.Join(n.Data, "runtime") }

// RuntimeState is where the container runtime keeps what a reboot ends.
func (n Node) RuntimeState() string { return filepath.Join(n.Run, "runtime") }

// RuntimeSocket is the CRI endpoint, a unix socket's path.
func (n Node) RuntimeSocket() string { return filepath.Join(n.Run, "runtime.sock") }

// Volumes is where the folders of local persistent volumes are.
func (n Node) Volumes() string { return filepath.Join(n.Data, "volumes") }

// Images is a directory whose *.tar are imported at start.
func (n Node) Images() string { return filepath.Join(n.Data, "images") }

// Journal is the file of changes to the host that the named process makes.
func (n Node) Journal(process string) string {
	return filepath.Join(n.Data, "host-changes", process+".jsonl")
}

// PIDFile names the running process of that name.
func (n Node) PIDFile(process string) string { return filepath.Join(n.Run, process+".pid") }

// Log is the log file of a process that was started in the background.
func (n Node) Log(process string) string { return filepath.Join(n.Data, "logs", process+".log") }

// Setting is the path of one of the operator's files about the machine, such as
// registries.yaml.
func (n Node) Setting(name string) string {
	return filepath.Join(filepath.Dir(n.Etc), "hyperkube", name)
}

// CNIConf is the folder of configurations of network plugins.
func (n Node) CNIConf() string { return filepath.Join(filepath.Dir(n.Etc), "cni", "net.d") }

// StaticPods is the directory of static pod manifests.
func (n Node) StaticPods() string { return filepath.Join(n.Etc, "manifests") }

// Bridge is the name of the pods' bridge.
func (n Node) Bridge() string { return n.LinkPrefix + "-br0" }

// Tunnel is the name of the link through which pods of other nodes are reached.
func (n Node) Tunnel() string { return n.LinkPrefix + "-vxlan" }

// MainProcess is the name of the process that `up` starts, or that `node` is.
const MainProcess = "hyperkube"

// Kubernetes' usual ports. Further nodes of a machine have them too, each in its own
// network namespace.
const (
	PortAPIServer         = 6443
	PortEtcdClient        = 2379
	PortEtcdPeer          = 2380
	PortKubelet           = 10250
	PortKubeletHealthz    = 10248
	PortProxyHealthz      = 10256
	PortProxyMetrics      = 10249
	PortControllerManager = 10257
	PortScheduler         = 10259
)
