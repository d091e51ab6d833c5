package up

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"hyperkube/components/cluster/addons"
	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/localnodes"
	"hyperkube/components/cluster/node"
	"hyperkube/components/cluster/pidlock"
	"hyperkube/components/cluster/progress"
	"hyperkube/components/cluster/teardown"
	"hyperkube/components/network"
	"hyperkube/internal/base/cloudprovider"
	"hyperkube/internal/client"
	"hyperkube/internal/credentials/kubeconfig"
	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/host/atomicfile"
	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/host/packetfilter"
	"hyperkube/internal/host/process"
)

// additionalNodes is the saved configuration of the additional nodes on this machine.
type additionalNodes struct {
	// Count is the total number of nodes, including the first.
	Count int `json:"count"`
	// Subnet is the IPv4 subnet of the node bridge.
	Subnet string `json:"subnet,omitempty"`
	// Network is how pod traffic between nodes is sent; the default mode if empty.
	Network network.Mode `json:"network,omitempty"`
}

// additionalNodesFile returns the path of the file that stores the number of nodes and the network between them.
func additionalNodesFile(l layout.Node) string { return filepath.Join(l.Data, "nodes.json") }

// loadAdditionalNodes reads the saved configuration. Without a file, it returns a Count of 1.
func loadAdditionalNodes(l layout.Node) (additionalNodes, error) {
	f := additionalNodes{Count: 1}
	data, err := os.ReadFile(additionalNodesFile(l))
	if errors.Is(err, os.ErrNotExist) {
		return f, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &f)
	}
	if err != nil {
		return f, fmt.Errorf("reading the additional nodes: %w", err)
	}
	return f, nil
}

// maxLocalNodes is the maximum of --nodes. It is lower than the number of addresses in the subnet
// of the bridge.
const maxLocalNodes = 100

// updateAdditionalNodes sets the total number of nodes and the network mode in the saved configuration, and returns it.
// Zero values keep the saved ones, and nothing is written if both are unchanged. The first additional node makes it
// choose a subnet that no route of the machine uses. Invalid values are configuration errors.
func updateAdditionalNodes(l layout.Node, count int, mode network.Mode) (additionalNodes, error) {
	f, err := loadAdditionalNodes(l)
	if err != nil {
		return f, err
	}
	if count == 0 {
		count = f.Count
	}
	if mode == "" {
		mode = f.Network
	}
	if count == f.Count && mode == f.Network {
		return f, nil
	}
	if err := mode.Check(); err != nil {
		return f, command.ConfigError(fmt.Errorf("--pod-network: %w", err))
	}
	f.Network = mode
	if count < 1 || count > maxLocalNodes {
		return f, command.ConfigError(fmt.Errorf("--nodes must be from 1 to %d", maxLocalNodes))
	}
	f.Count = count
	if f.Subnet == "" && f.Count > 1 {
		routes, err := clusterconfig.HostRoutes()
		if err != nil {
			return f, err
		}
		if f.Subnet, err = clusterconfig.FreeRange(routes, "192.168.94.0/24", "192.168.%d.0/24", 95); err != nil {
			return f, err
		}
	}
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return f, fmt.Errorf("encoding the additional nodes: %w", err)
	}
	if err := atomicfile.Write(atomicfile.File{Path: additionalNodesFile(l), Data: append(data, '\n'), Mode: 0o644}); err != nil {
		return f, fmt.Errorf("saving the additional nodes: %w", err)
	}
	return f, nil
}

// additionalNodeName returns the name of the i-th additional node, for example NODE-2 for the first (i = 1), because
// the node of the control plane is number 1.
func additionalNodeName(id clusterconfig.Cluster, i int) string {
	return fmt.Sprintf("%s-%d", id.NodeName, i+1)
}

// nodeManager starts and removes the additional nodes of a running cluster on this machine (`up --nodes N`).
type nodeManager struct {
	layout  layout.Node
	cluster clusterconfig.Cluster
	desired additionalNodes
	ca      *pki.CA
	kube    kubernetes.Interface
	nodes   cache.SharedIndexInformer
	steps   *progress.Steps
	// noSeccompDefault turns off seccompDefault of the nodes.
	noSeccompDefault bool
	// cloudProvider is External if a cloud controller manager initializes the nodes.
	cloudProvider cloudprovider.Setting
	// proxyMode is the setting how packet filter rules are written.
	proxyMode packetfilter.Mode
	// apiServer is the address and port of the API server. The address is unspecified if it listens on all.
	apiServer netip.AddrPort
}

// ensure starts missing additional nodes and removes surplus ones, and removes the bridge between the nodes with the
// last one. It returns when all are ready. It does nothing if there are none and none are desired, and returns an error
// if another process is changing the nodes.
func (f *nodeManager) ensure(ctx context.Context) error {
	present, err := teardown.AdditionalNodeNumbers(f.layout)
	if err != nil {
		return err
	}
	existing, err := f.existingNetwork(ctx)
	if err != nil {
		return err
	}
	if f.desired.Count < 2 && len(present) == 0 && existing == nil {
		return nil
	}
	lock, err := pidlock.Acquire(f.layout.PIDFile("nodes"))
	if errors.Is(err, pidlock.ErrHeld) {
		return errors.New("another process is starting or removing nodes of this cluster")
	}
	if err != nil {
		return err
	}
	defer lock.Release()
	parent := ctx
	group, ctx := errgroup.WithContext(ctx)
	for _, i := range present {
		if i >= f.desired.Count {
			group.Go(func() error { return f.remove(ctx, i) })
		}
	}
	if f.desired.Count < 2 {
		if err := group.Wait(); err != nil {
			return err
		}
		if existing == nil {
			return nil
		}
		return existing.RemoveBridge(parent)
	}
	machine, err := f.openNetwork(ctx)
	if err != nil {
		return errors.Join(err, group.Wait())
	}
	defer machine.Journal.Close()
	if err := machine.EnsureBridge(ctx); err != nil {
		return errors.Join(err, group.Wait())
	}
	for i := 1; i < f.desired.Count; i++ {
		group.Go(func() error { return f.start(ctx, machine, i) })
	}
	return group.Wait()
}

// openNetwork returns the network of the nodes with an open journal of host changes.
func (f *nodeManager) openNetwork(ctx context.Context) (*localnodes.Network, error) {
	m, err := f.network(ctx)
	if err != nil {
		return nil, err
	}
	m.Journal, err = hostjournal.Open(f.layout.Journal("nodes"))
	return m, err
}

// existingNetwork returns the network of the nodes, without a journal, if its bridge exists. It returns nil if there is
// no bridge or if the cluster never had additional nodes.
func (f *nodeManager) existingNetwork(ctx context.Context) (*localnodes.Network, error) {
	if f.desired.Subnet == "" {
		return nil, nil // additional nodes were never created, or without a network
	}
	m, err := f.network(ctx)
	if err != nil || !m.HasBridge() {
		return nil, err
	}
	return m, nil
}

// network returns the network of the nodes, without a journal. The saved configuration must have a subnet.
func (f *nodeManager) network(ctx context.Context) (*localnodes.Network, error) {
	m := &localnodes.Network{Layout: f.layout}
	var err error
	if m.Subnet, err = netip.ParsePrefix(f.desired.Subnet); err != nil {
		return nil, fmt.Errorf("parsing the subnet in %s: %w", additionalNodesFile(f.layout), err)
	}
	if m.Subnet6, err = subnet6(m.Subnet, f.cluster.PodCIDRs); err != nil {
		return nil, err
	}
	for _, text := range f.cluster.PodCIDRs {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("pod CIDR: %w", err)
		}
		m.PodCIDRs = append(m.PodCIDRs, prefix.Masked())
	}
	if m.HostAddresses, err = clusterconfig.NodeAddresses(f.cluster.PodCIDRs); err != nil {
		return nil, err
	}
	if m.PacketFilter, err = node.SelectPacketFilter(ctx, f.layout, f.proxyMode); err != nil {
		return nil, err
	}
	return m, nil
}

// subnet6 returns the IPv6 subnet for an IPv4 subnet, e.g. fd00:192:168:94::/64 for
// 192.168.94.0/24. It returns the zero Prefix if pods have no IPv6 CIDR.
func subnet6(subnet netip.Prefix, pods []string) (netip.Prefix, error) {
	if !slices.ContainsFunc(pods, func(cidr string) bool { return strings.Contains(cidr, ":") }) {
		return netip.Prefix{}, nil
	}
	b := subnet.Addr().As4()
	prefix, err := netip.ParsePrefix(fmt.Sprintf("fd00:%d:%d:%d::/64", b[0], b[1], b[2]))
	if err != nil {
		return prefix, fmt.Errorf("choosing IPv6 addresses of nodes: %w", err)
	}
	return prefix, nil
}

// additionalNodeAddresses returns the addresses in the Node of the i-th additional node: one of each IP
// family of the pod CIDRs, in their order.
func additionalNodeAddresses(machine *localnodes.Network, i int) []string {
	var out []string
	for _, cidr := range machine.PodCIDRs {
		for _, a := range machine.Addresses(i) {
			if a.Is6() == cidr.Addr().Is6() {
				out = append(out, a.String())
			}
		}
	}
	return out
}

// start starts the i-th additional node and waits until it is ready. A running process of the node is kept if it has
// the same build, settings and API server; otherwise it is replaced, and its pods keep running.
func (f *nodeManager) start(ctx context.Context, machine *localnodes.Network, i int) error {
	began := time.Now()
	l, name := f.layout.Numbered(i), additionalNodeName(f.cluster, i)
	if err := machine.EnsureNode(i); err != nil {
		return err
	}
	pid, err := pidlock.Holder(l.PIDFile(layout.MainProcess))
	if err != nil {
		return err
	}
	if pid != 0 {
		// Replace a process of another build or with other settings. Its pods keep running.
		same, err := sameProgram(fmt.Sprintf("/proc/%d/exe", pid), "/proc/self/exe")
		if err != nil && !errors.Is(err, process.ErrNotFound) {
			return fmt.Errorf("node %q: %w", name, err)
		}
		if !same || f.isOutdated(machine, i) {
			if err := teardown.StopMain(ctx, io.Discard, l); err != nil {
				return fmt.Errorf("node %q: %w", name, err)
			}
			pid = 0
		}
	}
	if pid == 0 {
		if _, err := f.configure(machine, i); err != nil {
			return fmt.Errorf("node %q: %w", name, err)
		}
		args := []string{"node", "--further=" + strconv.Itoa(i)}
		if root := f.layout.Root(); root != "" {
			args = append(args, "--root="+root)
		}
		err := localnodes.InNodeNamespace(localnodes.Namespace(f.layout, i), name, func() error {
			return progress.StartBackground(ctx, args, l.Log(layout.MainProcess), func(progress.Step) {})
		})
		if err != nil {
			return fmt.Errorf("node %q: %w", name, err)
		}
	}
	if err := waitNodeReady(ctx, f.nodes, name); err != nil {
		return fmt.Errorf("node %q: %w; see %s", name, err, l.Log(layout.MainProcess))
	}
	f.steps.Done(began, "node %q is ready", name)
	return nil
}

// server returns the URL of the API server for the additional nodes: its address or, if it listens on all addresses,
// that of the host on the bridge between the nodes.
func (f *nodeManager) server(machine *localnodes.Network) string {
	if f.apiServer.Addr().IsUnspecified() {
		return fmt.Sprintf("https://%s:%d", machine.Gateway(), f.apiServer.Port())
	}
	return "https://" + f.apiServer.String()
}

// isOutdated reports whether the i-th additional node was configured with another URL of the API server, another
// network mode or another seccomp default. Files that cannot be read count as unchanged.
func (f *nodeManager) isOutdated(machine *localnodes.Network, i int) bool {
	l := f.layout.Numbered(i)
	var o node.Options
	if o.Load(l) == nil && (o.Network != string(f.desired.Network) || o.NoSeccompDefault != f.noSeccompDefault || o.ProxyMode != f.proxyMode || o.CloudProvider != f.cloudProvider) {
		return true
	}
	rest, err := clientcmd.BuildConfigFromFlags("", filepath.Join(l.Data, "kubelet.conf"))
	return err == nil && rest.Host != f.server(machine)
}

// configure writes the files that the process of the i-th additional node needs: its certificates, its kubeconfigs and
// its options. It renews certificates that expire soon, and returns all of them.
func (f *nodeManager) configure(machine *localnodes.Network, i int) ([]*pki.Pair, error) {
	l, name, addresses := f.layout.Numbered(i), additionalNodeName(f.cluster, i), additionalNodeAddresses(machine, i)
	o := node.Options{
		Kubeconfig: filepath.Join(l.Data, "kubelet.conf"), ProxyKubeconfig: filepath.Join(l.Data, "proxy.conf"),
		Name: name, IP: strings.Join(addresses, ","), DNS: []string{f.cluster.DNSAddress}, Domain: f.cluster.Domain,
		ClusterCIDRs: f.cluster.PodCIDRs, ClientCA: f.ca.CertFile, Network: string(f.desired.Network), ProxyMode: f.proxyMode, CloudProvider: f.cloudProvider, NoSeccompDefault: f.noSeccompDefault,
	}
	serving, err := f.ca.EnsurePair(filepath.Join(l.PKI(), "kubelet"), pki.KubeletServer(name, slices.Concat(addresses, []string{"127.0.0.1", "localhost"})...))
	if err != nil {
		return nil, err
	}
	pairs := []*pki.Pair{serving}
	o.CertFile, o.KeyFile = serving.CertFile, serving.KeyFile
	for base, client := range map[string]struct {
		spec pki.Spec
		file string
	}{
		"kubelet-client": {pki.Node(name), o.Kubeconfig},
		"proxy-client":   {pki.Client("system:kube-proxy"), o.ProxyKubeconfig},
	} {
		pair, err := f.ca.EnsurePair(filepath.Join(l.PKI(), base), client.spec)
		if err != nil {
			return nil, err
		}
		pairs = append(pairs, pair)
		if err := kubeconfig.Write(client.file, kubeconfig.Config{
			Name: kubeconfig.DefaultName, User: client.spec.CommonName, CA: f.ca.CertPEM, Cert: pair.CertPEM, Key: pair.KeyPEM,
			Server: f.server(machine),
			// The certificate of the API server may not contain the address of the bridge yet.
			ServerName: "kubernetes",
		}); err != nil {
			return nil, err
		}
	}
	return pairs, o.Save(l)
}

// remove deletes the i-th additional node from the cluster and from the machine. It deletes the
// node's pods, so that controllers replace them. It deletes the node's data last: after a crash,
// the data shows that the removal is not complete.
func (f *nodeManager) remove(ctx context.Context, i int) error {
	began := time.Now()
	name := additionalNodeName(f.cluster, i)
	if err := teardown.DownAdditionalNode(ctx, io.Discard, f.layout, i); err != nil {
		return err
	}
	if err := f.kube.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting node %q: %w", name, err)
	}
	pods, err := f.kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", name).String()})
	if err != nil {
		return fmt.Errorf("listing the pods of node %q: %w", name, err)
	}
	immediately := int64(0)
	for i := range pods.Items {
		p := &pods.Items[i]
		err := f.kube.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &immediately, Preconditions: &metav1.Preconditions{UID: &p.UID}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("deleting pod %s of node %q: %w", p.Name, name, err)
		}
	}
	if err := hostjournal.RemoveTree(f.layout.Numbered(i).Data); err != nil {
		return fmt.Errorf("deleting the data of node %q: %w", name, err)
	}
	f.steps.Done(began, "node %q was removed", name)
	return nil
}

// errStarting is the error of an `up` during the first start of the cluster, while files that it reads do not exist.
var errStarting = errors.New("the cluster is still starting; try again later")

// startingError returns errStarting if err reports a missing file, otherwise err.
func startingError(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errStarting
	}
	return err
}

// updateNodes changes the number of nodes of a cluster that runs in another process, enables the add-ons of --with, and
// returns when all nodes are ready. It returns errStarting during the first start of the cluster.
func (o *upOptions) updateNodes(ctx context.Context, l layout.Node, s *progress.Steps) error {
	t, err := pidlock.AcquireLifecycle(ctx, l, false)
	if err != nil {
		return err
	}
	defer t.Release()
	f := nodeManager{layout: l, steps: s, noSeccompDefault: o.noSeccompDefault, proxyMode: o.packetFilter(), cloudProvider: o.cloudProvider, apiServer: apiServerAddress(&o.settings)}
	var found bool
	if f.cluster, found, err = clusterconfig.Load(l); err != nil || !found {
		return errors.Join(err, errStarting)
	}
	if f.desired, err = updateAdditionalNodes(l, o.nodes, network.Mode(o.podNetwork)); err != nil {
		return err
	}
	if f.ca, err = pki.LoadCA(filepath.Join(l.PKI(), "ca")); err != nil {
		return startingError(err)
	}
	var clients *client.Clients
	if clients, err = node.NewClients("kubeconfig", clusterconfig.AdminKubeconfig(l), "hyperkube"); err != nil {
		return startingError(err)
	}
	if _, err := addons.Enable(ctx, clients.Kube, o.addons, nil); err != nil {
		return err
	}
	f.kube, f.nodes = clients.Kube, clients.Informers.Core().V1().Nodes().Informer()
	informing, stop := context.WithCancel(ctx)
	defer clients.Informers.Shutdown()
	defer stop()
	clients.Informers.StartWithContext(informing)
	ctx, cancel := context.WithTimeout(ctx, progress.DefaultTimeout)
	defer cancel()
	return f.ensure(ctx)
}
