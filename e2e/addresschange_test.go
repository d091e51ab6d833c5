package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// TestAddressChange moves a machine to another network, with another address and another name server. The Node, the
// certificates, the endpoints of the API server and the cluster DNS follow, in the same process, and pods keep running.
func TestAddressChange(t *testing.T) {
	a := newAlone(t)
	root := filepath.Join(a.dir, "r")
	a.sh("ip link add eth0 type veth peer router && ip link set eth0 up && ip link set router up && ip addr add 192.0.2.10/24 dev eth0 && ip route add default via 192.0.2.1")
	resolv, config := filepath.Join(a.dir, "resolv.conf"), filepath.Join(a.dir, "kubelet.yaml")
	writeConf := func(server string) {
		t.Helper()
		if err := os.WriteFile(resolv+".new", []byte("nameserver "+server+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(resolv+".new", resolv); err != nil {
			t.Fatal(err)
		}
	}
	writeConf("192.0.2.53")
	if err := os.WriteFile(config, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nresolvConf: "+resolv+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.command(a.binary, "reset", "--root", root).Run() })
	a.hyperkube("up", "--root", root, "--kubelet-config", config)
	a.apply(`
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: c, image: IMAGE, command: [hyperkube, hello]}]
`)
	a.kubectl("wait", "--for=condition=Ready", "--timeout=120s", "pod/web")
	const (
		facts    = "jsonpath={.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount} {.status.podIP}"
		internal = `jsonpath={.items[*].status.addresses[?(@.type=="InternalIP")].address}`
	)
	pod, process := a.kubectl("get", "pod", "web", "-o", facts), a.sh("cat "+root+"/run/hyperkube/hyperkube.pid")
	if got := a.kubectl("get", "nodes", "-o", internal); got != "192.0.2.10" {
		t.Fatalf("the node has the address %s", got)
	}

	moved := time.Now()
	a.sh("ip addr del 192.0.2.10/24 dev eth0 && ip addr add 198.51.100.7/24 dev eth0 && ip route add default via 198.51.100.1")
	a.serveNames("198.51.100.7:53")
	writeConf("198.51.100.7")

	a.eventually(time.Minute, func() error {
		out, err := a.command(a.binary, "kubectl", "get", "nodes", "-o", internal).CombinedOutput()
		if err != nil || string(out) != "198.51.100.7" {
			return errors.Join(err, fmt.Errorf("the node has the address %s", out))
		}
		return nil
	})
	a.eventually(time.Minute, func() error {
		if got := a.kubectl("get", "endpointslices", "kubernetes", "-o", "jsonpath={.endpoints[*].addresses}"); got != `["198.51.100.7"]` {
			return fmt.Errorf("the endpoints of the API server are %s", got)
		}
		return nil
	})
	a.sh("curl -sf --cacert " + root + "/var/lib/hyperkube/pki/ca.crt https://198.51.100.7:6443/version")
	a.eventually(time.Minute, func() error {
		if data, err := a.ask("outside.example.test.", dns.TypeA); err != nil || strings.Join(data, " ") != "192.0.2.7" {
			return errors.Join(err, fmt.Errorf("DNS answers %q", data))
		}
		return nil
	})
	t.Logf("everything followed within %v", time.Since(moved).Round(100*time.Millisecond))

	if out := a.kubectl("exec", "web", "--", "/hyperkube", "version"); !strings.Contains(out, "hyperkube") {
		t.Errorf("exec printed %q", out)
	}
	if now := a.kubectl("get", "pod", "web", "-o", facts); now != pod {
		t.Errorf("the pod was %q and is %q", pod, now)
	}
	if now := a.sh("cat " + root + "/run/hyperkube/hyperkube.pid"); now != process {
		t.Errorf("the main process was %s and is %s", process, now)
	}
	a.hyperkube("down", "--root", root)
}
