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

	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/identity"
	"hyperkube/components/cluster/localnodes"
	"hyperkube/components/cluster/node"
	"hyperkube/components/cluster/pidlock"
	"hyperkube/components/cluster/progress"
	"hyperkube/components/cluster/teardown"
	"hyperkube/components/network"
	"hyperkube/internal/atomicfile"
	"hyperkube/internal/client"
	"hyperkube/internal/hostchange"
	"hyperkube/internal/kubeconfig"
	"hyperkube/internal/layout"
	"hyperkube/internal/pki"
	"hyperkube/internal/process"
)

// furtherNodes is what a cluster keeps of the nodes that it has on this machine
// besides the first.
type furtherNodes struct {
	// Count of nodes in all; the first is one.
	Count int `json:"count"`
	// Subnet of the bridge that joins them.
	Subnet string `json:"subnet,omitempty"`
	// Network is how nodes reach each other's pods; empty: the default.
	Network network.Mode `json:"network,omitempty"`
}

func furtherNodesFile(l layout.Node) string { return filepath.Join(l.Data, "nodes.json") }

// loadFurtherNodes returns what is kept; a Count of one if nothing is.
func loadFurtherNodes(l layout.Node) (furtherNodes, error) {
	f := furtherNodes{Count: 1}
	data, err := os.ReadFile(furtherNodesFile(l))
	if errors.Is(err, os.ErrNotExist) {
		return f, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &f)
	}
	if err != nil {
		return f, fmt.Errorf("reading how many nodes there are: %w", err)
	}
	return f, nil
}

// maxLocalNodes is how many nodes `up` makes at most: more than the addresses
// of the bridge allow is no use to anybody.
const maxLocalNodes = 100

// wishFurtherNodes changes what is kept to count nodes in all and that mode of
// the network, and returns it. What is zero stays as it is.
func wishFurtherNodes(l layout.Node, count int, mode network.Mode) (furtherNodes, error) {
	f, err := loadFurtherNodes(l)
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
	if err := mode.Validate(); err != nil {
		return f, command.ConfigError(fmt.Errorf("--pod-network: %w", err))
	}
	f.Network = mode
	if count < 1 || count > maxLocalNodes {
		return f, command.ConfigError(fmt.Errorf("--nodes must be from 1 to %d", maxLocalNodes))
	}
	f.Count = count
	if f.Subnet == "" && f.Count > 1 {
		routes, err := identity.HostRoutes()
		if err != nil {
			return f, err
		}
		if f.Subnet, err = identity.FreeRange(routes, "192.168.94.0/24", "192.168.%d.0/24", 95); err != nil {
			return f, err
		}
	}
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return f, fmt.Errorf("keeping how many nodes there are: %w", err)
	}
	if err := atomicfile.Write(atomicfile.File{Path: furtherNodesFile(l), Data: append(data, '\n'), Mode: 0o644}); err != nil {
		return f, fmt.Errorf("keeping how many nodes there are: %w", err)
	}
	return f, nil
}

// furtherName is the name of the i-th further node.
func furtherName(id identity.Cluster, i int) string { return fmt.Sprintf("%s-%d", id.NodeName, i+1) }

// fleet brings the further nodes of a running cluster to their number.
type fleet struct {
	layout   layout.Node
	identity identity.Cluster
	wish     furtherNodes
	ca       *pki.CA
	kube     kubernetes.Interface
	nodes    cache.SharedIndexInformer
	steps    *progress.Steps
}

// ensure starts those that are missing and removes those that are too many. It
// returns when all are ready.
func (f *fleet) ensure(ctx context.Context) error {
	present, err := teardown.FurtherNumbers(f.layout)
	if err != nil {
		return err
	}
	bridged, err := f.bridged()
	if err != nil {
		return err
	}
	if f.wish.Count < 2 && len(present) == 0 && bridged == nil {
		return nil
	}
	lock, err := pidlock.Take(f.layout.PIDFile("nodes"))
	if errors.Is(err, pidlock.ErrHeld) {
		return errors.New("another process starts or removes nodes of this cluster")
	}
	if err != nil {
		return err
	}
	defer lock.Release()
	whole := ctx
	group, ctx := errgroup.WithContext(ctx)
	for _, i := range present {
		if i >= f.wish.Count {
			group.Go(func() error { return f.remove(ctx, i) })
		}
	}
	if f.wish.Count < 2 {
		if err := group.Wait(); err != nil {
			return err
		}
		if bridged == nil {
			return nil
		}
		return bridged.RemoveBridge(whole)
	}
	machine, err := f.machine()
	if err != nil {
		return errors.Join(err, group.Wait())
	}
	defer machine.Journal.Close()
	if err := machine.EnsureBridge(ctx); err != nil {
		return errors.Join(err, group.Wait())
	}
	for i := 1; i < f.wish.Count; i++ {
		group.Go(func() error { return f.start(ctx, machine, i) })
	}
	return group.Wait()
}

// machine is the network of the nodes, and the journal of changes to it.
func (f *fleet) machine() (*localnodes.Machine, error) {
	m, err := f.network()
	if err != nil {
		return nil, err
	}
	m.Journal, err = hostchange.Open(f.layout.Journal("nodes"))
	return m, err
}

// bridged is the network of the nodes, without a journal, while its bridge is there;
// else nil.
func (f *fleet) bridged() (*localnodes.Machine, error) {
	if f.wish.Subnet == "" {
		return nil, nil // there never were further nodes, or they got no network
	}
	m, err := f.network()
	if err != nil || !m.HasBridge() {
		return nil, err
	}
	return m, nil
}

// network is the network of the nodes, without a journal.
func (f *fleet) network() (*localnodes.Machine, error) {
	m := &localnodes.Machine{Layout: f.layout}
	var err error
	if m.Subnet, err = netip.ParsePrefix(f.wish.Subnet); err != nil {
		return nil, fmt.Errorf("%s: %w", furtherNodesFile(f.layout), err)
	}
	if m.Subnet6, err = subnet6(m.Subnet, f.identity.PodCIDRs); err != nil {
		return nil, err
	}
	for _, text := range f.identity.PodCIDRs {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("pod CIDR: %w", err)
		}
		m.PodCIDRs = append(m.PodCIDRs, prefix.Masked())
	}
	if m.Own, err = identity.NodeAddresses(f.identity.PodCIDRs); err != nil {
		return nil, err
	}
	return m, nil
}

// subnet6 is the subnet of IPv6 that goes with one of IPv4, where pods have
// addresses of that family: fd00:192:168:94::/64 with 192.168.94.0/24.
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

// furtherAddresses are those of the i-th further node that its Node tells: one of each
// family that pods have, that of the primary one first.
func furtherAddresses(machine *localnodes.Machine, i int) []string {
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

// start starts the i-th further node, unless it runs, and waits until it is
// ready.
func (f *fleet) start(ctx context.Context, machine *localnodes.Machine, i int) error {
	began := time.Now()
	l, name := f.layout.Numbered(i), furtherName(f.identity, i)
	if err := machine.EnsureNode(i); err != nil {
		return err
	}
	pid, err := pidlock.Holder(l.PIDFile(layout.MainProcess))
	if err != nil {
		return err
	}
	if pid != 0 {
		// One of another build makes way; its pods go on.
		same, err := sameProgram(fmt.Sprintf("/proc/%d/exe", pid), "/proc/self/exe")
		if err != nil && !errors.Is(err, process.ErrGone) {
			return fmt.Errorf("node %q: %w", name, err)
		}
		if !same {
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
		if f.layout != layout.Default() {
			args = append(args, "--root="+strings.TrimSuffix(f.layout.Data, layout.Default().Data))
		}
		err := localnodes.AsNode(localnodes.Namespace(f.layout, i), name, func() error {
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

// configure makes what the i-th further node's process needs on disk, and returns
// its certificates.
func (f *fleet) configure(machine *localnodes.Machine, i int) ([]*pki.Pair, error) {
	l, name, addresses := f.layout.Numbered(i), furtherName(f.identity, i), furtherAddresses(machine, i)
	o := node.Options{
		Kubeconfig: filepath.Join(l.Data, "kubelet.conf"), ProxyKubeconfig: filepath.Join(l.Data, "proxy.conf"),
		Name: name, IP: strings.Join(addresses, ","), DNS: []string{f.identity.DNSAddress}, Domain: f.identity.Domain,
		ClusterCIDRs: f.identity.PodCIDRs, ClientCA: f.ca.CertFile, Network: string(f.wish.Network),
	}
	serving, err := f.ca.EnsurePair(filepath.Join(l.PKI(), "kubelet"), pki.KubeletServer(name, slices.Concat(addresses, []string{"127.0.0.1", "localhost"})...))
	if err != nil {
		return nil, err
	}
	pairs := []*pki.Pair{serving}
	o.CertFile, o.KeyFile = serving.CertFile, serving.KeyFile
	for base, way := range map[string]struct {
		spec pki.Spec
		file string
	}{
		"kubelet-client": {pki.Node(name), o.Kubeconfig},
		"proxy-client":   {pki.Client("system:kube-proxy"), o.ProxyKubeconfig},
	} {
		pair, err := f.ca.EnsurePair(filepath.Join(l.PKI(), base), way.spec)
		if err != nil {
			return nil, err
		}
		pairs = append(pairs, pair)
		if err := kubeconfig.Write(way.file, kubeconfig.Config{
			Name: kubeconfig.DefaultName, User: way.spec.CommonName, CA: f.ca.CertPEM, Cert: pair.CertPEM, Key: pair.KeyPEM,
			Server: fmt.Sprintf("https://%s:%d", machine.Gateway(), layout.PortAPIServer),
			// The bridge may be younger than the server's certificate.
			ServerName: "kubernetes",
		}); err != nil {
			return nil, err
		}
	}
	return pairs, o.Save(l)
}

// remove takes the i-th further node out of the cluster and off the machine.
// Its pods are deleted, so that others take their place. Its data goes last: by it
// whoever comes after a kill knows that there is something left to do.
func (f *fleet) remove(ctx context.Context, i int) error {
	began := time.Now()
	name := furtherName(f.identity, i)
	if err := teardown.DownFurther(ctx, io.Discard, f.layout, i); err != nil {
		return err
	}
	if err := f.kube.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting node %q: %w", name, err)
	}
	pods, err := f.kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", name).String()})
	if err != nil {
		return fmt.Errorf("listing the pods of node %q: %w", name, err)
	}
	now := int64(0)
	for i := range pods.Items {
		p := &pods.Items[i]
		err := f.kube.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &p.UID}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("deleting pod %s of node %q: %w", p.Name, name, err)
		}
	}
	if err := hostchange.RemoveTree(f.layout.Numbered(i).Data); err != nil {
		return fmt.Errorf("deleting the data of node %q: %w", name, err)
	}
	f.steps.Done(began, "node %q is removed", name)
	return nil
}

// errJustStarting is what a second start is told while the first makes what both need.
var errJustStarting = errors.New("the cluster is only just starting")

// justStarting is err, or errJustStarting where a file was not there yet.
func justStarting(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errJustStarting
	}
	return err
}

// changeNodes brings a cluster that runs to count nodes.
func (o *upOptions) changeNodes(ctx context.Context, l layout.Node, s *progress.Steps) error {
	t, err := pidlock.TakeTurn(ctx, l, false)
	if err != nil {
		return err
	}
	defer t.End()
	f := fleet{layout: l, steps: s}
	var there bool
	if f.identity, there, err = identity.Load(l); err != nil || !there {
		return errors.Join(err, errJustStarting)
	}
	if f.wish, err = wishFurtherNodes(l, o.nodes, network.Mode(o.podNetwork)); err != nil {
		return err
	}
	if f.ca, err = pki.LoadCA(filepath.Join(l.PKI(), "ca")); err != nil {
		return justStarting(err)
	}
	var clients *client.Clients
	if clients, err = node.ClientsOf("kubeconfig", identity.AdminKubeconfig(l), "hyperkube"); err != nil {
		return justStarting(err)
	}
	f.kube, f.nodes = clients.Kube, clients.Informers.Core().V1().Nodes().Informer()
	informing, stop := context.WithCancel(ctx)
	defer clients.Informers.Shutdown()
	defer stop()
	clients.Informers.StartWithContext(informing)
	ctx, cancel := context.WithTimeout(ctx, progress.WaitBound)
	defer cancel()
	return f.ensure(ctx)
}
