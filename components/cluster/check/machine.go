package check

import (
	"bytes"
	"context"
	"io/fs"
	"net/netip"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/preflight"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/host/packetfilter"
)

// Machine contains what the checks inspect: files, facts about the cluster and the network, and functions that test
// something. No check modifies it.
type Machine struct {
	Layout layout.Node
	// Files is the root file system, including /proc and /sys.
	Files fs.FS
	// Now is the time of the clock. Released is when the program was built; zero if unknown.
	Now, Released time.Time
	Cluster       Cluster
	Network       Network
	Probes        Probes
}

// Cluster describes the cluster of the machine, without queries to its API server.
type Cluster struct {
	// Exists is true if the machine belongs to a cluster, running or not.
	Exists bool
	// Config is the configuration of the cluster. Its fields are empty on machines that have joined a cluster.
	Config clusterconfig.Cluster
	// Joined is true if init or join has set up the machine, ControlPlane if it then runs a control plane.
	Joined, ControlPlane bool
	// MainPID and RuntimePID are the processes of the cluster; 0 if they do not run.
	MainPID, RuntimePID int
	// Start is the command that starts the cluster.
	Start string
}

// running reports whether the components of the node run.
func (c *Cluster) running() bool { return c.MainPID != 0 && c.RuntimePID != 0 }

// hasControlPlane reports whether the machine runs an API server and etcd when the cluster runs.
func (c *Cluster) hasControlPlane() bool { return c.Exists && (!c.Joined || c.ControlPlane) }

// Network describes the network of the machine.
type Network struct {
	Links  []Link
	Routes []Route
	// Addresses are the addresses of the machine that other machines can reach, at most one of each family.
	Addresses []netip.Addr
	// Err is set if the network could not be read. The other fields are then incomplete.
	Err error
}

// Link is a network link.
type Link struct {
	Name, Type string
	MTU        int
	// Prefixes are the addresses of the pod bridge; they are not set for other links.
	Prefixes []netip.Prefix
}

// Route is a route of the main table. The destination of a default route is the zero Prefix.
type Route struct {
	Dst  netip.Prefix
	Link string
}

// link returns the link with this name; nil if there is none.
func (n *Network) link(name string) *Link {
	for i := range n.Links {
		if n.Links[i].Name == name {
			return &n.Links[i]
		}
	}
	return nil
}

// defaultLinks returns the links with a default route.
func (n *Network) defaultLinks() []*Link {
	var out []*Link
	for _, r := range n.Routes {
		if l := n.link(r.Link); l != nil && !r.Dst.IsValid() {
			out = append(out, l)
		}
	}
	return out
}

// Probes are the functions that test something on the machine. They revert what they change before they return, and are
// safe for concurrent use.
type Probes struct {
	// Requirements returns the failed preflight checks. Checks of ports are included if the cluster does not run.
	Requirements func() []preflight.Problem
	// Disk returns the usage of the file system that contains path.
	Disk func(path string) (Disk, error)
	// Links creates a link of each type that a node uses, in a temporary network namespace. It returns the types that
	// the kernel does not support, with the error. err means that no namespace could be created.
	Links func() (unsupported map[string]error, err error)
	// Inotify creates an inotify instance and closes it.
	Inotify func() error
	// ClockSynced reports whether the kernel considers the clock synchronized with other machines.
	ClockSynced func() (bool, error)
	// Rules returns the packet filter rules of all programs as iptables-save prints them.
	Rules func(ctx context.Context, family packetfilter.Family) (string, error)
	// NFTables returns the number of chains of hyperkube in nftables.
	NFTables func(ctx context.Context, family packetfilter.Family) (chains int, err error)
	// Sync writes a small file in dir several times and returns the longest time that fdatasync took. dir must exist.
	Sync func(ctx context.Context, dir string) (time.Duration, error)
	// EtcdData inspects the data directory of an etcd member that does not run.
	EtcdData func() (EtcdData, error)
	// Etcd queries the etcd member of this machine.
	Etcd func(ctx context.Context) (EtcdStatus, error)
	// API queries the API server.
	API func(ctx context.Context) (APIStatus, error)
	// Resolve sends a DNS query for the address of name to server, an address with port.
	Resolve func(ctx context.Context, server netip.AddrPort, name string) error
	// Connect opens a connection to each target, first from the machine and then from a temporary network namespace that
	// is connected to the pod bridge like a pod. The results are in the order of targets. err means that there could be
	// no such namespace.
	Connect func(ctx context.Context, targets []Target) (results []Connection, err error)
}

// Disk describes a file system.
type Disk struct {
	// Size and Free are in bytes. Free is what processes other than those of root can use.
	Size, Free uint64
	// Inodes and FreeInodes are 0 if the file system has no fixed number of inodes.
	Inodes, FreeInodes uint64
	ReadOnly           bool
}

// exists reports whether a file or directory exists.
func (m *Machine) exists(name string) bool {
	_, err := fs.Stat(m.Files, rel(name))
	return err == nil
}

// read returns the content of a file without surrounding white space; "" if it cannot be read.
func (m *Machine) read(name string) string {
	data, err := fs.ReadFile(m.Files, rel(name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// number returns the number in a file; false if there is none.
func (m *Machine) number(name string) (int, bool) {
	n, err := strconv.Atoi(m.read(name))
	return n, err == nil
}

// names returns the names of the files in a directory; none if it does not exist.
func (m *Machine) names(dir string) []string {
	entries, err := fs.ReadDir(m.Files, rel(dir))
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// mounts returns the mount table of this process.
func (m *Machine) mounts() ([]*mountinfo.Info, error) {
	data, err := fs.ReadFile(m.Files, "proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return mountinfo.GetMountsFromReader(bytes.NewReader(data), nil)
}

// nearest returns path, or its nearest parent directory that exists.
func (m *Machine) nearest(name string) string {
	for name != "/" && !m.exists(name) {
		name = path.Dir(name)
	}
	return name
}

// processes returns the PIDs of the processes with one of these names, by name.
func (m *Machine) processes(names ...string) map[string][]int {
	out := map[string][]int{}
	for _, entry := range m.names("/proc") {
		pid, err := strconv.Atoi(entry)
		if err != nil {
			continue
		}
		comm := m.read("/proc/" + entry + "/comm")
		for _, name := range names {
			if comm == name {
				out[name] = append(out[name], pid)
			}
		}
	}
	return out
}

// rel returns the path of a file of the machine relative to Machine.Files.
func rel(name string) string {
	if name = strings.Trim(path.Clean(name), "/"); name == "" {
		return "."
	}
	return name
}
