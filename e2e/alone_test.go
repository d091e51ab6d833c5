package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hyperkube/internal/base/version"
	"hyperkube/internal/testing/testwait"
)

// alone is an isolated machine with only a loopback interface: a network and a mount namespace that
// exist as long as a process.
type alone struct {
	t      *testing.T
	ctx    context.Context
	binary string
	dir    string
	holder int
	pids   bool // whether it also has a PID namespace
	// whether its cluster does not detect changes of shared resources, which needs increasing
	// amounts of memory
	frugal bool
}

func newAlone(t *testing.T) *alone {
	t.Helper()
	if os.Getenv("HYPERKUBE_E2E") == "" {
		t.Skip("needs a program to test")
	}
	ctx, cancel := context.WithTimeout(context.Background(), max(10*time.Minute, testwait.Scale(2*time.Minute)))
	t.Cleanup(cancel)
	dir, err := os.MkdirTemp("", "alone-") // socket paths must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	// The process prints a line when it is in its namespaces.
	holder := exec.Command("unshare", "--net", "--mount", "sh", "-c", "ip link set lo up && echo here && exec sleep infinity")
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = holder.Process.Kill()
		_ = holder.Wait()
	})
	if _, err := out.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(holderFile(dir), []byte(strconv.Itoa(holder.Process.Pid)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := current.uses(filepath.Join(dir, "r"), ""); err != nil {
		t.Fatal(err)
	}
	return &alone{t: t, ctx: ctx, binary: os.Getenv("HYPERKUBE_E2E"), dir: dir, holder: holder.Process.Pid}
}

// command returns a command that runs in the namespaces.
func (a *alone) command(name string, args ...string) *exec.Cmd {
	in := fmt.Sprintf("/proc/%d/ns/", a.holder)
	words := []string{"--net=" + in + "net", "--mount=" + in + "mnt"}
	if a.pids {
		words = append(words, "--pid="+in+"pid_for_children")
	}
	cmd := exec.CommandContext(a.ctx, "nsenter", append(append(words, name), args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(a.dir, "kubeconfig"))
	if a.frugal {
		cmd.Env = append(cmd.Env, "KUBE_CACHE_MUTATION_DETECTOR=false")
	}
	return cmd
}

func (a *alone) hyperkube(args ...string) string {
	a.t.Helper()
	out, err := a.command(a.binary, args...).CombinedOutput()
	if err != nil {
		a.t.Fatalf("hyperkube %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// kubectl runs kubectl and returns its output.
func (a *alone) kubectl(args ...string) string {
	a.t.Helper()
	return a.hyperkube(append([]string{"kubectl"}, args...)...)
}

// apply applies a manifest. IMAGE in the manifest is replaced by the built-in image.
func (a *alone) apply(manifest string) {
	a.t.Helper()
	cmd := a.command(a.binary, "kubectl", "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(strings.ReplaceAll(manifest, "IMAGE", version.Image()))
	if out, err := cmd.CombinedOutput(); err != nil {
		a.t.Fatalf("apply: %v\n%s", err, out)
	}
}

// read decodes the output of kubectl get with these arguments.
func (a *alone) read(into any, words ...string) {
	a.t.Helper()
	out := a.kubectl(append([]string{"get", "-o", "json"}, words...)...)
	if err := json.Unmarshal([]byte(out), into); err != nil {
		a.t.Fatalf("%s: %v", strings.Join(words, " "), err)
	}
}

// sh runs a shell script in the namespaces.
func (a *alone) sh(script string) string {
	a.t.Helper()
	out, err := a.command("sh", "-c", script).CombinedOutput()
	if err != nil {
		a.t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

// eventually calls f until it returns nil, like space.eventually.
func (a *alone) eventually(within time.Duration, f func() error) {
	a.t.Helper()
	(&space{T: a.t}).eventually(within, f)
}

// network returns all links, addresses, routes and iptables rules.
func (a *alone) network() string {
	a.t.Helper()
	var all strings.Builder
	for _, words := range []string{"ip -o link", "ip -o -4 addr", "ip route show table all", "iptables-save"} {
		out, err := a.command("sh", "-c", words).Output()
		if err != nil {
			a.t.Fatalf("%s: %v", words, err)
		}
		for line := range strings.SplitSeq(string(out), "\n") {
			if line = steady(map[bool]string{true: "iptables"}[words == "iptables-save"], line); line != "" && !strings.Contains(line, "local 127.") && !strings.Contains(line, "multicast") {
				all.WriteString(line + "\n")
			}
		}
	}
	return all.String()
}

// TestAlone runs a cluster on a machine without any routes, in the foreground like under a service
// manager, and then runs reset twice concurrently.
func TestAlone(t *testing.T) {
	a := newAlone(t)
	root := filepath.Join(a.dir, "r")
	before := a.network()
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(a.dir, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	hears := func(want string) {
		t.Helper()
		if err := socket.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 64)
		if n, err := socket.Read(got); err != nil || string(got[:n]) != want {
			t.Fatalf("notifications to the service manager: %q, %v; want %q", got[:n], err, want)
		}
	}
	up := a.command(a.binary, "up", "--foreground", "--root", root)
	up.Env = append(up.Env, "NOTIFY_SOCKET="+filepath.Join(a.dir, "notify"))
	var said strings.Builder
	up.Stdout = &said
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = up.Process.Kill()
		_ = a.command(a.binary, "reset", "--root", root).Run()
	})
	hears("READY=1")
	if out := a.hyperkube("kubectl", "get", "node", "-o", "wide"); !strings.Contains(out, "10.244.0.1") {
		t.Errorf("the node has no address on the bridge:\n%s", out)
	}
	// The host can access a ClusterIP, and a pod the API server.
	if out, err := a.command("sh", "-c", "curl -sk --max-time 60 https://10.96.0.1/version || wget -qO- --no-check-certificate https://10.96.0.1/version").CombinedOutput(); err != nil || !strings.Contains(string(out), "gitVersion") {
		t.Errorf("the API by its ClusterIP: %v\n%s", err, out)
	}
	if err := up.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	hears("STOPPING=1")
	if err := up.Wait(); err != nil {
		t.Errorf("up in the foreground exited with %v\n%s", err, said.String())
	}
	// Start again while pods, links and routes still exist.
	if out := a.hyperkube("up", "--root", root); !strings.Contains(out, "is ready after") {
		t.Errorf("repeated up printed\n%s", out)
	}
	var resets sync.WaitGroup
	for range 2 {
		resets.Go(func() {
			if out, err := a.command(a.binary, "reset", "--root", root).CombinedOutput(); err != nil {
				t.Errorf("one of two concurrent resets: %v\n%s", err, out)
			}
		})
	}
	resets.Wait()
	if left, err := os.ReadDir(root); err != nil || len(left) > 0 {
		t.Errorf("after two resets, files %v remain, %v", left, err)
	}
	if after := a.network(); after != before {
		t.Errorf("the network is not as before:\n%s\nnow\n%s", before, after)
	}
}

// TestPreflightDisk checks the preflight errors for unsuitable disks.
func TestPreflightDisk(t *testing.T) {
	a := newAlone(t)
	mount := func(name string, args ...string) string {
		t.Helper()
		dir := filepath.Join(a.dir, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if out, err := a.command("mount", append(args, dir)...).CombinedOutput(); err != nil {
			t.Fatalf("mounting: %v\n%s", err, out)
		}
		return dir
	}
	for _, sub := range []string{"lower", "upper", "work"} {
		if err := os.Mkdir(filepath.Join(a.dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	options := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", a.dir)
	for _, c := range []struct{ name, root, want string }{
		{"full", mount("small", "-t", "tmpfs", "-o", "size=8m", "small"), "MiB of free disk space, at least 512 MiB are required"},
		{"overlay on an overlay", mount("overlay", "-t", "overlay", "-o", options, "overlay"), "does not support overlayfs"},
		{"read-only", mount("ro", "-t", "tmpfs", "-o", "ro", "ro"), "read-only"},
	} {
		out, err := a.command(a.binary, "up", "--root", c.root).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: got %v:\n%s", c.name, err, out)
		}
	}
}
