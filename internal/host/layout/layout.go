// Package layout defines the paths, sockets, ports, cgroup root and link names of a node. They all
// derive from a Node value, so that several nodes can share a machine.
package layout

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"strconv"
	"strings"
)

// Node has the paths, link names and cgroups that one node uses on its machine. The zero value is not valid; use
// Default or Numbered.
type Node struct {
	// Etc contains the PKI, kubeconfigs and static pod manifests of control plane nodes.
	Etc string
	// Data contains state that must survive a reboot.
	Data string
	// Run contains sockets and state that need not survive a reboot.
	Run string
	// Kubelet is the kubelet's root directory, /var/lib/kubelet by default. CSI drivers and device
	// plugins depend on this path.
	Kubelet string
	// AdvertisedKubelet is the path of Kubelet that is advertised to pods, if it differs.
	AdvertisedKubelet string
	// PodLogs is /var/log/pods by default, where log collectors expect pod logs.
	PodLogs string
	// ContainerLogs is /var/log/containers by default.
	ContainerLogs string
	// CgroupRoot is the parent cgroup, in every hierarchy, of all cgroups of the node. Empty or "/"
	// is the root cgroup.
	CgroupRoot string
	// LinkPrefix is the prefix of the names of all network links created by this node. It has at
	// most four bytes, because link names have at most fifteen.
	LinkPrefix string
}

// RuntimeName is the process name (argv[0]) of the container runtime.
const RuntimeName = "hyperkube-runtime"

// Default returns the paths and names that the first node of a machine uses.
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

// Under returns the default layout with every path below root, for tests and for clusters that must
// not use the default paths. Its cgroups are below a cgroup that is named after root, so that they
// do not conflict with those of the default layout.
func Under(root string) Node {
	n := Default()
	n.Etc = filepath.Join(root, n.Etc)
	n.Data = filepath.Join(root, n.Data)
	n.Run = filepath.Join(root, n.Run)
	n.AdvertisedKubelet = n.Kubelet
	n.Kubelet = filepath.Join(root, n.Kubelet)
	n.PodLogs = filepath.Join(root, n.PodLogs)
	n.ContainerLogs = filepath.Join(root, n.ContainerLogs)
	sum := sha256.Sum256([]byte(filepath.Clean(root)))
	n.CgroupRoot = "/hyperkube-" + hex.EncodeToString(sum[:4])
	return n
}

// nodesDir is the directory, below the data directory of a cluster, with one directory for each additional node that
// `up --nodes` runs on the same machine.
const nodesDir = "nodes"

// Root returns the directory of the flag --root, below which the paths of the node are. It is empty for the default
// paths. Additional nodes have no such directory.
func (n Node) Root() string { return strings.TrimSuffix(n.Data, Default().Data) }

// Numbered returns the paths and names of the i-th additional node of the machine whose first node is n, starting
// at 1. Its directories are below those of n.
func (n Node) Numbered(i int) Node {
	sub := filepath.Join(nodesDir, strconv.Itoa(i))
	n.Data = filepath.Join(n.Data, sub)
	n.Run = filepath.Join(n.Run, sub)
	n.AdvertisedKubelet = Default().Kubelet
	n.Kubelet = filepath.Join(n.Data, "kubelet")
	n.PodLogs = filepath.Join(n.Data, "pod-logs")
	n.ContainerLogs = filepath.Join(n.Data, "container-logs")
	n.CgroupRoot = filepath.Join(n.CgroupRoot, "hyperkube-node-"+strconv.Itoa(i))
	return n
}

// DataDirPatterns returns glob patterns for the data directories of all nodes on a machine. data is
// the data directory of any of these nodes.
func DataDirPatterns(data string) []string {
	if parent := filepath.Dir(data); filepath.Base(parent) == nodesDir {
		data = filepath.Dir(parent)
	}
	return []string{data, filepath.Join(data, nodesDir, "*")}
}

// PKI returns the directory in which `up` stores certificates and keys. Control plane nodes created
// by `init` use Etc/pki with kubeadm's file names.
func (n Node) PKI() string { return filepath.Join(n.Data, "pki") }

// Etcd returns the data directory of the embedded etcd.
func (n Node) Etcd() string { return filepath.Join(n.Data, "etcd") }

// Runtime returns the directory in which the container runtime stores images and containers.
func (n Node) Runtime() string { return filepath.Join(n.Data, "runtime") }

// RuntimeState returns the directory in which the container runtime stores state that does not
// survive a reboot.
func (n Node) RuntimeState() string { return filepath.Join(n.Run, "runtime") }

// RuntimeSocket returns the path of the CRI unix socket.
func (n Node) RuntimeSocket() string { return filepath.Join(n.Run, "runtime.sock") }

// Volumes returns the parent directory of local persistent volumes.
func (n Node) Volumes() string { return filepath.Join(n.Data, "volumes") }

// Images returns the directory whose *.tar files the container runtime imports as images when it
// starts.
func (n Node) Images() string { return filepath.Join(n.Data, "images") }

// Journal returns the path of the host change journal (package hostjournal) of the process named
// process.
func (n Node) Journal(process string) string {
	return filepath.Join(n.Data, "host-changes", process+".jsonl")
}

// PIDFile returns the path of the PID file of the process named process.
func (n Node) PIDFile(process string) string { return filepath.Join(n.Run, process+".pid") }

// Stopped returns the path of a file that exists while the main process has stopped the cluster
// after a failure and waits to start it again. It contains the reason.
func (n Node) Stopped() string { return filepath.Join(n.Run, "stopped") }

// NodeDNS returns the directory of a copy of the resolver configuration that the node uses now, in the file resolv.conf.
// Pods of the DNS server mount it.
func (n Node) NodeDNS() string { return filepath.Join(n.Run, "dns") }

// Log returns the path of the log file of the process named process, if it runs in the background.
func (n Node) Log(process string) string { return filepath.Join(n.LogDir(), process+".log") }

// LogDir returns the directory of the log files of processes that run in the background.
func (n Node) LogDir() string { return filepath.Join(n.Data, "logs") }

// LogStore returns the directory in which the logging agent stores the logs of the node.
func (n Node) LogStore() string { return filepath.Join(n.Data, "log-store") }

// AuditPolicy returns the file of the API server's audit policy on control plane nodes.
func (n Node) AuditPolicy() string { return filepath.Join(n.Etc, "audit-policy.yaml") }

// AuditLogs returns the directory of the API server's audit log on control plane nodes.
func (n Node) AuditLogs() string {
	return filepath.Join(filepath.Dir(n.PodLogs), "kubernetes", "audit")
}

// ConfigFile returns the path of a machine configuration file of the operator, such as
// registries.yaml.
func (n Node) ConfigFile(name string) string {
	return filepath.Join(filepath.Dir(n.Etc), "hyperkube", name)
}

// CNIConf returns the directory of the configurations of network plugins.
func (n Node) CNIConf() string { return filepath.Join(filepath.Dir(n.Etc), "cni", "net.d") }

// StaticPods returns the directory of static pod manifests.
func (n Node) StaticPods() string { return filepath.Join(n.Etc, "manifests") }

// Bridge returns the name of the pod bridge.
func (n Node) Bridge() string { return n.LinkPrefix + "-br0" }

// Tunnel returns the name of the tunnel link to the pods of other nodes.
func (n Node) Tunnel() string { return n.LinkPrefix + "-vxlan" }

// WireGuard returns the name of the link with encrypted tunnels to the pods of other nodes.
func (n Node) WireGuard() string { return n.LinkPrefix + "-wg" }

// MainProcess is the process name of the main process in PID files, journals and logs. It runs `up`
// or `node`, and with them the components of the node.
const MainProcess = "hyperkube"

// PortAPIServer and the other constants are the default ports of Kubernetes. Additional nodes of a machine use the
// same ports in separate network namespaces.
const (
	PortAPIServer              = 6443
	PortEtcdClient             = 2379
	PortEtcdPeer               = 2380
	PortKubelet                = 10250
	PortKubeletHealthz         = 10248
	PortProxyHealthz           = 10256
	PortProxyMetrics           = 10249
	PortControllerManager      = 10257
	PortCloudControllerManager = 10258
	PortScheduler              = 10259
)
