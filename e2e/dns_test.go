package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// TestDNSAndProbes: SRV and PTR records, names from the node's name server, and gRPC probes, on an
// isolated machine with a name server.
func TestDNSAndProbes(t *testing.T) {
	a := newAlone(t)
	root := filepath.Join(a.dir, "r")
	conf := filepath.Join(a.dir, "resolv.conf")
	// The test's name server listens on the pods' gateway address.
	if err := os.WriteFile(conf, []byte("nameserver 10.244.0.1\nsearch example.test\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := a.command("mount", "--bind", conf, "/etc/resolv.conf").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Cleanup(func() { _ = a.command(a.binary, "reset", "--root", root).Run() })
	a.hyperkube("up", "--root", root)
	a.serveNames("10.244.0.1:53")

	manifest := filepath.Join(a.dir, "manifest.yaml")
	if err := os.WriteFile(manifest, []byte(`
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: few, namespace: default}
spec: {clusterIP: None, selector: {app: web}, ports: [{name: grpc, port: 9000}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: default, labels: {app: web}}
spec:
  hostname: one
  subdomain: few
  terminationGracePeriodSeconds: 0
  containers:
  - name: web
    image: hyperkube
    imagePullPolicy: IfNotPresent
    args: [hello, --grpc-address=:9000, --drain=0s]
    startupProbe: {grpc: {port: 9000}, periodSeconds: 1, failureThreshold: 180}
    readinessProbe: {grpc: {port: 9000, service: ready}, periodSeconds: 1}
    livenessProbe: {grpc: {port: 9000}, periodSeconds: 1, timeoutSeconds: 60, failureThreshold: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: never, namespace: default}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: web
    image: hyperkube
    imagePullPolicy: IfNotPresent
    args: [hello, --grpc-address=:9000, --drain=0s]
    readinessProbe: {grpc: {port: 9000, service: unknown}, periodSeconds: 1}
`), 0o644); err != nil {
		t.Fatal(err)
	}
	a.hyperkube("kubectl", "apply", "-f", manifest)
	a.hyperkube("kubectl", "wait", "--for=condition=Ready", "pod/web", "--timeout=180s")
	value := func(args ...string) string { return a.hyperkube(append([]string{"kubectl", "get", "-o"}, args...)...) }
	service := value("jsonpath={.spec.clusterIP}", "service", "web")
	pod := value("jsonpath={.status.podIP}", "pod", "web")

	reverse := func(ip string) string {
		name, err := dns.ReverseAddr(ip)
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	for _, c := range []struct {
		name, kind string
		want       []string // data of the records
	}{
		{"web.default.svc.cluster.local.", "A", []string{service}},
		{"one.few.default.svc.cluster.local.", "A", []string{pod}},
		{reverse(service), "PTR", []string{"web.default.svc.cluster.local."}},
		{reverse(pod), "PTR", []string{"one.few.default.svc.cluster.local."}},
		{"_http._tcp.web.default.svc.cluster.local.", "SRV", []string{"0 100 80 web.default.svc.cluster.local."}},
		{"_grpc._tcp.few.default.svc.cluster.local.", "SRV", []string{"0 100 9000 one.few.default.svc.cluster.local."}},
		{"outside.example.test.", "A", []string{"192.0.2.7"}},
		{"nothing.example.test.", "A", nil},
	} {
		t.Run(c.kind+" "+c.name, func(t *testing.T) {
			deadline := time.Now().Add(minTimeout)
			for {
				got, err := a.ask(c.name, dns.StringToType[c.kind])
				if err == nil && slices.Equal(got, c.want) {
					return
				}
				if time.Now().After(deadline) {
					t.Fatalf("got %q, %v; want %q", got, err, c.want)
				}
				time.Sleep(50 * time.Millisecond) // the test cannot observe the informers of the DNS pod
			}
		})
	}

	a.replaceDNS("web.default.svc.cluster.local.")

	// A server that fails its liveness probe is restarted.
	a.hyperkube("kubectl", "exec", "web", "--", "/hyperkube", "version")
	a.onThread(func() error {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(pod, "8080"), time.Minute)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = fmt.Fprintf(conn, "POST /healthz?ok=false HTTP/1.0\r\nContent-Length: 0\r\n\r\n")
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
		return err
	})
	a.hyperkube("kubectl", "wait", "--for=jsonpath={.status.containerStatuses[0].restartCount}=1", "pod/web", "--timeout=180s")
	if out := a.hyperkube("kubectl", "describe", "pod", "web"); !strings.Contains(out, "Liveness probe failed: service unhealthy (responded with \"NOT_SERVING\")") {
		t.Errorf("no event of the failed probe:\n%s", out)
	}
	if ready := value("jsonpath={.status.containerStatuses[0].ready}", "pod", "never"); ready != "false" {
		t.Errorf("a pod whose probe checks an unknown service has ready %s", ready)
	}
}

// replaceDNS replaces the DNS pods during a series of queries: none may be lost.
func (a *alone) replaceDNS(name string) {
	a.t.Helper()
	const labels = "k8s-app=kube-dns"
	old := a.hyperkube("kubectl", "get", "pods", "-n", "kube-system", "-l", labels, "-o", "name")
	stop, done := make(chan struct{}), make(chan struct{})
	asked, failed := 0, []string{}
	go func() {
		defer close(done)
		a.onThread(func() error {
			// The response may be late, but must arrive without a retry.
			client := dns.Client{Timeout: 30 * time.Second}
			for port := 10000; port < 60000; time.Sleep(2 * time.Millisecond) {
				select {
				case <-stop:
					return nil
				default:
				}
				// Use a new port for each query. The kernel's connection tracking would send a
				// query from a known port to the former pod, until shortly after the pod's
				// deletion.
				port++
				client.Dialer = &net.Dialer{LocalAddr: &net.UDPAddr{Port: port}}
				conn, err := client.Dial("10.96.0.10:53")
				if errors.Is(err, unix.EADDRINUSE) {
					continue
				}
				var answer *dns.Msg
				if err == nil {
					answer, _, err = client.ExchangeWithConn(new(dns.Msg).SetQuestion(name, dns.TypeA), conn)
					conn.Close()
				}
				asked++
				if err != nil || len(answer.Answer) != 1 {
					failed = append(failed, fmt.Sprintf("%v, %v", answer, err))
				}
			}
			return nil
		})
	}()
	a.hyperkube("kubectl", "rollout", "restart", "-n", "kube-system", "deployment/kube-dns")
	a.hyperkube("kubectl", "rollout", "status", "-n", "kube-system", "deployment/kube-dns", "--timeout=180s")
	a.hyperkube("kubectl", "wait", "-n", "kube-system", "--for=delete", "--timeout=180s", strings.TrimSpace(old))
	close(stop)
	<-done
	if len(failed) > 0 {
		a.t.Errorf("%d of %d queries were lost while DNS was replaced: %s", len(failed), asked, failed[0])
	}
}

// onThread runs f on a thread in the namespace, so that sockets that f opens are there.
func (a *alone) onThread(f func() error) {
	a.t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // not unlocked, so that the thread exits with the goroutine
		fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/net", a.holder), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			unix.Close(fd)
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		a.t.Error(err)
	}
}

// ask queries the cluster's DNS and returns the sorted data of the records.
func (a *alone) ask(name string, kind uint16) (data []string, err error) {
	a.t.Helper()
	a.onThread(func() error {
		var answer *dns.Msg
		client := dns.Client{Timeout: 2 * time.Second}
		if answer, _, err = client.Exchange(new(dns.Msg).SetQuestion(name, kind), "10.96.0.10:53"); err != nil {
			return nil
		}
		for _, r := range answer.Answer {
			data = append(data, strings.TrimPrefix(r.String(), r.Header().String()))
		}
		return nil
	})
	slices.Sort(data)
	return data, err
}

// serveNames serves the zone example.test at an address in the namespace.
func (a *alone) serveNames(address string) {
	a.t.Helper()
	var conn net.PacketConn
	a.onThread(func() (err error) {
		conn, err = net.ListenPacket("udp", address)
		return err
	})
	if conn == nil {
		a.t.FailNow()
	}
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		answer := new(dns.Msg).SetReply(q)
		if q.Question[0].Name == "outside.example.test." && q.Question[0].Qtype == dns.TypeA {
			answer.Answer = append(answer.Answer, &dns.A{
				Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 5}, A: net.IPv4(192, 0, 2, 7),
			})
		} else {
			answer.Rcode = dns.RcodeNameError
		}
		_ = w.WriteMsg(answer) // after an error, the client retries
	})}
	go func() { _ = server.ActivateAndServe() }() // returns after Shutdown
	a.t.Cleanup(func() { _ = server.Shutdown() })
}
