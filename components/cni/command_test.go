package cni

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"
)

// TestMain is the plugin where it is started by that name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == pluginName {
		if run(context.Background()) != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const pluginName = "hyperkube-cni"

// pod is a network namespace, held by a thread that does what it is given.
type pod struct {
	netns string
	do    chan func()
}

func newPod(t *testing.T) *pod {
	t.Helper()
	p := &pod{do: make(chan func())}
	thread := make(chan int)
	go func() {
		// Never unlocked: the thread ends with its namespace.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
		}
		thread <- unix.Gettid()
		for f := range p.do {
			f()
		}
	}()
	p.netns = fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), <-thread)
	t.Cleanup(func() { close(p.do) })
	return p
}

func (p *pod) at(f func()) {
	done := make(chan struct{})
	p.do <- func() { defer close(done); f() }
	<-done
}

// TestPlugin has the library that runtimes use drive the plugin through all that
// the specification knows.
// https://www.cni.dev/docs/spec/
func TestPlugin(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	// The thread is left in its namespace: locked, it ends with the goroutine.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	dir, ctx := t.TempDir(), context.Background()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(dir, pluginName)); err != nil {
		t.Fatal(err)
	}
	runtimeOf := libcni.NewCNIConfigWithCacheDir([]string{dir}, filepath.Join(dir, "cache"), nil)
	list, err := libcni.NetworkConfFromBytes(fmt.Appendf(nil, `{"cniVersion": "1.1.0", "name": "pods", "plugins": [
		{"type": %q, "podCIDRs": ["10.99.0.0/24", "fd00:99::/64"], "root": %q}]}`, pluginName, filepath.Join(dir, "root")))
	if err != nil {
		t.Fatal(err)
	}
	info, err := runtimeOf.GetVersionInfo(ctx, pluginName)
	if err != nil || !slices.Contains(info.SupportedVersions(), "1.1.0") || !slices.Contains(info.SupportedVersions(), "0.3.1") {
		t.Fatalf("VERSION: %v, %v", info, err)
	}
	if err := runtimeOf.GetStatusNetworkList(ctx, list); err != nil {
		t.Errorf("STATUS: %v", err)
	}

	pods := map[string]*pod{"first": newPod(t), "second": newPod(t)}
	addresses := map[string][]string{}
	of := func(name string) *libcni.RuntimeConf {
		return &libcni.RuntimeConf{ContainerID: name, NetNS: pods[name].netns, IfName: "eth0"}
	}
	for _, name := range []string{"first", "second"} {
		raw, err := runtimeOf.AddNetworkList(ctx, list, of(name))
		if err != nil {
			t.Fatalf("ADD: %v", err)
		}
		result, err := types100.NewResultFromResult(raw)
		if err != nil {
			t.Fatal(err)
		}
		for _, ip := range result.IPs {
			addresses[name] = append(addresses[name], ip.Address.IP.String())
		}
		if len(addresses[name]) != 2 || len(result.Routes) != 2 || result.Interfaces[0].Name != "eth0" || result.Interfaces[0].Sandbox != pods[name].netns {
			t.Errorf("ADD: %s", result)
		}
		if err := runtimeOf.CheckNetworkList(ctx, list, of(name)); err != nil {
			t.Errorf("CHECK: %v", err)
		}
	}
	for _, ip := range addresses["second"] {
		reach(t, pods["first"], pods["second"], ip)
	}
	wrong := of("first")
	wrong.IfName = "net1"
	if _, err := runtimeOf.AddNetworkList(ctx, list, wrong); err == nil || !strings.Contains(err.Error(), "named eth0") {
		t.Errorf("ADD of another link: %v", err)
	}

	// What the first has is taken back, for it is not named.
	if err := runtimeOf.GCNetworkList(ctx, list, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "second", IfName: "eth0"}}}); err != nil {
		t.Fatalf("GC: %v", err)
	}
	if err := runtimeOf.CheckNetworkList(ctx, list, of("second")); err != nil {
		t.Errorf("CHECK of who is left: %v", err)
	}
	pods["first"].at(func() {
		if _, err := net.InterfaceByName("eth0"); err == nil {
			t.Error("the link of who was not named is there")
		}
	})
	for range 2 {
		for _, name := range []string{"first", "second"} {
			if err := runtimeOf.DelNetworkList(ctx, list, of(name)); err != nil {
				t.Errorf("DEL of %s: %v", name, err)
			}
		}
	}
	left, err := os.ReadDir(filepath.Join(dir, "root", "run", "hyperkube", "cni", "addresses"))
	if err != nil || len(left) != 0 {
		t.Errorf("addresses that are left: %v, %v", left, err)
	}
}

// reach has one pod call another.
func reach(t *testing.T, from, to *pod, ip string) {
	t.Helper()
	var listener net.Listener
	var err error
	to.at(func() { listener, err = net.Listen("tcp", net.JoinHostPort(ip, "80")) })
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		if conn, err := listener.Accept(); err == nil {
			conn.Close()
		}
	}()
	from.at(func() {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(ip, "80"), time.Minute)
		if err != nil {
			t.Errorf("from pod to pod: %v", err)
			return
		}
		conn.Close()
	})
}
