package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"hyperkube/internal/host/layout"
	"hyperkube/internal/testing/testimage"
)

// newChurn starts a cluster with the given number of nodes on an isolated machine, and connects to
// it. args returns the arguments of `up`.
func newChurn(t *testing.T, bound time.Duration, nodes int, args func(*alone) []string) *churn {
	t.Helper()
	a := newAlone(t)
	var cancel context.CancelFunc
	a.ctx, cancel = context.WithTimeout(context.Background(), bound)
	t.Cleanup(cancel)
	c := &churn{alone: a, root: filepath.Join(a.dir, "r")}
	if args != nil {
		c.args = args(a)
	}
	c.nodes = []layout.Node{layout.Under(c.root)}
	for i := 1; i < nodes; i++ {
		c.nodes = append(c.nodes, c.nodes[0].Numbered(i))
	}
	t.Cleanup(func() {
		if t.Failed() {
			(&multiNode{alone: a, root: c.root}).printLogs()
		}
		last := *a
		var cancel context.CancelFunc
		last.ctx, cancel = context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		if out, err := last.command(a.binary, "reset", "--root", c.root).CombinedOutput(); err != nil {
			t.Errorf("reset: %v\n%s", err, out)
		}
	})
	c.up(fmt.Sprintf("--nodes=%d", nodes))
	archive := filepath.Join(a.dir, "busybox.tar")
	if err := testimage.WriteBusybox(archive, busybox); err != nil {
		t.Fatal(err)
	}
	a.hyperkube("image", "import", "--root", c.root, archive)
	rest, err := clientcmd.BuildConfigFromFlags("", filepath.Join(a.dir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	rest.QPS, rest.Dial = -1, c.dial
	rest.Timeout = 30 * time.Second
	if c.kube, err = kubernetes.NewForConfig(rest); err != nil {
		t.Fatal(err)
	}
	list, err := c.kube.CoreV1().Nodes().List(a.ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range list.Items {
		c.names = append(c.names, n.Name)
	}
	slices.SortFunc(c.names, func(a, b string) int { return len(a) - len(b) })
	_, err = c.kube.CoreV1().ConfigMaps("default").Create(a.ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "churn"}, Data: map[string]string{"key": "value"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// up starts the stopped parts of the cluster.
func (c *churn) up(args ...string) {
	c.t.Helper()
	c.hyperkube(slices.Concat([]string{"up", "--root", c.root}, c.args, args)...)
}

// dial opens a connection in the namespace.
func (c *churn) dial(ctx context.Context, network, address string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // not unlocked, so that the thread exits with the goroutine
		fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/net", c.holder), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			done <- result{nil, err}
			return
		}
		defer unix.Close(fd)
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			done <- result{nil, err}
			return
		}
		var d net.Dialer
		conn, err := d.DialContext(ctx, network, address)
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
}

func (c *churn) again(try func() error) {
	c.t.Helper()
	(&space{T: c.t}).eventually(minTimeout, try)
}

// kill kills the processes that v selects, and returns their PIDs.
func (c *churn) kill(v victim) (pids []int) {
	c.t.Helper()
	if v.main {
		pids = append(pids, c.pidFile(c.nodes[v.node].PIDFile("hyperkube")))
	}
	if v.runtime {
		pids = append(pids, c.runtimePID(v.node))
	}
	for _, pid := range pids {
		if pid == 0 {
			c.t.Fatalf("%s: not running", v)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			c.t.Fatal(err)
		}
	}
	return pids
}

func (c *churn) runtimePID(node int) int { return c.pidFile(c.nodes[node].PIDFile("runtime")) }

// pidFile reads a PID, 0 if there is none.
func (c *churn) pidFile(file string) int {
	data, _ := os.ReadFile(file)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(data)))
	return pid
}

// steadyState returns everything that must not change in the steady pods.
func (c *churn) steadyState() string {
	c.t.Helper()
	var out strings.Builder
	c.again(func() error {
		list, err := c.kube.CoreV1().Pods("default").List(c.ctx, metav1.ListOptions{LabelSelector: "churn=steady"})
		if err != nil {
			return err
		}
		out.Reset()
		for _, p := range list.Items {
			for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
				fmt.Fprintf(&out, "%s/%s: %s, %d restarts, %v, ready %t\n", p.Name, s.Name, s.ContainerID, s.RestartCount, s.State, s.Ready)
			}
		}
		return nil
	})
	return out.String()
}

// justStarted reports whether a process started less than 30 seconds ago. On a busy machine, a process
// may be observed between fork and exec.
func justStarted(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	uptime, upErr := os.ReadFile("/proc/uptime")
	if err != nil || upErr != nil {
		return true // it has exited
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	began, err := strconv.ParseFloat(fields[19], 64) // in hundredths of a second since boot
	now, upErr := strconv.ParseFloat(strings.Fields(string(uptime))[0], 64)
	return err == nil && upErr == nil && now-began/100 < 30
}

// checkLogs checks that the steady pods' logs contain every number once.
func (c *churn) checkLogs() {
	c.t.Helper()
	for i, n := range c.nodes {
		files, err := filepath.Glob(filepath.Join(n.PodLogs, fmt.Sprintf("default_steady-%d_*/c/0.log", i+1)))
		if err != nil || len(files) != 1 {
			c.t.Errorf("logs of node %d: %v, %v", i+1, files, err)
			continue
		}
		data, err := os.ReadFile(files[0])
		if err != nil {
			c.t.Error(err)
			continue
		}
		k := 0
		for line := range strings.Lines(string(data)) {
			k++
			if fields := strings.Fields(line); len(fields) != 4 || fields[3] != strconv.Itoa(k) {
				c.t.Errorf("line %d of the log of node %d is %q", k, i+1, line)
				break
			}
		}
		c.t.Logf("node %d: %d lines", i+1, k)
	}
}

// peers matches the peer indexes of links.
var peers = regexp.MustCompile(`@[^:]*`)

// leftovers returns everything of which pods leave traces.
func (c *churn) leftovers() host {
	c.t.Helper()
	h := host{}
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", c.holder))
	if err != nil {
		c.t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		if point := strings.Fields(line)[4]; strings.HasPrefix(point, c.root) {
			h["mounts"] = append(h["mounts"], point)
		}
	}
	cgroups := strings.TrimPrefix(c.nodes[0].CgroupRoot, "/")
	hierarchies, _ := filepath.Glob("/sys/fs/cgroup/*/" + cgroups)
	for _, dir := range append(hierarchies, "/sys/fs/cgroup/"+cgroups) {
		_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() { // a cgroup may disappear meanwhile
				h["cgroups"] = append(h["cgroups"], path)
				data, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
				for pid := range strings.FieldsSeq(string(data)) {
					name, err := os.ReadFile("/proc/" + pid + "/comm")
					if err != nil {
						continue // it has exited
					}
					// Runtimes and kubelets restart, and the processes of probes and of the
					// counter's sleeps are short-lived, also between their fork and exec.
					if strings.HasPrefix(string(name), "runc:[") && justStarted(pid) {
						continue
					}
					if !slices.Contains([]string{"sleep", "true", "test", "sh"}, strings.TrimSpace(string(name))) && !strings.HasPrefix(string(name), "hyperkube") && !strings.HasPrefix(string(name), "exe") {
						h["processes"] = append(h["processes"], pid+" "+string(name))
					}
				}
			}
			return nil
		})
	}
	for i, n := range c.nodes {
		words := []string{"ip", "-o", "link"}
		if i > 0 {
			words = append([]string{"nsenter", "--net=" + filepath.Join(n.Run, "netns")}, words...)
		}
		out, err := c.command(words[0], words[1:]...).Output()
		if err != nil {
			c.t.Fatal(err)
		}
		for line := range strings.Lines(string(out)) {
			if fields := strings.Fields(line); len(fields) > 1 {
				h["links"] = append(h["links"], fmt.Sprintf("node %d %s", i+1, peers.ReplaceAllString(fields[1], "")))
			}
		}
		for _, dir := range []string{
			filepath.Join(n.Runtime(), "sandboxes"), filepath.Join(n.Runtime(), "containers"), filepath.Join(n.RuntimeState(), "sandboxes"),
			filepath.Join(n.RuntimeState(), "containers"), filepath.Join(n.RuntimeState(), "addresses"), filepath.Join(n.RuntimeState(), "libcontainer"),
			filepath.Join(n.Kubelet, "pods"), n.PodLogs, n.ContainerLogs,
		} {
			// Some are tmpfs mounts, which exist only in the machine's mount namespace.
			entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/root%s", c.holder, dir))
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				c.t.Fatal(err)
			}
			for _, e := range entries {
				h["files"] = append(h["files"], filepath.Join(dir, e.Name()))
			}
		}
	}
	for name := range h {
		slices.Sort(h[name])
	}
	return h
}
