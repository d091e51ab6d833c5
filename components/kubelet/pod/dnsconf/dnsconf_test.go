package dnsconf

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestFor(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(file, []byte("# comment\nnameserver 9.9.9.9\nsearch corp.example. other\noptions rotate\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	n := Node{ClusterDNS: []string{"10.96.0.10"}, ClusterDomain: "cluster.local", ResolvConf: file}
	two := "2"
	cluster := &runtimeapi.DNSConfig{
		Servers:  []string{"10.96.0.10"},
		Searches: []string{"ns.svc.cluster.local", "svc.cluster.local", "cluster.local", "corp.example", "other"}, Options: []string{"ndots:5"},
	}
	host := &runtimeapi.DNSConfig{Servers: []string{"9.9.9.9"}, Searches: []string{"corp.example", "other"}, Options: []string{"rotate"}}
	for _, c := range []struct {
		name string
		spec v1.PodSpec
		want *runtimeapi.DNSConfig
	}{
		{"cluster first", v1.PodSpec{DNSPolicy: v1.DNSClusterFirst}, cluster},
		{"host network", v1.PodSpec{DNSPolicy: v1.DNSClusterFirst, HostNetwork: true}, host},
		{"cluster first with host network", v1.PodSpec{DNSPolicy: v1.DNSClusterFirstWithHostNet, HostNetwork: true}, cluster},
		{"default", v1.PodSpec{DNSPolicy: v1.DNSDefault}, host},
		{"none", v1.PodSpec{DNSPolicy: v1.DNSNone, DNSConfig: &v1.PodDNSConfig{
			Nameservers: []string{"1.1.1.1"}, Searches: []string{"x"}, Options: []v1.PodDNSConfigOption{{Name: "ndots", Value: &two}, {Name: "edns0"}},
		}}, &runtimeapi.DNSConfig{Servers: []string{"1.1.1.1"}, Searches: []string{"x"}, Options: []string{"ndots:2", "edns0"}}},
		{"changed", v1.PodSpec{DNSPolicy: v1.DNSDefault, DNSConfig: &v1.PodDNSConfig{Nameservers: []string{"9.9.9.9", "1.1.1.1"}}},
			&runtimeapi.DNSConfig{Servers: []string{"9.9.9.9", "1.1.1.1"}, Searches: []string{"corp.example", "other"}, Options: []string{"rotate"}}},
	} {
		got, err := n.For(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, Spec: c.spec}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got.Servers, c.want.Servers) || !reflect.DeepEqual(got.Searches, c.want.Searches) || !reflect.DeepEqual(got.Options, c.want.Options) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

// TestNoDomain checks that without a cluster domain no cluster domain is searched.
func TestNoDomain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(file, []byte("nameserver 9.9.9.9\nsearch corp.example\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := Node{ClusterDNS: []string{"10.96.0.10"}, ResolvConf: file}.For(&v1.Pod{Spec: v1.PodSpec{DNSPolicy: v1.DNSClusterFirst}}, nil)
	if err != nil || !reflect.DeepEqual(got.Searches, []string{"corp.example"}) || !reflect.DeepEqual(got.Servers, []string{"10.96.0.10"}) {
		t.Errorf("%v, %v", got, err)
	}
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"}, Spec: v1.PodSpec{Subdomain: "sub"}}
	if _, domain, err := Hostname(p, ""); err != nil || domain != "sub.ns.svc." {
		t.Errorf("domain %q, %v", domain, err)
	}
}

// TestOddFiles checks that entries that break resolvers in containers are omitted.
func TestOddFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	long := strings.Repeat("a", 254)
	text := "nameserver 9.9.9.9\nsearch . " + long + " corp.example\noptions ndots:2 edns0\noptions ndots:3 rotate\n"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	var warned []string
	got, err := Node{ResolvConf: file}.For(&v1.Pod{Spec: v1.PodSpec{DNSPolicy: v1.DNSDefault}}, func(_, message string) { warned = append(warned, message) })
	if err != nil || !reflect.DeepEqual(got.Searches, []string{"corp.example"}) || !reflect.DeepEqual(got.Options, []string{"ndots:3", "edns0", "rotate"}) {
		t.Errorf("%v, %v", got, err)
	}
	if len(warned) != 1 || !strings.HasSuffix(warned[0], "the applied search line is: corp.example") {
		t.Errorf("warned %q", warned)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("nameserver 1.1.1.1\nsearch a b\noptions ndots:5\n"))
	f.Fuzz(func(_ *testing.T, raw []byte) { _ = File(Parse(raw)) })
}

func TestHosts(t *testing.T) {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"}, Spec: v1.PodSpec{
		Subdomain: "sub", HostAliases: []v1.HostAlias{{IP: "1.2.3.4", Hostnames: []string{"foo", "bar"}}},
	}}
	host, domain, err := Hostname(p, "cluster.local")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := Hosts(p, []string{"10.0.0.1"}, host, domain, "/nonexistent")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n", "10.0.0.1\tp.sub.ns.svc.cluster.local\tp\n", "\n# Entries added by HostAliases.\n1.2.3.4\tfoo\tbar\n",
	} {
		if !strings.Contains(string(raw), want) {
			t.Errorf("no %q in %q", want, raw)
		}
	}
	long := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: strings.Repeat("a", 62) + "-bcd"}}
	if got, _, _ := Hostname(long, ""); got != strings.Repeat("a", 62) {
		t.Errorf("long name: %q", got)
	}
}

func TestCheck(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	many := strings.Repeat("d.example.com ", 30)
	long := strings.Repeat("a", 254)
	wide := strings.Repeat(strings.Repeat("b", 200)+" ", 12)
	for name, tc := range map[string]struct{ search, domain, want string }{
		"fine":                             {search: "a b"},
		"too many search domains":          {search: many, domain: "cluster.local", want: "Resolv.conf file '" + path + "' contains search line consisting of more than 29 domains!"},
		"maximum number of search domains": {search: many},
		"search domain too long":           {search: long, want: "Resolv.conf file \"" + path + "\" contains a search path which length is more than allowed 253 chars!"},
		"search line too long":             {search: wide, want: "Resolv.conf file '" + path + "' contains search line which length is more than allowed 2048 chars!"},
	} {
		if err := os.WriteFile(path, []byte("search "+tc.search+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := (Node{ClusterDomain: tc.domain, ResolvConf: path}).Check(); got != tc.want {
			t.Errorf("%s: %s", name, got)
		}
	}
	if got := (Node{ResolvConf: path + "x"}).Check(); !strings.Contains(got, "no such file") {
		t.Errorf("a missing file: %q", got)
	}
}

// TestNoResolvConf checks that without a resolver configuration of the node, pods that inherit it
// get a name server on loopback, and other pods get only the cluster's DNS servers.
func TestNoResolvConf(t *testing.T) {
	n := Node{ClusterDNS: []string{"10.96.0.10"}, ClusterDomain: "c", Addresses: func() []string { return []string{"192.0.2.1", "2001:db8::1"} }}
	of := func(policy v1.DNSPolicy) *runtimeapi.DNSConfig {
		t.Helper()
		got, err := n.For(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, Spec: v1.PodSpec{DNSPolicy: policy}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := of(v1.DNSDefault); !reflect.DeepEqual(got.Servers, []string{"127.0.0.1", "::1"}) || !reflect.DeepEqual(got.Searches, []string{"."}) {
		t.Errorf("as the node: %v", got)
	}
	if got := of(v1.DNSClusterFirst); !reflect.DeepEqual(got.Servers, n.ClusterDNS) || !reflect.DeepEqual(got.Searches, []string{"ns.svc.c", "svc.c", "c"}) {
		t.Errorf("as the cluster: %v", got)
	}
	if got := of(v1.DNSNone); len(got.Servers)+len(got.Searches) > 0 {
		t.Errorf("without a search domain: %v", got)
	}
}

// TestMissingClusterDNS checks that warnings for the pod and the node are emitted.
func TestMissingClusterDNS(t *testing.T) {
	var node, pod []string
	n := Node{Warn: func(reason, message string) { node = append(node, reason+": "+message) }}
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}, Spec: v1.PodSpec{DNSPolicy: v1.DNSClusterFirst}}
	got, err := n.For(p, func(reason, message string) { pod = append(pod, reason+": "+message) })
	if err != nil || !reflect.DeepEqual(got.Servers, []string{"127.0.0.1"}) {
		t.Errorf("%v, %v", got, err)
	}
	const text = `kubelet does not have ClusterDNS IP configured and cannot create Pod using "ClusterFirst" policy. Falling back to "Default" policy.`
	if len(node) != 1 || node[0] != "MissingClusterDNS: "+text {
		t.Errorf("of the node: %q", node)
	}
	if len(pod) != 1 || pod[0] != `MissingClusterDNS: pod: "p_ns(u)". `+text {
		t.Errorf("of the pod: %q", pod)
	}
}
