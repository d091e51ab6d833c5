package e2e

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
)

// balancer is a Service of type LoadBalancer for the pods of web.
func balancer(name string, port int, spec string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {type: LoadBalancer, selector: {app: web}, ports: [{port: %d, targetPort: 8080}]%s}\n", name, port, spec)
}

// freePort returns a port on which no program of the host listens.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// TestLoadBalancer checks that a Service of type LoadBalancer gets the address of the node and answers there on its
// port, that the older of two Services keeps a port, and that ports of the cluster and of programs of the host stay
// reachable.
func TestLoadBalancer(t *testing.T) {
	s := newSpace(t)
	s.apply(web(2))
	s.client()
	s.rollout("web")
	port := freePort(t)
	address := func(name string) string {
		return s.do("get", "service", name, "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}")
	}
	s.apply(balancer("first", port, ""))
	s.do("wait", "--for=jsonpath={.status.loadBalancer.ingress}", "service/first", "--timeout=60s")
	nodes := s.do("get", "nodes", "-o", `jsonpath={.items[*].status.addresses[?(@.type=="InternalIP")].address}`)
	ip := address("first")
	if !strings.Contains(" "+nodes+" ", " "+ip+" ") {
		t.Errorf("the address of the Service is %q, those of the nodes are %q", ip, nodes)
	}
	url := "http://" + net.JoinHostPort(ip, strconv.Itoa(port)) + "/"
	s.contains(s.get(url), "Hello from pod web-")
	s.contains(s.exec("client", "wget -qO- "+url), "Hello from pod web-")
	s.contains(s.do("get", "events", "--field-selector", "involvedObject.name=first"), "EnsuredLoadBalancer")

	// The second Service waits for the port of the first one.
	s.apply(balancer("second", port, ""))
	s.do("wait", "--for=condition=LoadBalancerPortsError", "service/second", "--timeout=60s")
	s.contains(s.do("get", "service", "second"), "<pending>")
	s.contains(s.do("describe", "service", "second"), "SyncLoadBalancerFailed", "is used by Service "+s.name+"/first")
	s.do("delete", "service", "first")
	s.do("wait", "--for=jsonpath={.status.loadBalancer.ingress}", "service/second", "--timeout=60s")
	s.eventually(time.Second, func() error {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(ip, strconv.Itoa(port)), time.Second)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	s.contains(s.get(url), "Hello from pod web-")

	// No Service takes over a port of the API server, or of another program of the host.
	s.apply(balancer("greedy", 6443, ""))
	s.do("wait", "--for=condition=LoadBalancerPortsError", "service/greedy", "--timeout=60s")
	other, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	go func() {
		for {
			conn, err := other.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(conn, "another program")
			conn.Close()
		}
	}()
	s.apply(balancer("taken", other.Addr().(*net.TCPAddr).Port, ""))
	s.eventually(time.Second, func() error {
		if out := s.do("get", "events", "--field-selector", "involvedObject.name=taken"); !strings.Contains(out, "LoadBalancerPortInUse") {
			return fmt.Errorf("no event about the port: %s", out)
		}
		return nil
	})
	conn, err := net.DialTimeout("tcp", other.Addr().String(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answer := make([]byte, 100)
	if n, err := conn.Read(answer); err != nil || string(answer[:n]) != "another program" {
		t.Errorf("the Service has taken over the port of a program: %q, %v", answer[:n], err)
	}
}

// TestLoadBalancerPolicies checks that sources outside loadBalancerSourceRanges are refused, that another class is
// ignored, and that a Service without node ports works.
func TestLoadBalancerPolicies(t *testing.T) {
	s := newSpace(t)
	s.apply(web(1))
	s.client()
	s.rollout("web")
	open, closed, ignored := freePort(t), freePort(t), freePort(t)
	s.apply(balancer("open", open, ", allocateLoadBalancerNodePorts: false, externalTrafficPolicy: Local"))
	s.apply(balancer("closed", closed, ", loadBalancerSourceRanges: [192.0.2.0/24]"))
	s.apply(balancer("ignored", ignored, ", loadBalancerClass: example.com/other"))
	for _, name := range []string{"open", "closed"} {
		s.do("wait", "--for=jsonpath={.status.loadBalancer.ingress}", "service/"+name, "--timeout=60s")
	}
	ip := s.do("get", "service", "open", "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}")
	if port := s.do("get", "service", "open", "-o", "jsonpath={.spec.ports[0].nodePort}"); port != "" {
		t.Errorf("the Service has node port %s", port)
	}
	s.contains(s.exec("client", fmt.Sprintf("wget -qO- http://%s:%d/", ip, open)), "Hello from pod web-")
	if out, err := s.run("", "exec", "client", "--", "/bin/busybox", "timeout", "2", "wget", "-qO-", fmt.Sprintf("http://%s:%d/", ip, closed)); err == nil {
		t.Errorf("a source outside of the ranges was accepted: %s", out)
	}
	s.contains(s.do("get", "service", "ignored"), "<pending>")
}
