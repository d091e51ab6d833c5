package check

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/preflight"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/host/packetfilter"
)

// now is the time of the clock of test machines.
var now = time.Date(2027, time.March, 1, 12, 0, 0, 0, time.UTC)

// sandboxID and podUID identify the only pod of a test machine.
const (
	sandboxID = "1234567890abcdef1234567890abcdef1234567890abcdef1234567890abcdef"
	podUID    = "0c9e4ad2-3f5b-4a1e-9a55-7f1d2c3b4a59"
)

// healthy returns a machine with a running cluster and one pod, in which no check finds anything.
func healthy(t *testing.T) *Machine {
	t.Helper()
	config, err := proto.Marshal(&runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Uid: podUID}})
	if err != nil {
		t.Fatal(err)
	}
	m := &Machine{
		Layout: layout.Default(), Now: now, Released: now.AddDate(0, -1, 0),
		Files: fstest.MapFS{},
		Cluster: Cluster{
			Exists: true, MainPID: 10, RuntimePID: 11, Start: "hyperkube up",
			Config: clusterconfig.Cluster{NodeName: "n", PodCIDRs: []string{"10.244.0.0/16"}, ServiceCIDRs: []string{"10.96.0.0/16"}, DNSAddress: "10.96.0.10", Domain: "cluster.local"},
		},
		Network: Network{
			Links: []Link{
				{Name: "lo", Type: "device", MTU: 65536}, {Name: "eth0", Type: "device", MTU: 1500},
				{Name: "hk-br0", Type: "bridge", MTU: 1500, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.244.0.1/24")}},
				{Name: "hkv" + sandboxID[:12], Type: "veth", MTU: 1500},
			},
			Routes: []Route{
				{Link: "eth0"}, {Dst: netip.MustParsePrefix("192.0.2.0/24"), Link: "eth0"}, {Dst: netip.MustParsePrefix("10.244.0.0/24"), Link: "hk-br0"},
			},
			Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.7")},
		},
		Probes: Probes{
			Requirements: func() []preflight.Problem { return nil },
			Disk: func(string) (Disk, error) {
				return Disk{Size: 100 << 30, Free: 50 << 30, Inodes: 1e6, FreeInodes: 5e5}, nil
			},
			Links:       func() (map[string]error, error) { return nil, nil },
			Inotify:     func() error { return nil },
			ClockSynced: func() (bool, error) { return true, nil },
			Rules:       func(context.Context, packetfilter.Family) (string, error) { return "", nil },
			NFTables:    func(context.Context, packetfilter.Family) (int, error) { return 0, nil },
			Sync:        func(context.Context, string) (time.Duration, error) { return time.Millisecond, nil },
			EtcdData:    func() (EtcdData, error) { return EtcdData{Version: "3.7.0", Supported: "3.7.3"}, nil },
			Etcd: func(context.Context) (EtcdStatus, error) {
				return EtcdStatus{HasLeader: true, Members: 1, Latency: time.Millisecond, Size: 10 << 20, Quota: 2 << 30}, nil
			},
			API: func(context.Context) (APIStatus, error) {
				return APIStatus{DNS: "10.96.0.10", Service: "10.96.0.1"}, nil
			},
			Resolve: func(context.Context, netip.AddrPort, string) error { return nil },
			Connect: func(_ context.Context, targets []Target) ([]Connection, error) {
				return make([]Connection, len(targets)), nil
			},
		},
	}
	for name, text := range map[string]string{
		"/proc/sys/kernel/osrelease": "6.1.0-18-amd64", "/lib/modules/6.1.0-18-amd64/modules.dep": "", "/proc/swaps": "Filename Type\n",
		"/proc/sys/net/netfilter/nf_conntrack_max": "262144", "/proc/sys/net/netfilter/nf_conntrack_count": "100",
		"/proc/sys/net/bridge/bridge-nf-call-iptables": "1", "/sys/module/apparmor/parameters/enabled": "Y", "/usr/sbin/apparmor_parser": "",
		"/proc/self/mountinfo":          "22 1 0:20 / / rw - ext4 /dev/sda1 rw\n30 22 0:26 / " + unified(t, "cpu cpuset io memory pids") + " rw,nosuid - cgroup2 cgroup2 rw\n",
		"/proc/sys/net/ipv4/ip_forward": "1", "/proc/sys/fs/inotify/max_user_instances": "128", "/proc/sys/fs/inotify/max_user_watches": "65536",
		"/proc/sys/fs/file-nr": "1000\t0\t9223372036854775807", "/proc/loadavg": "0.1 0.1 0.1 1/200 4711", "/proc/sys/kernel/pid_max": "4194304",
		"/etc/resolv.conf": "nameserver 192.0.2.53\n",
		m.Layout.Runtime() + "/sandboxes/" + sandboxID + "/record.json": `{"config":"` + base64Of(config) + `"}`,
		m.Layout.Runtime() + "/images/a.json":                           `{"id":"sha256:a","tags":["app:v1"],"layers":["l1"]}`,
		m.Layout.Runtime() + "/layers/l1/fs/bin":                        "",
		m.Layout.Journal("node"):                                        "{}\n",
		clusterconfig.File(m.Layout):                                    "{}",
	} {
		m.set(name, text)
	}
	m.file(clusterconfig.File(m.Layout)).ModTime = now.AddDate(0, 0, -1)
	return m
}

// unified creates a directory that looks like a unified cgroup hierarchy with the controllers.
func unified(t *testing.T, controllers string) string {
	t.Helper()
	dir := t.TempDir()
	writeFile(t, dir+"/cgroup.controllers", controllers+"\n")
	return dir
}

// set sets the content of a file.
func (m *Machine) set(name, text string) {
	m.Files.(fstest.MapFS)[rel(name)] = &fstest.MapFile{Data: []byte(text), Mode: 0o600, ModTime: now}
}

// file returns a file that set has created.
func (m *Machine) file(name string) *fstest.MapFile { return m.Files.(fstest.MapFS)[rel(name)] }

func TestHealthyMachine(t *testing.T) {
	report := Run(t.Context(), healthy(t))
	for _, f := range report.Findings {
		t.Errorf("%+v", f)
	}
	if len(report.Passed) < 25 || report.err() != nil {
		t.Errorf("passed %q, skipped %v, error %v", report.Passed, report.Skipped, report.err())
	}
}

// TestEmptyMachine checks a machine without a cluster that meets all requirements.
func TestEmptyMachine(t *testing.T) {
	m := healthy(t)
	m.Cluster = Cluster{Start: "hyperkube up"}
	for name := range m.Files.(fstest.MapFS) {
		if strings.HasPrefix(name, "var/lib/hyperkube/") {
			delete(m.Files.(fstest.MapFS), name)
		}
	}
	m.Network.Links = m.Network.Links[:2]
	if report := Run(t.Context(), m); len(report.Findings) > 0 {
		t.Errorf("%+v", report.Findings)
	}
}

// fault is a fault of a machine and what the checks must find.
type fault struct {
	name string
	// breaks causes the fault in a healthy machine.
	breaks func(t *testing.T, m *Machine)
	// check is the name of the check that finds it. No other check may find anything.
	check    string
	severity Severity
	// cause and fix are parts of the texts.
	cause, fix string
}

// stop stops the cluster of a machine.
func stop(m *Machine) { m.Cluster.MainPID, m.Cluster.RuntimePID = 0, 0 }

// problem makes the preflight checks of a machine fail.
func problem(check, cause string) func(*testing.T, *Machine) {
	return func(_ *testing.T, m *Machine) {
		m.Probes.Requirements = func() []preflight.Problem { return []preflight.Problem{preflight.NewProblem(check, errors.New(cause))} }
	}
}

// write sets the content of a file of a machine.
func write(name, text string) func(*testing.T, *Machine) {
	return func(_ *testing.T, m *Machine) { m.set(name, text) }
}

// faults are found in machines that exist only in memory. TestBrokenMachines causes other faults, and some of these,
// really.
var faults = []fault{
	{"old kernel", func(_ *testing.T, m *Machine) {
		m.set("/proc/sys/kernel/osrelease", "4.19.0-26-amd64")
		m.set("/lib/modules/4.19.0-26-amd64/modules.dep", "")
	}, "kernel-version", Error, "Linux 4.19.0-26-amd64 is older than 5.10", "install a newer kernel"},
	{"kernel upgraded without reboot", func(_ *testing.T, m *Machine) {
		delete(m.Files.(fstest.MapFS), "lib/modules/6.1.0-18-amd64/modules.dep")
		m.set("/lib/modules/6.1.0-20-amd64/modules.dep", "")
	}, "kernel-modules", Warning, "only the modules of 6.1.0-20-amd64", "reboot"},
	{"no bridges", func(_ *testing.T, m *Machine) {
		m.Probes.Links = func() (map[string]error, error) { return map[string]error{"bridge": unix.EOPNOTSUPP}, nil }
	}, "kernel-links", Error, "cannot create links of the type bridge", "modprobe bridge"},
	{"no tunnels", func(_ *testing.T, m *Machine) {
		m.Probes.Links = func() (map[string]error, error) { return map[string]error{"vxlan": unix.EOPNOTSUPP}, nil }
	}, "kernel-links", Warning, "vxlan", "modprobe vxlan"},
	{"no namespaces", func(_ *testing.T, m *Machine) {
		m.Probes.Links = func() (map[string]error, error) { return nil, unix.EPERM }
	}, "kernel-links", Error, "network namespace", "--privileged"},
	{"no table nat", func(_ *testing.T, m *Machine) {
		m.Probes.Rules = func(context.Context, packetfilter.Family) (string, error) {
			return "", errors.New("Table does not exist")
		}
	}, "kernel-packet-filter", Error, "Table does not exist", "modprobe"},
	{"no conntrack", func(_ *testing.T, m *Machine) {
		delete(m.Files.(fstest.MapFS), "proc/sys/net/netfilter/nf_conntrack_max")
	}, "kernel-conntrack", Error, "does not track connections", "modprobe nf_conntrack"},
	{"too many connections", write("/proc/sys/net/netfilter/nf_conntrack_count", "262000"), "kernel-conntrack", Error, "tracks 262000 connections", "nf_conntrack_max=1048576"},
	{"no br_netfilter", func(_ *testing.T, m *Machine) {
		delete(m.Files.(fstest.MapFS), "proc/sys/net/bridge/bridge-nf-call-iptables")
	}, "kernel-bridge-filter", Error, "br_netfilter is not loaded", "modprobe br_netfilter"},
	{"no apparmor_parser", func(_ *testing.T, m *Machine) { delete(m.Files.(fstest.MapFS), "usr/sbin/apparmor_parser") }, "apparmor", Warning, "apparmor_parser is not installed", "install the package apparmor"},

	{"memory controller disabled", func(t *testing.T, m *Machine) {
		m.set("/proc/self/mountinfo", "30 22 0:26 / "+unified(t, "cpu cpuset pids")+" rw - cgroup2 cgroup2 rw\n")
		m.set("/proc/cgroups", "#subsys_name\thierarchy\tnum_cgroups\tenabled\nmemory\t0\t1\t0\n")
	}, "cgroup-controllers", Error, "memory is disabled in the kernel", "cgroup_enable=memory"},
	{"pids not delegated", func(t *testing.T, m *Machine) {
		m.set("/proc/self/mountinfo", "30 22 0:26 / "+unified(t, "cpu cpuset memory")+" rw - cgroup2 cgroup2 rw\n")
	}, "cgroup-controllers", Error, "pids is not delegated", "Delegate=yes"},
	{"read-only cgroups", func(t *testing.T, m *Machine) {
		m.set("/proc/self/mountinfo", "30 22 0:26 / "+unified(t, "cpu cpuset memory pids")+" ro,nosuid - cgroup2 cgroup2 rw\n")
	}, "cgroup-hierarchy", Error, "is mounted read-only", "remount,rw"},

	{"forwarding disabled by a file", write("/etc/sysctl.d/99-hardening.conf", "# none\nnet.ipv4.ip_forward = 0\n"), "ip-forward-files", Warning, "99-hardening.conf sets net.ipv4.ip_forward to 0", "remove the line"},
	{"strict reverse path filter", func(_ *testing.T, m *Machine) {
		m.Network.Links = append(m.Network.Links, Link{Name: "hk-vxlan", Type: "vxlan", MTU: 1450})
		m.set("/proc/sys/net/ipv4/conf/all/rp_filter", "1")
	}, "rp-filter", Warning, "strict reverse paths", "rp_filter=2"},
	{"inotify exhausted", func(_ *testing.T, m *Machine) { m.Probes.Inotify = func() error { return unix.EMFILE } }, "inotify", Error, "no inotify instance can be created", "max_user_instances=8192"},
	{"files exhausted", write("/proc/sys/fs/file-nr", "95000\t0\t100000"), "open-files", Error, "95000 files are open", "fs.file-max"},
	{"threads exhausted", func(_ *testing.T, m *Machine) {
		m.set("/proc/loadavg", "9 9 9 5/32000 4711")
		m.set("/proc/sys/kernel/pid_max", "32768")
	}, "threads", Error, "32000 threads run", "kernel.pid_max=131072"},

	{"nearly full disk", func(_ *testing.T, m *Machine) {
		m.Probes.Disk = func(string) (Disk, error) { return Disk{Size: 100 << 30, Free: 1 << 30}, nil }
	}, "disk-eviction", Warning, "has only 1024 of 102400 MiB free", "du -xhd2"},

	{"clock in 1970", func(_ *testing.T, m *Machine) { m.Now = time.Unix(100, 0) }, "clock", Error, "the clock shows 1970-01-01", "timedatectl set-ntp true"},
	{"clock in 2035", func(_ *testing.T, m *Machine) { m.Now = time.Date(2035, 5, 1, 0, 0, 0, 0, time.UTC) }, "clock", Error, "the clock shows 2035-05-01", "timedatectl set-ntp true"},
	{"clock before the creation of the cluster", func(_ *testing.T, m *Machine) { m.file(clusterconfig.File(m.Layout)).ModTime = now.AddDate(0, 1, 0) }, "clock", Error, "was created on 2027-04-01", "date -s"},
	{"clock not synchronized", func(_ *testing.T, m *Machine) {
		m.Cluster.Joined = true
		m.Probes.ClockSynced = func() (bool, error) { return false, nil }
	}, "clock-sync", Warning, "not synchronized", "chrony"},

	{"tunnel too large", func(_ *testing.T, m *Machine) {
		m.Network.Links = append(m.Network.Links, Link{Name: "hk-vxlan", Type: "vxlan", MTU: 1500})
	}, "mtu", Error, "do not fit into those of eth0", "mtu 1450"},
	{"VPN with the range of pods", func(_ *testing.T, m *Machine) {
		m.Network.Links = append(m.Network.Links, Link{Name: "tun0", MTU: 1400})
		m.Network.Routes = append(m.Network.Routes, Route{Dst: netip.MustParsePrefix("10.0.0.0/8"), Link: "tun0"})
	}, "address-ranges", Error, "10.0.0.0/8 through tun0", "disconnect"},
	{"upstream does not answer", func(_ *testing.T, m *Machine) {
		m.Probes.Resolve = func(_ context.Context, server netip.AddrPort, _ string) error {
			if server.Addr().String() == "192.0.2.53" {
				return context.DeadlineExceeded
			}
			return nil
		}
	}, "dns-upstream", Warning, "(192.0.2.53) answers", "nslookup"},
	{"cluster DNS does not answer", func(_ *testing.T, m *Machine) {
		m.Probes.Resolve = func(_ context.Context, server netip.AddrPort, _ string) error {
			if server.Addr().String() == "10.96.0.10" {
				return context.DeadlineExceeded
			}
			return nil
		}
	}, "dns-cluster", Error, "does not answer at 10.96.0.10", "k8s-app=kube-dns"},

	{"unit of another cluster", write("/etc/systemd/system/multi-user.target.wants/k3s.service", ""), "other-cluster-units", Warning, "unit k3s starts another", "systemctl disable --now k3s"},
	{"OpenRC service of another cluster", func(t *testing.T, m *Machine) {
		write("/run/openrc/softlevel", "default\n")(t, m)
		write("/etc/runlevels/default/k3s", "")(t, m)
	}, "other-cluster-units", Warning, "OpenRC service k3s starts another", "rc-service k3s stop; rc-update del k3s"},
	{"link of another cluster", func(_ *testing.T, m *Machine) {
		m.Network.Links = append(m.Network.Links, Link{Name: "cali12345"})
	}, "other-cluster-network", Warning, "cali12345", "ip link delete cali12345"},
	{"plugin of another cluster", write("/etc/cni/net.d/10-flannel.conflist", `{"plugins":[{"type":"flannel"}]}`), "cni-plugins", Error, "CNI plugin flannel, which is not installed", "rm /etc/cni/net.d/10-flannel.conflist"},

	{"etcd without a leader", func(_ *testing.T, m *Machine) {
		m.Probes.Etcd = func(context.Context) (EtcdStatus, error) { return EtcdStatus{Members: 3}, nil }
	}, "etcd-health", Error, "too few of its 3 members", "snapshot restore"},
	{"etcd member missing", func(_ *testing.T, m *Machine) {
		m.Probes.Etcd = func(context.Context) (EtcdStatus, error) {
			return EtcdStatus{HasLeader: true, Members: 3, Unreachable: []string{"m2"}}, nil
		}
	}, "etcd-health", Warning, "member m2 does not answer", "member remove"},
	{"etcd full", func(_ *testing.T, m *Machine) {
		m.Probes.Etcd = func(context.Context) (EtcdStatus, error) {
			return EtcdStatus{HasLeader: true, Members: 1, Alarms: []string{"NOSPACE"}, Size: 2 << 30}, nil
		}
	}, "etcd-health", Error, "database is full (2048 MiB)", "delete events"},
	{"slow disk", func(_ *testing.T, m *Machine) {
		m.Probes.Sync = func(context.Context, string) (time.Duration, error) { return 700 * time.Millisecond, nil }
	}, "etcd-disk", Warning, "took up to 700ms", "faster disk"},
	{"damaged etcd data", func(_ *testing.T, m *Machine) {
		stop(m)
		m.set(m.Layout.Etcd()+"/member/snap/db", "")
		m.Probes.EtcdData = func() (EtcdData, error) { return EtcdData{Damage: errors.New("the database is damaged")}, nil }
	}, "etcd-data", Error, "the database is damaged", "snapshot restore"},

	{"no runtime", func(_ *testing.T, m *Machine) { m.Cluster.RuntimePID = 0 }, "processes", Error, "container runtime does not run", "hyperkube stop"},
	{"stopped with pods", func(_ *testing.T, m *Machine) { m.Cluster.MainPID = 0 }, "processes", Warning, "its pods still run", "hyperkube up"},
	{"node not ready", func(_ *testing.T, m *Machine) {
		m.Probes.API = func(context.Context) (APIStatus, error) { return APIStatus{NotReady: []string{"n: no network"}}, nil }
	}, "api-server", Error, "node n is not ready, so no pods start there: no network", "describe node n"},
	{"no API server", func(_ *testing.T, m *Machine) {
		m.Probes.API = func(context.Context) (APIStatus, error) { return APIStatus{}, errors.New("connection refused") }
	}, "api-server", Error, "connection refused", "hyperkube status"},

	{"firewalld", func(_ *testing.T, m *Machine) {
		m.set("/proc/77/comm", "firewalld\n")
		m.Probes.Connect = func(_ context.Context, targets []Target) ([]Connection, error) {
			return slices.Repeat([]Connection{{FromPod: unix.EHOSTUNREACH}}, len(targets))[:1], nil
		}
	}, "firewall", Error, "a firewall rejects packets from pods to the API server through its Service (10.96.0.1:443)", "firewall-cmd --permanent --zone=trusted --add-source=10.244.0.0/16"},
	{"ufw", func(_ *testing.T, m *Machine) {
		m.set("/etc/ufw/ufw.conf", "ENABLED=yes\n")
		m.Probes.Connect = func(context.Context, []Target) ([]Connection, error) {
			return []Connection{{}, {FromPod: context.DeadlineExceeded}}, nil
		}
	}, "firewall", Error, "a firewall drops packets from pods to the kubelet of this node", "ufw allow from 10.244.0.0/16"},

	{"layers of a pulled image missing", func(_ *testing.T, m *Machine) {
		delete(m.Files.(fstest.MapFS), rel(m.Layout.Runtime()+"/layers/l1/fs/bin"))
	}, "images", Warning, "1 layers of the image app:v1", "image pull app:v1"},
	{"layers of an imported image missing", func(_ *testing.T, m *Machine) {
		m.set(m.Layout.Runtime()+"/images/b.json", `{"id":"sha256:b","tags":["own:v1"],"layers":["l2"],"pinned":true}`)
	}, "images", Error, "imported image own:v1", "image import"},
	{"damaged image record", write("/var/lib/hyperkube/runtime/images/c.json", "{"), "images", Warning, "c.json", "rm "},
	{"cgroup of a deleted pod", func(t *testing.T, m *Machine) {
		dir := unified(t, "cpu cpuset memory pids")
		m.set("/proc/self/mountinfo", "30 22 0:26 / "+dir+" rw - cgroup2 cgroup2 rw\n")
		m.set(dir+"/kubepods/burstable/poddead/cgroup.procs", "")
		m.set(dir+"/kubepods/burstable/pod"+podUID+"/cgroup.procs", "")
	}, "leaked-cgroups", Warning, "kubepods/burstable/poddead belongs to a pod that does not exist", "rmdir"},
	{"rules of a deleted cluster", func(_ *testing.T, m *Machine) {
		stop(m)
		delete(m.Files.(fstest.MapFS), rel(m.Layout.Journal("node")))
		m.Network.Links = m.Network.Links[:2]
		m.Probes.Rules = func(_ context.Context, family packetfilter.Family) (string, error) {
			if family == packetfilter.IPv6 {
				return "", nil
			}
			return "*filter\n:INPUT ACCEPT [0:0]\n:HK-FORWARD - [0:0]\n:KUBE-SERVICES - [0:0]\nCOMMIT\n", nil
		}
	}, "leaked-rules", Warning, "2 packet filter chains for IPv4", "iptables-restore"},
	{"nftables rules of a deleted cluster", func(_ *testing.T, m *Machine) {
		stop(m)
		delete(m.Files.(fstest.MapFS), rel(m.Layout.Journal("node")))
		m.Network.Links = m.Network.Links[:2]
		m.Probes.NFTables = func(_ context.Context, family packetfilter.Family) (int, error) {
			if family == packetfilter.IPv4 {
				return 0, nil
			}
			return 7, nil
		}
	}, "leaked-rules", Warning, "7 chains of nftables for IPv6", "nft delete table ip6 hyperkube"},
	{"failed requirement", problem("Mem", "the system RAM (128 MiB) is less than the minimum 256 MiB"), "memory", Error, "128 MiB", ""},
}

func TestFaults(t *testing.T) {
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			m := healthy(t)
			f.breaks(t, m)
			f.expect(t, Run(t.Context(), m))
		})
	}
}

// expect checks that the report contains the finding and none of another check.
func (f *fault) expect(t *testing.T, report *Report) {
	t.Helper()
	found := false
	for _, got := range report.Findings {
		if got.Check != f.check {
			t.Errorf("also found: %+v", got)
			continue
		}
		found = found || got.Severity == f.severity && strings.Contains(got.Cause, f.cause) && strings.Contains(got.Fix, f.fix)
	}
	if !found {
		t.Errorf("the check %s has found %+v, want %s, %q, %q", f.check, report.Findings, f.severity, f.cause, f.fix)
	}
}

// TestCheckNames checks that the names of checks are unique, because scripts use them.
func TestCheckNames(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range all() {
		if seen[c.name] || c.name == "" || strings.ToLower(c.name) != c.name || strings.Contains(c.name, " ") {
			t.Errorf("name %q", c.name)
		}
		seen[c.name] = true
	}
}

// TestTimeout checks that a check that hangs becomes a warning and does not delay the others.
func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan bool)
		began := time.Now()
		report := run(t.Context(), &Machine{}, []check{
			{"fast", func(context.Context, *Machine, *outcome) {}},
			{"hangs", func(context.Context, *Machine, *outcome) { <-end }},
			{"obeys", func(ctx context.Context, _ *Machine, o *outcome) { <-ctx.Done(); o.skip("canceled") }},
		})
		close(end)
		if took := time.Since(began); took > 5*time.Second || report.Warnings != 1 || report.Findings[0].Check != "hangs" || !slices.Equal(report.Passed, []string{"fast"}) || len(report.Skipped) != 1 {
			t.Errorf("after %s: %+v", took, report)
		}
	})
}

func TestPrint(t *testing.T) {
	r := newReport([]check{{name: "a"}, {name: "b"}, {name: "c"}, {name: "d"}}, []*outcome{
		{findings: []Finding{{Severity: Warning, Cause: "slow", Fix: "wait"}}}, {findings: []Finding{{Severity: Error, Cause: "broken", Fix: "run `fix`"}}}, {}, {reason: "no cluster"},
	})
	for verbose, want := range map[bool]string{
		false: "RESULT   CHECK  CAUSE AND FIX\nerror    b      broken\n                Fix: run `fix`\nwarning  a      slow\n                Fix: wait\n",
		true:  "RESULT   CHECK  CAUSE AND FIX\nerror    b      broken\n                Fix: run `fix`\nwarning  a      slow\n                Fix: wait\nskipped  d      no cluster\npassed   c\n",
	} {
		var out bytes.Buffer
		if err := r.print(&out, verbose); err != nil || out.String() != want {
			t.Errorf("verbose %v: %v\n%s", verbose, err, out.String())
		}
	}
	if err := r.err(); command.ExitCode(err) != 2 || err.Error() != "1 error and 1 warning found" {
		t.Errorf("%v, exit code %d", err, command.ExitCode(err))
	}
	r.Errors = 0
	if err := r.err(); command.ExitCode(err) != 1 {
		t.Errorf("%v, exit code %d", err, command.ExitCode(err))
	}
}
