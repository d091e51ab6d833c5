//go:build cgo

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/runtimeclient"
	"hyperkube/internal/host/cgroup"
	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/packetfilter"
	"hyperkube/internal/testing/testisolate"
	"hyperkube/internal/testing/testwait"
)

// asRuntime is the environment variable that makes the test binary act as the runtime.
const asRuntime = "HYPERKUBE_TEST_AS_RUNTIME"

// TestMain lets the test binary run in several roles: as the runtime under test, as a program in a container, as the tests in
// private network and mount namespaces, and as the parent that starts the tests.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == doubleName {
		if err := double(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if filepath.Base(os.Args[0]) == probeName {
		probe()
		os.Exit(0)
	}
	if os.Getenv(asRuntime) != "" {
		os.Unsetenv(asRuntime)
		main()
		os.Exit(0)
	}
	if os.Geteuid() != 0 {
		fmt.Println("skipped: the container runtime can only be tested by root")
		os.Exit(0)
	}
	var err error
	if program, err = openProgram(); err != nil {
		fmt.Fprintln(os.Stderr, "opening the program under test:", err)
		os.Exit(1)
	}
	testisolate.Main(m, testisolate.Mounts|testisolate.Network)
}

// node is a runtime under test.
type node struct {
	*runtimeclient.Client
	t      testing.TB
	root   string
	cgroup string
	cmd    *exec.Cmd
	log    string
	extra  []string
}

// newNode starts a runtime in a temporary directory and checks for leaks at the end of the test.
func newNode(t testing.TB, extra ...string) *node {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.MkdirTemp("", "hyperkube-runtime-test-")
	if err != nil {
		t.Fatal(err)
	}
	// Users in pods must be able to traverse it.
	if err := os.Chmod(root, 0o711); err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, root: root, log: filepath.Join(root, "log"), extra: extra,
		cgroup: fmt.Sprintf("/hyperkube-test-%d-%s", os.Getpid(), filepath.Base(root)[len("hyperkube-runtime-test-"):])}
	t.Cleanup(n.finish)
	n.start()
	return n
}

// noCIDR starts the runtime without pod CIDRs.
const noCIDR = "--pod-cidr="

// start starts the program and waits until it serves and the pod network is ready.
func (n *node) start() {
	n.t.Helper()
	log, err := os.OpenFile(n.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		n.t.Fatal(err)
	}
	defer log.Close()
	r, w, err := os.Pipe()
	if err != nil {
		n.t.Fatal(err)
	}
	defer r.Close()
	n.cmd = exec.Command(fmt.Sprintf("/proc/self/fd/%d", program.Fd()), append([]string{
		"--root", n.path("root"), "--state", n.path("state"), "--socket", n.path("cri.sock"), "--cgroup-root", n.cgroup,
		"--journal", n.path("journal"), "--pid-file", n.path("pid"), "--log-level", "debug", "--registry-config", n.path("registries.yaml"),
	}, n.extra...)...)
	n.cmd.Env = append(os.Environ(), asRuntime+"=1", readyEnv+"=3")
	n.cmd.Stdout, n.cmd.Stderr = log, log
	n.cmd.ExtraFiles = []*os.File{w}
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = n.cmd.Start()
	w.Close()
	if err != nil {
		n.t.Fatal(err)
	}
	if word, _ := io.ReadAll(r); string(word) != "ready" {
		_ = n.cmd.Wait()
		text, _ := os.ReadFile(n.log)
		n.t.Fatalf("the runtime did not start: %s\n%s", word, text)
	}
	if n.Client, err = runtimeclient.Dial(n.path("cri.sock")); err != nil {
		n.t.Fatal(err)
	}
	if slices.Contains(n.extra, noCIDR) {
		return
	}
	n.eventually("the pod network", func() bool {
		s, err := n.Status(context.Background(), &runtimeapi.StatusRequest{})
		return err == nil && !slices.ContainsFunc(s.Status.Conditions, func(c *runtimeapi.RuntimeCondition) bool { return !c.Status })
	})
}

// program is the program under test in a sealed memfd, as package launch creates it: the test binary, or
// the program named by HYPERKUBE_TEST_RUNTIME. TestMain opens it, so that it is not reported as a leak.
var program *os.File

// openProgram returns the value of program.
func openProgram() (*os.File, error) {
	path := os.Getenv("HYPERKUBE_TEST_RUNTIME")
	if path == "" {
		path = "/proc/self/exe"
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("runtime", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if err != nil {
		return nil, err
	}
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 64)
	unix.Close(fd)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(high), "runtime")
	if _, err := f.Write(data); err != nil {
		return nil, err
	}
	_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	return f, err
}

// stop sends a signal to the program and waits for its exit.
func (n *node) stop(s syscall.Signal) {
	n.t.Helper()
	n.Client.Close()
	if err := n.cmd.Process.Signal(s); err != nil {
		n.t.Fatal(err)
	}
	err := n.cmd.Wait()
	if s == syscall.SIGTERM && err != nil {
		text, _ := os.ReadFile(n.log)
		n.t.Errorf("the runtime ended with %v:\n%s", err, text)
	}
}

func (n *node) path(parts ...string) string {
	return filepath.Join(append([]string{n.root}, parts...)...)
}

// eventually waits for a condition that has no event.
func (n *node) eventually(what string, ok func() bool) {
	n.t.Helper()
	testwait.Until(n.t, what, ok)
}

// finish removes all pods, stops the runtime, reverts its changes to the host and checks for leaks.
func (n *node) finish() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	list, err := n.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		n.t.Error(err)
	}
	for _, s := range list.GetItems() {
		if _, err := n.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.Id}); err != nil {
			n.t.Error(err)
		}
	}
	// The runtime cleans up asynchronously.
	n.eventually("containers to be tidied up", func() bool {
		entries, _ := os.ReadDir(n.path("state", "libcontainer"))
		return len(entries) == 0
	})
	if n.t.Failed() {
		text, _ := os.ReadFile(n.log)
		n.t.Logf("the runtime's log:\n%s", text)
	}
	n.eventually("files to be closed", func() bool {
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", n.cmd.Process.Pid))
		return err != nil || len(fds) <= 30
	})
	n.stop(syscall.SIGTERM)
	for _, dir := range []string{"state/addresses", "state/containers", "state/sandboxes", "root/containers", "root/sandboxes", "root/images/tmp"} {
		if entries, err := os.ReadDir(n.path(dir)); err != nil || len(entries) != 0 {
			n.t.Errorf("left in %s: %v, %v", dir, entries, err)
		}
	}
	if err := hostjournal.Undo(ctx, n.path("journal"), packetfilter.Undo()); err != nil {
		n.t.Error(err)
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	if strings.Contains(string(mounts), n.root) {
		n.t.Errorf("mounts are left:\n%s", mounts)
	}
	links, _ := netlink.LinkList()
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, "hk") {
			n.t.Errorf("link %s is left", l.Attrs().Name)
		}
	}
	if save, err := exec.Command("iptables-save").Output(); err == nil && bytes.Contains(save, []byte("HK-")) {
		n.t.Errorf("rules are left:\n%s", save)
	}
	groups, err := cgroup.Open()
	if err != nil {
		n.t.Fatal(err)
	}
	// The kubelet would remove the cgroups of the pods.
	pods, _ := groups.Children(n.cgroup + "/pods")
	for _, pod := range pods {
		if children, err := groups.Children(n.cgroup + "/pods/" + pod); err != nil || len(children) != 0 {
			n.t.Errorf("cgroups of %s are left: %v, %v", pod, children, err)
		}
	}
	if groups.Exists(n.cgroup + "/hyperkube-pods") {
		n.t.Error("the default cgroup is left")
	}
	if err := groups.Remove(ctx, n.cgroup); err != nil {
		n.t.Error(err)
	}
	if err := os.RemoveAll(n.root); err != nil {
		n.t.Error(err)
	}
}

// file is a tar entry of a layer.
type file struct {
	name string
	kind byte // tar type; zero means regular file
	mode int64
	data string // content, or link target
	uid  int
}

// layer creates a layer with the given files.
func layer(t testing.TB, files ...file) v1.Layer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Typeflag: f.kind, Mode: f.mode, Uid: f.uid, Gid: f.uid, Format: tar.FormatPAX}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		if f.kind == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(f.data))
		} else {
			h.Linkname = f.data
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := io.WriteString(w, f.data); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// busybox creates an image with the machine's busybox.
func busybox(t testing.TB) v1.Image {
	t.Helper()
	program, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Skip("needs busybox-static:", err)
	}
	files := []file{
		{name: "bin/", kind: tar.TypeDir}, {name: "bin/busybox", data: string(program)},
		{name: "tmp/", kind: tar.TypeDir, mode: 0o1777},
		{name: "etc/", kind: tar.TypeDir},
		{name: "etc/passwd", mode: 0o644, data: "root:x:0:0::/root:/bin/sh\nuser:x:1000:1001::/home/user:/bin/sh\n"},
		{name: "etc/group", mode: 0o644, data: "root:x:0:\nuser:x:1001:\nextra:x:1002:user\n"},
		{name: "gone", data: "covered by a whiteout"},
		{name: "old/", kind: tar.TypeDir}, {name: "old/file", data: "covered"},
	}
	for _, applet := range []string{"sh", "cat", "echo", "sleep", "id", "ls", "stty", "wget", "nc", "httpd", "hostname", "mount", "touch", "mkdir",
		"true", "false", "kill", "dd", "test", "env", "tail", "ps", "grep", "yes", "head", "wc", "ip", "awk", "sort", "tr", "chown", "rm", "seq", "sysctl", "chmod", "unshare"} {
		files = append(files, file{name: "bin/" + applet, kind: tar.TypeSymlink, data: "busybox"})
	}
	image, err := mutate.AppendLayers(empty.Image, layer(t, files...), layer(t,
		file{name: ".wh.gone"}, file{name: "old/", kind: tar.TypeDir}, file{name: "old/.wh..wh..opq"}, file{name: "old/new", data: "new"},
		file{name: "bin/linked", kind: tar.TypeReg, data: "x"}, file{name: "bin/again", kind: tar.TypeLink, data: "bin/linked"}))
	if err != nil {
		t.Fatal(err)
	}
	image, err = mutate.Config(image, v1.Config{Cmd: []string{"sh"}, Env: []string{"FROM=image", "BOTH=image"}, StopSignal: "SIGINT"})
	if err != nil {
		t.Fatal(err)
	}
	image, err = mutate.ConfigFile(image, platform(t, image))
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func platform(t testing.TB, image v1.Image) *v1.ConfigFile {
	t.Helper()
	c, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", goarch
	return c
}

// registryServer starts a registry that runs until the test ends. If user is not empty, it requires
// authentication.
func registryServer(t testing.TB, user, password string) (host string) {
	t.Helper()
	inner := registry.New(registry.Logger(quiet))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, p, _ := r.BasicAuth(); user != "" && (u != user || p != password) {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`, http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func push(t testing.TB, ref string, image v1.Image, user, password string) {
	t.Helper()
	r, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(r, image, remote.WithAuth(&authn.Basic{Username: user, Password: password})); err != nil {
		t.Fatal(err)
	}
}

// archive returns a docker archive of an image.
func archive(t testing.TB, tag string, image v1.Image) []byte {
	t.Helper()
	ref, err := name.NewTag(tag)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := tarball.Write(ref, image, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
