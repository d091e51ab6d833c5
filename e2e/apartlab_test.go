package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"hyperkube/internal/credentials/kubeconfig"
	"hyperkube/internal/credentials/pki"
)

// The cluster of TestApart has a dedicated network namespace, because it uses the default ports.
const (
	apartNode   = "apart"
	apartPrefix = "apart" // prefix of the host's end of the link into the namespace
)

// What concurrent runs with APART_ONLY must not share.
var (
	apartLink   = apartPrefix + strconv.Itoa(os.Getpid())
	apartHost   = fmt.Sprintf("198.18.%d.1", 128+os.Getpid()%128)
	apartIP     = fmt.Sprintf("198.18.%d.2", 128+os.Getpid()%128)
	apartCgroup = "/hyperkube-e2e-" + apartLink
)

// apart is a cluster whose components are separate processes. Each is started through a symlink and
// has a separate kubeconfig and certificate.
type apart struct {
	*space
	home      string // the node's --root
	namespace string // path of the network namespace
	pki       *pki.Set
	running   map[string]*process
}

// process is one component.
type process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed after the process has exited
	err  error         // result of the process, valid once done is closed
}

// in returns a copy of a for a subtest.
func (a *apart) in(t *testing.T) *apart {
	sub := *a
	s := *a.space
	s.T = t
	sub.space = &s
	return &sub
}

// newApart creates the namespace, links, certificates and kubeconfigs, and removes everything at
// the end of the test.
func newApart(t *testing.T) *apart {
	t.Helper()
	binary := os.Getenv("HYPERKUBE_E2E")
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	t.Cleanup(cancel)
	// Not t.TempDir, because socket paths must be short.
	dir, err := os.MkdirTemp("", "apart-")
	if err != nil {
		t.Fatal(err)
	}
	// In practice, the node's directory is often a symlink to another disk.
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "disk"), 0o755), os.Symlink("disk", filepath.Join(dir, "node"))); err != nil {
		t.Fatal(err)
	}
	a := &apart{
		space: &space{T: t, name: "default", ctx: ctx, cluster: &cluster{
			binary: binary, dir: dir, kubeconfig: filepath.Join(dir, "admin.kubeconfig"),
			kubectl: filepath.Join(dir, "bin", "kubectl"),
		}},
		home: filepath.Join(dir, "node"), running: map[string]*process{},
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	a.makeNamespace()
	a.link()
	a.certify()
	return a
}

// makeNamespace creates a network namespace that exists as long as a process, and a link to it. It
// checks at the end that nothing of the node remains in it.
func (a *apart) makeNamespace() {
	holder := exec.Command("unshare", "--net", "sleep", "infinity")
	if err := holder.Start(); err != nil {
		a.Fatal(err)
	}
	a.Cleanup(func() {
		_ = exec.Command("ip", "link", "del", apartLink).Run()
		_ = holder.Process.Kill()
		_ = holder.Wait()
	})
	a.namespace = fmt.Sprintf("/proc/%d/ns/net", holder.Process.Pid)
	if err := errors.Join(os.WriteFile(holderFile(a.dir), []byte(strconv.Itoa(holder.Process.Pid)), 0o600),
		current.uses(a.home, ""), current.uses("", apartCgroup)); err != nil {
		a.Fatal(err)
	}
	// Not that of /proc/self: its main thread may have entered another namespace for onThread, and does not exit then.
	own, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		a.Fatal(err)
	}
	a.eventually(10*time.Second, func() error {
		if theirs, err := os.Readlink(a.namespace); err != nil || theirs == own {
			return fmt.Errorf("no namespace yet: %w", err)
		}
		return nil
	})
	a.host("ip", "link", "add", apartLink, "type", "veth", "peer", "name", "eth0", "netns", fmt.Sprint(holder.Process.Pid))
	a.host("ip", "addr", "add", apartHost+"/30", "dev", apartLink)
	a.host("ip", "link", "set", apartLink, "up")
	a.inside("ip", "link", "set", "lo", "up")
	a.inside("ip", "addr", "add", apartIP+"/30", "dev", "eth0")
	a.inside("ip", "link", "set", "eth0", "up")
	a.inside("ip", "route", "add", "default", "via", apartHost)
	before := a.changes()
	a.Cleanup(func() {
		a.stopAll()
		if a.Failed() {
			a.printLogs()
		}
		// reset must not change the kubeconfig of the shared cluster.
		reset := a.command(a.binary, "reset", "--root="+a.home)
		reset.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(a.dir, "user.kubeconfig"))
		if out, err := reset.CombinedOutput(); err != nil {
			a.Errorf("reset: %v: %s", err, out)
		}
		if diff := before.diff(a.changes()); diff != "" {
			a.Errorf("after reset:\n%s", diff)
		}
	})
}

// changes returns the host resources that the node changes.
func (a *apart) changes() host {
	h := host{}
	for name, command := range map[string][]string{
		"links": {"ip", "-o", "link"}, "routes": {"ip", "-4", "route", "show", "table", "all"}, "addresses": {"ip", "-o", "-4", "addr"},
		"iptables": {"iptables-save"}, "ip6tables": {"ip6tables-save"},
	} {
		for line := range strings.SplitSeq(a.inside(command[0], command[1:]...), "\n") {
			if line = steady(name, line); name == "links" {
				// Link states change independently of the test.
				line, _, _ = strings.Cut(line, "<")
			}
			if line != "" {
				h[name] = append(h[name], line)
			}
		}
	}
	for _, name := range []string{"ipv4.ip_forward", "ipv4.conf.all.route_localnet", "ipv4.conf.all.forwarding", "ipv6.conf.all.forwarding"} {
		h["sysctls"] = append(h["sysctls"], a.inside("sysctl", "net."+name))
	}
	all, err := snapshotHost()
	if err != nil {
		a.Fatal(err)
	}
	// Include only this cluster's other resources, because another cluster runs concurrently.
	for _, name := range []string{"mounts", "cgroups", "processes"} {
		for _, line := range all[name] {
			if strings.Contains(line, a.dir) || strings.Contains(line, apartCgroup) {
				h[name] = append(h[name], line)
			}
		}
	}
	if _, err := os.Stat(a.home); err == nil {
		left, _ := os.ReadDir(a.home)
		for _, entry := range left {
			h["directories"] = append(h["directories"], entry.Name())
		}
	}
	return h
}

// host runs a command on the host that must succeed.
func (a *apart) host(name string, args ...string) string {
	a.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		a.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// command returns a command in the namespace. nsenter executes name in the same process.
func (a *apart) command(name string, args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--net=" + a.namespace, "--", name}, args...)...)
}

func (a *apart) inside(name string, args ...string) string {
	a.Helper()
	out, err := a.command(name, args...).Output()
	if err != nil {
		a.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return string(out)
}

// link creates the symlinks.
func (a *apart) link() {
	if err := os.Mkdir(filepath.Join(a.dir, "bin"), 0o755); err != nil {
		a.Fatal(err)
	}
	for _, name := range []string{
		"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "node", "kubectl",
	} {
		if err := os.Symlink(a.binary, filepath.Join(a.dir, "bin", name)); err != nil {
			a.Fatal(err)
		}
	}
}

// certify creates keys, certificates and kubeconfigs, and the test's API client.
func (a *apart) certify() {
	var err error
	a.pki, err = pki.Ensure(filepath.Join(a.dir, "pki"), pki.Config{
		NodeName: apartNode, NodeAddresses: []net.IP{net.ParseIP(apartIP)}, ServiceAddresses: []net.IP{net.ParseIP("10.53.0.1")},
	})
	if err != nil {
		a.Fatal(err)
	}
	for file, spec := range map[string]pki.Spec{
		"admin": pki.Client("kubernetes-admin", "system:masters"), "kube-controller-manager": pki.Client("system:kube-controller-manager"),
		"kube-scheduler": pki.Client("system:kube-scheduler"), "kubelet": pki.Node(apartNode), "kube-proxy": pki.Client("system:kube-proxy"),
	} {
		pair, err := a.pki.CA.NewPair(spec)
		if err != nil {
			a.Fatal(err)
		}
		server := "https://127.0.0.1:6443"
		if file == "admin" {
			server = "https://" + apartIP + ":6443"
		}
		err = kubeconfig.Write(a.config(file), kubeconfig.Config{
			Name: "apart", User: file, Server: server, CA: a.pki.CA.CertPEM, Cert: pair.CertPEM, Key: pair.KeyPEM,
		})
		if err != nil {
			a.Fatal(err)
		}
	}
	if _, err := a.pki.CA.EnsurePair(a.path("pki", "kubelet"), pki.KubeletServer(apartNode, apartIP)); err != nil {
		a.Fatal(err)
	}
	rest, err := clientcmd.BuildConfigFromFlags("", a.kubeconfig)
	if err != nil {
		a.Fatal(err)
	}
	rest.QPS = -1
	if a.kube, err = kubernetes.NewForConfig(rest); err != nil {
		a.Fatal(err)
	}
}

// path returns the path of a file of the test.
func (a *apart) path(parts ...string) string {
	return filepath.Join(append([]string{a.dir}, parts...)...)
}

// config returns the path of a component's kubeconfig.
func (a *apart) config(name string) string { return a.path(name + ".kubeconfig") }

// start starts a component through its symlink.
func (a *apart) start(name string, args ...string) {
	a.Helper()
	p := &process{cmd: a.command(a.path("bin", name), args...), log: a.path(name + ".log"), done: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		a.Fatal(err)
	}
	defer log.Close()
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		a.Fatal(err)
	}
	a.running[name] = p
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
}

// stop stops a component with SIGTERM. It must exit without an error.
func (a *apart) stop(name string) {
	a.Helper()
	p := a.running[name]
	delete(a.running, name)
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		if p.err != nil {
			a.Errorf("%s exited: %v", name, p.err)
		}
	case <-time.After(minTimeout):
		a.Errorf("%s does not exit", name)
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// stopAll stops all running components. Those that depend on others are stopped first.
func (a *apart) stopAll() {
	for _, name := range []string{
		"node", "kubelet", "kube-proxy", "kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd",
	} {
		if a.running[name] != nil {
			a.stop(name)
		}
	}
}

// alive fails if a component has exited unexpectedly.
func (a *apart) alive() {
	a.Helper()
	for name, p := range a.running {
		select {
		case <-p.done:
			a.Errorf("%s has exited: %v", name, p.err)
		default:
		}
	}
}

func (a *apart) printLogs() {
	logs, _ := filepath.Glob(a.path("*.log"))
	for _, path := range append(logs, filepath.Join(a.home, "var/lib/hyperkube/logs/runtime.log")) {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		var lines []string
		for line := range strings.SplitSeq(string(data), "\n") {
			if !strings.Contains(line, "Mutation detector is enabled") {
				lines = append(lines, line)
			}
		}
		fmt.Printf("--- %s\n%s\n", filepath.Base(path), strings.Join(lines[max(0, len(lines)-50):], "\n"))
	}
}
