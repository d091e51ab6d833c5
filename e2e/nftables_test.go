package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hyperkube/internal/host/nftnl"
)

// TestWithoutIPTables runs a cluster on a machine without iptables: Services, host ports and network policies, and the
// change of the mode, after the programs were installed, and back.
func TestWithoutIPTables(t *testing.T) {
	a := newAlone(t)
	root := filepath.Join(a.dir, "r")
	a.sh("mount -t tmpfs none /usr/sbin; test -L /sbin || mount -t tmpfs none /sbin; ! command -v iptables")
	a.hyperkube("up", "--root", root)
	t.Cleanup(func() { _ = a.command(a.binary, "reset", "--root", root).Run() })
	a.expectMode("nftables")
	a.apply(`
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  containers:
  - {name: web, image: IMAGE, command: [/hyperkube, hello], ports: [{containerPort: 8080, hostPort: 8081}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: client, image: IMAGE, command: [/hyperkube, hello]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: 8080, nodePort: 30080}]}
`)
	a.kubectl("wait", "--for=condition=Ready", "pod/web", "pod/client", "--timeout=60s")
	get := func(server string) error {
		out, err := a.command(a.binary, "kubectl", "--server="+server, "--request-timeout=2s", "get", "--raw", "/").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w: %s", server, err, out)
		}
		return nil
	}
	fromPod := func(server string) error {
		out, err := a.command(a.binary, "kubectl", "exec", "client", "--", "/hyperkube", "kubectl", "--server="+server, "--request-timeout=2s", "get", "--raw", "/").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s from a pod: %w: %s", server, err, out)
		}
		return nil
	}
	traffic := func() {
		t.Helper()
		for _, server := range []string{"http://127.0.0.1:30080", "http://10.244.0.1:30080", "http://127.0.0.1:8081"} {
			a.eventually(30*time.Second, func() error { return get(server) })
		}
		a.eventually(30*time.Second, func() error { return fromPod("http://web") })
	}
	traffic()
	a.apply(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed}
spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}
`)
	refused := func() error {
		if fromPod("http://web") == nil {
			return fmt.Errorf("the network policy has no effect")
		}
		return nil
	}
	a.eventually(30*time.Second, refused)
	if err := get("http://127.0.0.1:30080"); err != nil {
		t.Errorf("the policy affects the node: %v", err)
	}

	a.sh("umount /usr/sbin; test -L /sbin || umount /sbin; command -v iptables")
	for _, mode := range []string{"iptables", "nftables"} {
		a.hyperkube("up", "--root", root, "--proxy-mode", mode)
		a.expectMode(mode)
		a.eventually(30*time.Second, refused)
		a.kubectl("delete", "networkpolicy", "closed", "--ignore-not-found")
		traffic()
		a.eventually(30*time.Second, func() error {
			tables, saved := a.nftTables(), a.sh("iptables-save")
			if strings.Contains(tables, "hyperkube") != (mode == "nftables") || strings.Contains(saved, "KUBE-") != (mode == "iptables") {
				return fmt.Errorf("rules in mode %s: tables %s, iptables\n%s", mode, tables, saved)
			}
			return nil
		})
		if mode == "iptables" {
			a.apply("{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: closed}, spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}}")
		}
	}
	a.hyperkube("reset", "--root", root)
	if tables, saved := a.nftTables(), a.sh("iptables-save"); strings.Contains(tables, "hyperkube") || strings.Contains(saved, "KUBE-") || strings.Contains(saved, "HK-") {
		t.Errorf("after reset, tables %s and these rules are left:\n%s", tables, saved)
	}
}

// expectMode checks that the service proxy reports the mode.
func (a *alone) expectMode(want string) {
	a.t.Helper()
	if out := a.hyperkube("kubectl", "--server=http://127.0.0.1:10249", "get", "--raw", "/proxyMode"); strings.TrimSpace(out) != want {
		a.t.Errorf("the proxy mode is %s, want %s", out, want)
	}
}

// nftTables returns the names of the tables of nftables.
func (a *alone) nftTables() string {
	a.t.Helper()
	netns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", a.holder))
	if err != nil {
		a.t.Fatal(err)
	}
	defer netns.Close()
	var names []string
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread exits with its goroutine
		if err := unix.Setns(int(netns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- nftnl.List(unix.NFT_MSG_GETTABLE, unix.NFPROTO_UNSPEC, nil, func(attributes []byte) {
			for attribute, value := range nftnl.Attributes(attributes) {
				if attribute == unix.NFTA_TABLE_NAME {
					names = append(names, strings.TrimRight(string(value), "\x00"))
				}
			}
		})
	}()
	if err := <-done; err != nil {
		a.t.Fatal(err)
	}
	return strings.Join(names, " ")
}
