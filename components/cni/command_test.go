package cni

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"hyperkube/internal/testing/leakcheck"
	"hyperkube/internal/testing/testnetns"
)

// TestMain runs the plugin when the test binary is started under the plugin's name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == pluginName {
		if run(context.Background()) != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	leakcheck.Main(m)
}

const pluginName = "hyperkube-cni"

// TestPlugin runs all CNI commands of the specification with libcni, the library that container
// runtimes use.
// https://www.cni.dev/docs/spec/
func TestPlugin(t *testing.T) {
	testnetns.Enter(t)
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

	pods := map[string]*testnetns.Namespace{"first": testnetns.New(t), "second": testnetns.New(t)}
	addresses := map[string][]string{}
	of := func(name string) *libcni.RuntimeConf {
		return &libcni.RuntimeConf{ContainerID: name, NetNS: pods[name].Path(), IfName: "eth0"}
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
		if len(addresses[name]) != 2 || len(result.Routes) != 2 || result.Interfaces[0].Name != "eth0" || result.Interfaces[0].Sandbox != pods[name].Path() {
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

	// GC releases the resources of the first pod, which is not a valid attachment.
	if err := runtimeOf.GCNetworkList(ctx, list, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "second", IfName: "eth0"}}}); err != nil {
		t.Fatalf("GC: %v", err)
	}
	if err := runtimeOf.CheckNetworkList(ctx, list, of("second")); err != nil {
		t.Errorf("CHECK of the remaining pod: %v", err)
	}
	pods["first"].Run(func() {
		if _, err := net.InterfaceByName("eth0"); err == nil {
			t.Error("GC did not remove the link of a pod that is not a valid attachment")
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

// reach opens a connection from one pod to another.
func reach(t *testing.T, from, to *testnetns.Namespace, ip string) {
	t.Helper()
	var listener net.Listener
	var err error
	to.Run(func() { listener, err = net.Listen("tcp", net.JoinHostPort(ip, "80")) })
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		if conn, err := listener.Accept(); err == nil {
			conn.Close()
		}
	}()
	from.Run(func() {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(ip, "80"), time.Minute)
		if err != nil {
			t.Errorf("from pod to pod: %v", err)
			return
		}
		conn.Close()
	})
}
