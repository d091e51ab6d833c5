package check

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"go.etcd.io/etcd/api/v3/version"
	"golang.org/x/sys/unix"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/node"
	"hyperkube/components/cluster/pidlock"
	"hyperkube/components/cluster/podsunit"
	"hyperkube/components/cluster/preflight"
	"hyperkube/components/etcd"
	"hyperkube/components/etcd/database"
	buildversion "hyperkube/internal/base/version"
	"hyperkube/internal/host/hostaddress"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/host/netlinkutil"
	"hyperkube/internal/host/packetfilter"
)

// readRules returns the rules as iptables-save prints them. A machine without iptables, on which rules are written for
// nftables, has none.
func readRules(ctx context.Context, family packetfilter.Family) (string, error) {
	saved, err := packetfilter.Save(ctx, family)
	if errors.Is(err, packetfilter.ErrNotInstalled) && packetfilter.CheckNFTables() == nil {
		return "", nil
	}
	return saved, err
}

// Host returns the Machine that describes this machine, in the network namespace of the calling thread. start is the
// command that starts the cluster.
func Host(l layout.Node, start string) *Machine {
	if inUnit, err := podsunit.Layout(l); err == nil {
		l = inUnit
	}
	m := &Machine{Layout: l, Files: os.DirFS("/"), Now: time.Now(), Cluster: readCluster(l, start), Network: readNetwork(l)}
	if released, err := time.Parse(time.RFC3339, buildversion.Get().BuildDate); err == nil {
		m.Released = released
	}
	m.Probes = Probes{
		Requirements: sync.OnceValue(func() []preflight.Problem { return preflight.Problems(l, m.ports(), "", m.canLoadOverlay) }),
		Disk:         readDisk,
		Links:        probeLinks,
		Inotify:      probeInotify,
		ClockSynced:  readClockSync,
		Rules:        readRules,
		NFTables:     packetfilter.CountNFTables,
		Sync:         measureSync,
		EtcdData:     func() (EtcdData, error) { return readEtcdData(l.Etcd()) },
		Etcd:         func(ctx context.Context) (EtcdStatus, error) { return queryEtcd(ctx, l) },
		API:          onceAPI(l),
		Resolve:      resolve,
		Connect: func(ctx context.Context, targets []Target) ([]Connection, error) {
			return connectAll(ctx, l, targets)
		},
	}
	return m
}

// readCluster reads the state of the cluster from files and locks.
func readCluster(l layout.Node, start string) Cluster {
	c := Cluster{Joined: clusterconfig.HasJoined(l), ControlPlane: clusterconfig.IsControlPlane(l), Start: start}
	id, exists, err := clusterconfig.Load(l)
	c.Config, c.Exists = id, exists || err != nil || c.Joined
	// Without a PID, the checks report what does not run.
	c.MainPID, _ = pidlock.Holder(l.PIDFile(layout.MainProcess))
	c.RuntimePID, _ = node.RuntimePID(l)
	return c
}

// ports returns the ports that must be free: none while the cluster or its container runtime runs, because some pods
// may be servers of the control plane.
func (m *Machine) ports() []int {
	if m.Cluster.MainPID != 0 || m.Cluster.RuntimePID != 0 {
		return nil
	}
	ports := []int{layout.PortKubelet, layout.PortProxyHealthz}
	if m.Cluster.Joined && !m.Cluster.ControlPlane {
		return ports
	}
	return append([]int{m.apiPort(), layout.PortEtcdClient, layout.PortEtcdPeer}, ports...)
}

// errNoModule is the error of canLoadOverlay.
var errNoModule = errors.New("the module is not installed")

// canLoadOverlay reports whether the kernel module for overlayfs is installed. It does not load the module, because a
// check leaves nothing behind.
func (m *Machine) canLoadOverlay() error {
	release := m.read("/proc/sys/kernel/osrelease")
	for _, list := range []string{"modules.dep", "modules.builtin"} {
		if strings.Contains(m.read("/lib/modules/"+release+"/"+list), "/overlay.ko") {
			return nil
		}
	}
	return errNoModule
}

// readNetwork reads the links, routes and addresses of the machine. An error is stored in Err of the result.
func readNetwork(l layout.Node) (n Network) {
	links, err := netlinkutil.List(netlink.LinkList)
	if err != nil {
		n.Err = fmt.Errorf("listing links: %w", err)
		return n
	}
	names := map[int]string{}
	for _, link := range links {
		a := link.Attrs()
		names[a.Index] = a.Name
		out := Link{Name: a.Name, Type: link.Type(), MTU: a.MTU}
		if a.Name == l.Bridge() {
			addrs, err := netlinkutil.Addresses(link, netlink.FAMILY_ALL)
			if err != nil {
				n.Err = fmt.Errorf("listing addresses: %w", err)
			}
			for _, addr := range addrs {
				out.Prefixes = append(out.Prefixes, netlinkutil.Prefix(addr.IPNet))
			}
		}
		n.Links = append(n.Links, out)
	}
	routes, err := netlinkutil.Routes(netlink.FAMILY_ALL)
	if err != nil {
		n.Err = fmt.Errorf("listing routes: %w", err)
		return n
	}
	for _, r := range routes {
		route := Route{Link: names[r.LinkIndex]}
		if r.Dst != nil && r.Dst.IP != nil {
			if p := netlinkutil.Prefix(r.Dst); p.Bits() > 0 {
				route.Dst = p.Masked()
			}
		}
		n.Routes = append(n.Routes, route)
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		addr, err := hostaddress.Of(family)
		if err != nil {
			n.Err = err
		} else if addr.IsValid() {
			n.Addresses = append(n.Addresses, addr)
		}
	}
	return n
}

// readDisk implements Probes.Disk.
func readDisk(path string) (Disk, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return Disk{}, fmt.Errorf("reading the file system of %s: %w", path, err)
	}
	return Disk{
		Size: st.Blocks * uint64(st.Bsize), Free: st.Bavail * uint64(st.Bsize),
		Inodes: st.Files, FreeInodes: st.Ffree, ReadOnly: st.Flags&unix.ST_RDONLY != 0,
	}, nil
}

// probeInotify implements Probes.Inotify.
func probeInotify() error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// readClockSync implements Probes.ClockSynced.
func readClockSync() (bool, error) {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return false, fmt.Errorf("reading the state of the clock: %w", err)
	}
	return state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0, nil
}

// syncWrites is the number of writes that measureSync makes, and syncTime the time after which it makes no more.
const (
	syncWrites = 5
	syncTime   = time.Second
)

// measureSync implements Probes.Sync. It returns the median, because a single write can be slow on any disk.
func measureSync(ctx context.Context, dir string) (median time.Duration, err error) {
	f, err := os.CreateTemp(dir, ".hyperkube-check-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	data := make([]byte, 2048)
	var took []time.Duration
	for began := time.Now(); len(took) < syncWrites && time.Since(began) < syncTime && ctx.Err() == nil; {
		at := time.Now()
		if _, err := f.Write(data); err != nil {
			return 0, err
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return 0, err
		}
		took = append(took, time.Since(at))
	}
	if len(took) == 0 {
		return 0, ctx.Err()
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// readEtcdData implements Probes.EtcdData for the data directory dir.
func readEtcdData(dir string) (EtcdData, error) {
	out := EtcdData{Supported: version.Version}
	contents, err := database.Inspect(filepath.Join(dir, "member", "snap", "db"))
	if errors.Is(err, database.ErrInUse) {
		return out, ErrInUse
	}
	out.Version, out.Damage = contents.ClusterVersion, err
	if err == nil {
		out.Damage = etcd.CheckData(dir)
	}
	return out, nil
}
