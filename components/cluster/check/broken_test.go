package check

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/pidlock"
	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/host/layout"
)

// machineEnv is the environment variable with the name of a broken machine. The test program that has it breaks its
// namespaces accordingly and runs the command check there. rootEnv is the directory of the cluster.
const (
	machineEnv = "HYPERKUBE_TEST_MACHINE"
	rootEnv    = "HYPERKUBE_TEST_ROOT"
)

// base64Of returns the standard encoding of data.
func base64Of(data []byte) string { return base64.StdEncoding.EncodeToString(data) }

// writeFile writes a file for a test.
func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// brokenMachine is a fault that is caused really, in new mount and network namespaces.
type brokenMachine struct {
	name string
	// breaks causes the fault. The cluster is below root, with the paths l.
	breaks func(root string, l layout.Node) error
	// The other fields are those of a fault.
	check      string
	severity   Severity
	cause, fix string
}

// brokenMachines are machines on which a cluster does not work, or would not.
var brokenMachines = []brokenMachine{
	{"no overlayfs", func(root string, _ layout.Node) error {
		err := over(root, "/proc/filesystems", "nodev\tsysfs\nnodev\ttmpfs\n\text4\n")
		if layout.Exists("/lib/modules") {
			err = errors.Join(err, mount("/lib/modules", "size=1m"))
		}
		return err
	}, "overlayfs", Error, "the kernel does not support overlayfs", "modprobe overlay"},
	{"full disk", func(root string, _ layout.Node) error { return mount(root, "size=4m") }, "disk-space", Error, "MiB of free disk space, at least 512 MiB are required", "delete files"},
	{"no inodes", func(root string, l layout.Node) error {
		return errors.Join(mount(root, "size=1g,nr_inodes=20"), os.MkdirAll(l.Data, 0o755), fill(l.Data))
	}, "disk-inodes", Error, "has no free inodes", "du --inodes"},
	{"read-only data directory", func(root string, l layout.Node) error { return readOnly(l.Data) }, "disk-space", Error, "is mounted read-only", "remount,rw"},
	{"read-only /etc", func(root string, l layout.Node) error { return readOnly(filepath.Dir(l.Etc)) }, "disk-read-only", Warning, "/etc is mounted read-only, so `hyperkube init`", "findmnt -T"},
	{"port in use", func(string, layout.Node) error {
		return listen("tcp", ":6443")
	}, "ports", Error, "port 6443 is in use by exe (process", "kill "},
	{"kubeadm leftovers", func(root string, l layout.Node) error {
		return create(filepath.Join(l.StaticPods(), "kube-apiserver.yaml"), "kind: Pod\n", 0o600)
	}, "other-cluster-files", Error, "kube-apiserver.yaml already exists: this machine belongs to another cluster", "kubeadm reset"},
	{"k3s runs", func(root string, _ layout.Node) error {
		program := filepath.Join(root, "k3s-server")
		data, err := os.ReadFile("/bin/sleep")
		if err == nil {
			err = os.WriteFile(program, data, 0o700)
		}
		if err != nil {
			return err
		}
		cmd := exec.Command(program, "1000")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		return cmd.Start()
	}, "other-cluster-processes", Error, "k3s-server of another Kubernetes cluster runs", "systemctl disable --now k3s"},
	{"mounts of another kubelet", func(root string, l layout.Node) error {
		dir := filepath.Join(l.Kubelet, "pods", "p", "volumes", "v")
		return errors.Join(os.MkdirAll(dir, 0o755), mount(dir, "size=1m"))
	}, "other-cluster-mounts", Error, "is still mounted by another cluster's kubelet", "umount -R"},
	{"resolv.conf with a stub resolver", func(root string, _ layout.Node) error {
		return errors.Join(mount("/run", "size=16m"), over(root, "/etc/resolv.conf", "nameserver 127.0.0.53\noptions edns0\n"))
	}, "dns-servers", Error, "/etc/resolv.conf contains only the name server 127.0.0.53, which pods cannot reach", "systemctl enable --now systemd-resolved"},
	{"DNS loop", func(root string, l layout.Node) error {
		return errors.Join(cluster(l), over(root, "/etc/resolv.conf", "nameserver 10.96.0.10\n"))
	}, "dns-loop", Error, "10.96.0.10, the address of a Service of the cluster", "name server of your network"},
	{"no default route", func(string, layout.Node) error { return link("eth0", 1500, "192.0.2.7/24", "") }, "default-route", Warning, "no default route", "ip route add default"},
	{"no network", func(string, layout.Node) error { return nil }, "default-route", Warning, "no address that other machines can reach", "ip address add"},
	{"MTU of another link", func(string, layout.Node) error {
		return errors.Join(bridge(), link("eth0", 1400, "192.0.2.7/24", "192.0.2.1"))
	}, "mtu", Error, "packets of up to 1500 bytes, but eth0, the link with the default route, transmits only 1400", "ip link set hk-br0 mtu 1400"},
	{"forwarding disabled", func(_ string, l layout.Node) error {
		return errors.Join(cluster(l), pretendRunning(l), os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0))
	}, "ip-forward", Error, "net.ipv4.ip_forward is 0", "sysctl -w net.ipv4.ip_forward=1"},
	{"firewall that rejects packets to the node", func(_ string, l layout.Node) error {
		return errors.Join(firewalled(l), iptables("-A", "INPUT", "-i", "hk-br0", "-p", "tcp", "-j", "REJECT"))
	}, "firewall", Error, "a firewall rejects packets from pods to the kubelet of this node (192.0.2.7:10250)", "nft list ruleset"},
	{"firewall that drops packets to the node", func(_ string, l layout.Node) error {
		return errors.Join(firewalled(l), iptables("-A", "INPUT", "-i", "hk-br0", "-j", "DROP"))
	}, "firewall", Error, "a firewall drops packets from pods to the kubelet of this node (192.0.2.7:10250)", "nft list ruleset"},
	{"controllers not delegated", func(string, layout.Node) error {
		// The controllers belong to the hierarchies of the host, so a new one has none of them.
		for unix.Unmount("/sys/fs/cgroup", unix.MNT_DETACH) == nil {
		}
		if err := unix.Mount("none", "/sys/fs/cgroup", "cgroup2", 0, ""); err != nil {
			return err
		}
		return over(os.Getenv(rootEnv), "/sys/fs/cgroup/cgroup.controllers", "cpu io\n")
	}, "cgroup-controllers", Error, "the cgroup controller memory is not delegated", "Delegate=yes"},
	{"no cgroups", func(string, layout.Node) error {
		for unix.Unmount("/sys/fs/cgroup", unix.MNT_DETACH) == nil {
		}
		return nil
	}, "cgroup-hierarchy", Error, "no cgroup hierarchy is mounted", "mount -t cgroup2"},
	{"low inotify limits", func(root string, _ layout.Node) error {
		return over(root, "/proc/sys/fs/inotify/max_user_instances", "16\n")
	}, "inotify", Warning, "fs.inotify.max_user_instances is only 16", "max_user_instances=8192"},
	{"swap", func(root string, _ layout.Node) error {
		return over(root, "/proc/swaps", "Filename Type Size Used Priority\n/swapfile file 1000 0 -2\n")
	}, "swap", Warning, "swap is enabled, but pods cannot use it", "LimitedSwap"},
	{"expired certificate", func(_ string, l layout.Node) error { return certificate(l, "front-proxy-client", -time.Hour) }, "certificates", Error, "front-proxy-client.crt has expired on", "hyperkube stop"},
	{"certificate that was not renewed", func(_ string, l layout.Node) error { return certificate(l, "apiserver", 24*time.Hour) }, "certificates", Warning, "apiserver.crt expires on", "hyperkube stop"},
	{"readable key", func(_ string, l layout.Node) error {
		return errors.Join(cluster(l), create(filepath.Join(l.PKI(), "sa.key"), "key", 0o644))
	}, "key-permissions", Error, "users other than root can read the private keys in", "chmod 600"},
	{"etcd data of a newer version", func(_ string, l layout.Node) error { return errors.Join(cluster(l), etcdDatabase(l, "9.1.0")) }, "etcd-data", Error, "written by etcd 9.1.0, which is newer than etcd", "snapshot restore"},
	{"damaged etcd data", func(_ string, l layout.Node) error {
		return errors.Join(cluster(l), create(filepath.Join(l.Etcd(), "member", "snap", "db"), strings.Repeat("x", 32<<10), 0o600))
	}, "etcd-data", Error, "etcd cannot start with the data in", "snapshot restore"},
	{"link of a deleted pod", func(string, layout.Node) error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "hkvdeadbeef0123"}, PeerName: "eth0"})
	}, "leaked-links", Warning, "hkvdeadbeef0123 belongs to a pod that does not exist", "ip link delete hkvdeadbeef0123"},
	{"mount of a deleted container", func(_ string, l layout.Node) error {
		dir := filepath.Join(l.RuntimeState(), "containers", "dead", "rootfs")
		return errors.Join(os.MkdirAll(dir, 0o755), mount(dir, "size=1m"))
	}, "leaked-mounts", Warning, "dead/rootfs is the mount of a container or pod that does not exist", "umount"},
	{"missing image layers", func(_ string, l layout.Node) error {
		return create(filepath.Join(l.Runtime(), "images", "a.json"), `{"id":"sha256:a","tags":["docker.io/library/nginx:1"],"layers":["none"]}`, 0o600)
	}, "images", Warning, "1 layers of the image docker.io/library/nginx:1 are missing", "hyperkube image pull docker.io/library/nginx:1"},
}

// Functions that break the machine of a test program. They run in its namespaces.

// kept are the resources that the process of a broken machine needs until it exits.
var kept []any

// listen opens a listener that stays open.
func listen(network, address string) error {
	l, err := net.Listen(network, address)
	kept = append(kept, l)
	return err
}

// mount mounts a tmpfs.
func mount(dir, options string) error { return unix.Mount("none", dir, "tmpfs", 0, options) }

// readOnly makes a directory read-only, which it creates.
func readOnly(dir string) error {
	return errors.Join(os.MkdirAll(dir, 0o755), unix.Mount(dir, dir, "", unix.MS_BIND, ""),
		unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
}

// over mounts a file with other content over a file.
func over(root, name, text string) error {
	file := filepath.Join(root, strings.ReplaceAll(name, "/", "-"))
	return errors.Join(os.WriteFile(file, []byte(text), 0o644), unix.Mount(file, name, "", unix.MS_BIND, ""))
}

// create creates a file with its directories.
func create(name, text string, mode os.FileMode) error {
	return errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), mode))
}

// fill creates files until the file system has no inodes.
func fill(dir string) error {
	for i := 0; ; i++ {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600); errors.Is(err, unix.ENOSPC) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// cluster makes the machine belong to a cluster.
func cluster(l layout.Node) error {
	return errors.Join(os.MkdirAll(l.Data, 0o755), clusterconfig.Cluster{
		NodeName: "n", PodCIDRs: []string{"10.244.0.0/16"}, ServiceCIDRs: []string{"10.96.0.0/16"}, DNSAddress: "10.96.0.10", Domain: "cluster.local",
	}.Save(l))
}

// pretendRunning makes the cluster look as if it ran: this process has the lock of the main process, and the socket of the runtime.
func pretendRunning(l layout.Node) error {
	lock, err := pidlock.Acquire(l.PIDFile(layout.MainProcess))
	kept = append(kept, lock)
	return errors.Join(err, listen("unix", l.RuntimeSocket()))
}

// link creates a network link with an address and, if gateway is not empty, a default route.
func link(name string, mtu int, address, gateway string) error {
	l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: mtu}, PeerName: name + "-peer"}
	addr, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	if err := errors.Join(netlink.LinkAdd(l), netlink.AddrAdd(l, addr), netlink.LinkSetUp(l)); err != nil || gateway == "" {
		return err
	}
	peer, err := netlink.LinkByName(name + "-peer")
	if err != nil {
		return err
	}
	return errors.Join(netlink.LinkSetUp(peer), netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: net.ParseIP(gateway)}))
}

// bridge creates the pod bridge.
func bridge() error {
	b := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "hk-br0", MTU: 1500}}
	addr, err := netlink.ParseAddr("10.244.0.1/24")
	return errors.Join(err, netlink.LinkAdd(b), netlink.AddrAdd(b, addr), netlink.LinkSetUp(b))
}

// firewalled creates the network of a running cluster with a server on the port of the kubelet.
func firewalled(l layout.Node) error {
	lo, err := netlink.LinkByName("lo")
	err = errors.Join(err, cluster(l), pretendRunning(l), netlink.LinkSetUp(lo), bridge(), link("eth0", 1500, "192.0.2.7/24", "192.0.2.1"))
	return errors.Join(err, listen("tcp", ":10250"))
}

// iptables adds a rule.
func iptables(args ...string) error {
	if out, err := exec.Command("iptables", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// certificate creates the PKI of a cluster, in which one certificate expires after a duration.
func certificate(l layout.Node, name string, left time.Duration) error {
	if err := cluster(l); err != nil {
		return err
	}
	set, err := pki.Ensure(l.PKI(), pki.Config{NodeName: "n", ClusterDomain: "cluster.local"})
	if err != nil {
		return err
	}
	file := filepath.Join(l.PKI(), name+".crt")
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	old, err := pki.ParseCertificate(data)
	if err != nil {
		return err
	}
	expiring := *old
	expiring.NotBefore, expiring.NotAfter = time.Now().AddDate(-1, 0, 0), time.Now().Add(left)
	der, err := x509.CreateCertificate(rand.Reader, &expiring, set.CA.Cert, old.PublicKey, set.CA.Key)
	if err != nil {
		return err
	}
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644)
}

// etcdDatabase creates the database of an etcd cluster with a version.
func etcdDatabase(l layout.Node, version string) error {
	dir := filepath.Join(l.Etcd(), "member", "snap")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	db, err := bolt.Open(filepath.Join(dir, "db"), 0o600, nil)
	if err != nil {
		return err
	}
	return errors.Join(db.Update(func(tx *bolt.Tx) error {
		bucket, err := tx.CreateBucket([]byte("cluster"))
		if err != nil {
			return err
		}
		return bucket.Put([]byte("clusterVersion"), []byte(version))
	}), db.Close())
}

// checkBrokenMachine breaks the namespaces of this process and runs the command. It returns the exit code.
func checkBrokenMachine(name string) int {
	runtime.LockOSThread()
	root := os.Getenv(rootEnv)
	for _, b := range brokenMachines {
		if b.name != name {
			continue
		}
		if err := b.breaks(root, layout.Under(root)); err != nil {
			fmt.Fprintln(os.Stderr, "breaking the machine:", err)
			return 99
		}
		cmd := New(func(layout.Node) string { return "hyperkube up" })
		cmd.SetArgs([]string{"-o", "json", "--root", root})
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		err := cmd.ExecuteContext(context.Background())
		var coded interface{ ExitCode() int }
		switch {
		case err == nil:
			return 0
		case errors.As(err, &coded):
			return coded.ExitCode()
		}
		fmt.Fprintln(os.Stderr, err)
	}
	return 98
}

// TestBrokenMachines runs the command on broken machines.
func TestBrokenMachines(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for namespaces")
	}
	for _, b := range brokenMachines {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			root, err := os.MkdirTemp("", "check-") // socket paths must be short
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(root) })
			cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
			cmd.Env = append(os.Environ(), machineEnv+"="+b.name, rootEnv+"="+root)
			cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			err = cmd.Run()
			var exit *exec.ExitError
			want := exitWarnings
			if b.severity == Error {
				want = exitErrors
			}
			var report Report
			if jsonErr := json.Unmarshal(stdout.Bytes(), &report); jsonErr != nil {
				t.Fatalf("%v, %v: %s%s", err, jsonErr, stdout.String(), stderr.String())
			}
			if !errors.As(err, &exit) || exit.ExitCode() < want {
				t.Errorf("exit code %v, want at least %d: %s", err, want, stderr.String())
			}
			for _, f := range report.Findings {
				if f.Check == b.check && f.Severity == b.severity && strings.Contains(f.Cause, b.cause) && strings.Contains(f.Fix, b.fix) {
					return
				}
			}
			t.Errorf("not found: %s %s %q, fix %q\n%s", b.severity, b.check, b.cause, b.fix, stdout.String())
		})
	}
}
