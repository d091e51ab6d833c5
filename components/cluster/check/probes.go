package check

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/etcd"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/host/netlinkutil"
	"hyperkube/internal/pod/podnet"
)

// connectTimeout limits a connection of a probe. It allows for one lost packet.
const connectTimeout = 1500 * time.Millisecond

// queryTimeout limits the queries to etcd and to the API server.
const queryTimeout = 3 * time.Second

// onDedicatedThread runs f on a thread that exits afterwards, so that f may enter other namespaces.
func onDedicatedThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked
		done <- f()
	}()
	return <-done
}

// probeLinks implements Probes.Links.
func probeLinks() (unsupported map[string]error, err error) {
	return netlinkutil.Unsupported(
		&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "bridge"}},
		&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "veth"}, PeerName: "peer"},
		&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "vxlan"}, VxlanId: 1, Port: 4789},
	)
}

// resolve implements Probes.Resolve.
func resolve(ctx context.Context, server netip.AddrPort, name string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "udp", server.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	return query(conn, name)
}

// query sends a DNS query for name and waits for the response, twice if the first is lost. It queries the name servers
// of the root, which every resolver knows, and the addresses of other names.
func query(conn net.Conn, name string) error {
	kind := dns.TypeA
	if name == "." {
		kind = dns.TypeNS
	}
	message := new(dns.Msg).SetQuestion(name, kind)
	var last error
	for range 2 {
		client := dns.Client{Timeout: connectTimeout / 2}
		_, _, last = client.ExchangeWithConn(message, &dns.Conn{Conn: conn})
		if last == nil { // a failure of the server is also a response
			return nil
		}
	}
	return last
}

// connectTo opens a connection to target from the network namespace of the calling thread, to which the caller has
// locked the goroutine.
func connectTo(ctx context.Context, target Target) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if target.Query != "" {
		return resolve(ctx, target.Address, target.Query)
	}
	// The address is not a name, so this goroutine creates the socket.
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", target.Address.String())
	if err != nil {
		return err
	}
	return conn.Close()
}

// connectAll implements Probes.Connect for the node with the paths l.
func connectAll(ctx context.Context, l layout.Node, targets []Target) ([]Connection, error) {
	results := make([]Connection, len(targets))
	cfg := podnet.Config{Bridge: l.Bridge(), LinkPrefix: l.LinkPrefix, AddressDir: l.RuntimeState() + "/addresses"}
	err := podnet.WithTemporaryPod(cfg, func(netns *os.File) error {
		var group sync.WaitGroup
		for i, target := range targets {
			group.Go(func() {
				results[i].FromHost = onDedicatedThread(func() error { return connectTo(ctx, target) })
			})
			group.Go(func() {
				results[i].FromPod = onDedicatedThread(func() error {
					if err := unix.Setns(int(netns.Fd()), unix.CLONE_NEWNET); err != nil {
						return fmt.Errorf("entering the network namespace: %w", err)
					}
					return connectTo(ctx, target)
				})
			})
		}
		group.Wait()
		return nil
	})
	return results, err
}

// onceAPI returns a function that queries the API server at the first call, and then returns the same result.
func onceAPI(l layout.Node) func(context.Context) (APIStatus, error) {
	var once sync.Once
	var status APIStatus
	var err error
	return func(ctx context.Context) (APIStatus, error) {
		once.Do(func() { status, err = queryAPI(ctx, l) })
		return status, err
	}
}

// queryAPI queries the API server with the credentials of this machine: those of the administrator, or on a worker
// those of the kubelet. The address of cluster DNS is empty if the built-in DNS is disabled.
func queryAPI(ctx context.Context, l layout.Node) (status APIStatus, err error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	rest, err := clientcmd.BuildConfigFromFlags("", clusterconfig.AdminKubeconfig(l))
	if err != nil {
		return status, err
	}
	kube, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return status, err
	}
	text, err := kube.Discovery().RESTClient().Get().AbsPath("/readyz").Param("verbose", "true").DoRaw(ctx)
	for line := range strings.Lines(string(text)) {
		if failed, ok := strings.CutPrefix(line, "[-]"); ok {
			name, _, _ := strings.Cut(failed, " ")
			status.Failed = append(status.Failed, name)
		}
	}
	if err != nil && len(status.Failed) == 0 {
		return status, err
	}
	nodes, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return status, fmt.Errorf("listing nodes: %w", err)
	}
	for i := range nodes.Items {
		if reason := whyNotReady(&nodes.Items[i]); reason != "" {
			status.NotReady = append(status.NotReady, nodes.Items[i].Name+": "+reason)
		}
	}
	if service, err := kube.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{}); err == nil {
		status.Service = service.Spec.ClusterIP
	}
	// A missing Service or Deployment, or one with zero replicas, means that another DNS is used.
	service, err := kube.CoreV1().Services(metav1.NamespaceSystem).Get(ctx, "kube-dns", metav1.GetOptions{})
	if err != nil {
		return status, nil
	}
	deployment, err := kube.AppsV1().Deployments(metav1.NamespaceSystem).Get(ctx, "kube-dns", metav1.GetOptions{})
	if err == nil && (deployment.Spec.Replicas == nil || *deployment.Spec.Replicas > 0) {
		status.DNS = service.Spec.ClusterIP
	}
	return status, nil
}

// whyNotReady returns why a node is not ready; "" if it is.
func whyNotReady(node *corev1.Node) string {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return ""
		}
		if c.Type == corev1.NodeReady {
			return c.Message
		}
	}
	return "it has not reported its state yet"
}

// queryEtcd implements Probes.Etcd for the member of the node with the paths l. Without a leader, the result contains
// only what the member itself knows.
func queryEtcd(ctx context.Context, l layout.Node) (EtcdStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	endpoint := fmt.Sprintf("https://127.0.0.1:%d", layout.PortEtcdClient)
	dial := etcd.DialConfig{Servers: []string{endpoint}}
	dial.CAFile, dial.CertFile, dial.KeyFile = clusterconfig.EtcdClientFiles(l)
	client, err := etcd.Dial(dial)
	if err != nil {
		return EtcdStatus{}, err
	}
	defer client.Close()
	status, err := client.Status(ctx, endpoint)
	if err != nil {
		return EtcdStatus{}, err
	}
	out := EtcdStatus{HasLeader: status.Leader != 0, Size: status.DbSize, Quota: status.DbSizeQuota}
	if alarms, err := client.AlarmList(ctx); err == nil {
		for _, a := range alarms.Alarms {
			out.Alarms = append(out.Alarms, a.Alarm.String())
		}
	}
	members, err := client.MemberList(ctx)
	if err != nil {
		return out, nil // there is no leader
	}
	out.Members = len(members.Members)
	began := time.Now()
	if _, err := client.Get(ctx, "health"); err == nil {
		out.Latency = time.Since(began)
	} else if out.HasLeader {
		return out, fmt.Errorf("reading a key: %w", err)
	}
	for _, member := range members.Members {
		if member.ID == status.Header.MemberId || len(member.ClientURLs) == 0 {
			continue
		}
		asking, cancel := context.WithTimeout(ctx, queryTimeout/3)
		if _, err := client.Status(asking, member.ClientURLs[0]); err != nil {
			out.Unreachable = append(out.Unreachable, member.Name)
		}
		cancel()
	}
	return out, nil
}
