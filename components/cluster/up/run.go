package up

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/localnodes"
	"hyperkube/components/cluster/node"
	"hyperkube/components/cluster/progress"
	"hyperkube/components/cluster/upconfig"
	"hyperkube/components/cluster/watchdog"
	"hyperkube/components/controllers/loadbalancer/addresspool"
	"hyperkube/components/etcd"
	"hyperkube/internal/base/cloudprovider"
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/credentials/encryption"
	"hyperkube/internal/credentials/kubeconfig"
	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/host/hostaddress"
	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/host/packetfilter"
)

// clusterRun runs a cluster in this process: etcd, the control plane, and the node of this machine.
//
// Size: one field for each setting of up, and what the steps of the start have created.
type clusterRun struct {
	layout layout.Node
	// cluster is the saved configuration of the cluster, additional that of its additional nodes.
	cluster    clusterconfig.Cluster
	additional additionalNodes
	objects    objectOptions
	// loadBalancerPool are the addresses of Services of type LoadBalancer; may be empty.
	loadBalancerPool addresspool.Pool
	// nodeMonitorGracePeriod is how long a node may not report its status; 0 means the default.
	nodeMonitorGracePeriod time.Duration
	// bindAddress is the address of the servers of the controller manager and the scheduler.
	bindAddress netip.Addr
	resumer     *resumer
	steps       *progress.Steps
	log         *slog.Logger
	// mergeKubeconfig adds the cluster to the kubeconfig of the user.
	mergeKubeconfig bool
	// kubeletConfig is the KubeletConfiguration; may be nil.
	kubeletConfig *kubeletv1beta1.KubeletConfiguration
	// credentialProviders are the credential providers for image pulls.
	credentialProviders node.CredentialProviders
	// noSeccompDefault turns off seccompDefault of the nodes.
	noSeccompDefault bool
	// proxyMode is the setting how packet filter rules are written.
	proxyMode packetfilter.Mode
	// cloudProvider is External if a cloud controller manager initializes the nodes.
	cloudProvider cloudprovider.Setting
	// auditLog is the file of the API server's audit log; empty disables auditing.
	auditLog string
	// settings are the content of the configuration files.
	settings upconfig.Config

	// addresses of the node, that of the primary IP family first.
	addresses []netip.Addr
	pki       *pki.Set
	// servingCert is the serving certificate of the kubelet.
	servingCert atomic.Pointer[tls.Certificate]
	// adminCert is the administrator's certificate in the kubeconfig files.
	adminCert *x509.Certificate
	// journal records changes of the host for the node of this machine.
	journal *hostjournal.Journal
}

// run starts the components in the order of their dependencies, and stops them in reverse order when ctx is done or one
// of them fails, whose error it returns. The group stops the components one after another, so their contexts are not
// derived from the cancellation of ctx.
func (c *clusterRun) run(ctx context.Context) (err error) {
	group := &lifecycle.Group{Log: c.log}
	defer func() {
		err = errors.Join(err, group.Stop())
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			err = nil
		}
	}()
	background := context.WithoutCancel(ctx)
	// All components share the informers, which stop after them.
	informing, stopInforming := context.WithCancel(background)
	defer stopInforming()

	// The runtime is a separate process, and the last dependency that is needed.
	podCIDRs, err := clusterconfig.FirstPodCIDRs(c.cluster.PodCIDRs)
	if err != nil {
		return command.ConfigError(err)
	}
	runtime := make(chan error, 1)
	var mode packetfilter.Mode // valid when runtime has returned nil
	go func() {
		var err error
		if mode, err = node.SelectPacketFilter(ctx, c.layout, c.proxyMode); err != nil {
			runtime <- err
			return
		}
		runtime <- node.StartRuntime(ctx, c.layout, podCIDRs, mode)
	}()

	step := c.steps.Begin("certificates")
	if err := c.prepare(); err != nil {
		return err
	}
	step.Done("certificates and keys are ready")

	db, err := c.startEtcd(ctx, group)
	if err != nil {
		return err
	}
	parts, err := c.startAPIServer(ctx, informing, group, db)
	if err != nil {
		return err
	}
	if err := watchdog.Start(background, group, parts.live, c.log); err != nil {
		return err
	}
	step = c.steps.Begin("controllers")
	parts.shared.Informers.StartWithContext(informing)
	group.Start(background, "informers", lifecycle.Func(func(ctx context.Context) error {
		<-ctx.Done()
		stopInforming()
		parts.shared.Informers.Shutdown()
		return nil
	}))
	group.Start(background, "kube-controller-manager", parts.controllers)
	group.Start(background, "kube-scheduler", parts.scheduler)
	group.Start(background, "metrics API", parts.metrics)
	addons, err := c.startAddons(ctx, group, parts)
	if err != nil {
		return err
	}
	additional := make(chan error, 1)
	go func() { additional <- c.startAdditionalNodes(ctx, parts) }()
	if err := c.waitControl(ctx, group, parts); err != nil {
		return err
	}
	step.Done("the controller manager and the scheduler are ready")
	group.Start(background, "component servers", c.componentServers(parts))

	step = c.steps.Begin("node")
	if err := c.wait(ctx, group, "the container runtime", nil, receiveError(runtime)); err != nil {
		return err
	}
	group.Start(background, "container runtime", node.RuntimeSupervisor{Layout: c.layout, PodCIDRs: podCIDRs, PacketFilter: mode, Log: c.log})
	parts.node.PacketFilter = mode
	n, err := node.New(parts.node)
	if err != nil {
		return err
	}
	// node.New has added informers.
	parts.shared.Informers.StartWithContext(informing)
	group.Start(background, "node", n)
	if err := c.wait(ctx, group, "the add-on objects", addons.Describe, progress.UntilReady(addons)); err != nil {
		return err
	}
	if err := c.writeKubeconfigs(); err != nil {
		return err
	}
	if err := c.waitNode(ctx, group, parts); err != nil {
		return err
	}
	step.Done("node %q is ready", c.cluster.NodeName)
	if c.waitsForCloudProvider(parts) {
		c.steps.Send(progress.Step{Text: fmt.Sprintf("node %q has no pods until a cloud controller manager removes its taint %s", c.cluster.NodeName, cloudprovider.Taint().Key)})
	} else if addons.WasEnabled("dns") {
		if err := c.waitDNS(ctx, group, parts); err != nil {
			return err
		}
	}
	if err := c.wait(ctx, group, "the additional nodes", nil, receiveError(additional)); err != nil {
		return err
	}
	if err := c.startManifests(ctx, group, parts); err != nil {
		return err
	}
	c.resumer.setReady()
	c.steps.Send(progress.Step{Text: readyText(c.cluster, c.additional.Count), Ready: true, Result: &progress.Result{
		Kubeconfig: clusterconfig.AdminKubeconfig(c.layout), Server: c.server(), Node: c.cluster.NodeName,
	}})
	group.Start(background, "additional node rules", lifecycle.Func(func(ctx context.Context) error { return c.maintainNodeRules(ctx, parts) }))
	group.Start(background, "addresses", &addressFollower{current: c.addresses, podCIDRs: c.cluster.PodCIDRs, log: c.log})
	group.Start(background, "certificates", lifecycle.Func(func(ctx context.Context) error { return c.maintainCertificates(ctx, parts) }))

	select {
	case <-ctx.Done():
		return nil
	case err := <-group.Failed():
		return err
	}
}

// startEtcd starts etcd and returns when it accepts writes.
func (c *clusterRun) startEtcd(ctx context.Context, group *lifecycle.Group) (*etcd.Server, error) {
	step := c.steps.Begin("etcd")
	db, err := c.newEtcd(ctx)
	if err != nil {
		return nil, err
	}
	group.Start(context.WithoutCancel(ctx), "etcd", db)
	if err := c.wait(ctx, group, "etcd", nil, progress.UntilReady(db)); err != nil {
		return nil, err
	}
	step.Done("etcd is ready")
	return db, nil
}

// startAPIServer starts the API server, and returns the components that use it when the API is served. The components
// are not started. The informers stop when informing is done.
func (c *clusterRun) startAPIServer(ctx, informing context.Context, group *lifecycle.Group, db *etcd.Server) (*parts, error) {
	step := c.steps.Begin("api-server")
	usage := &metricsAPI{}
	api, err := c.newAPIServer(ctx, db, usage)
	if err != nil {
		return nil, err
	}
	group.Start(context.WithoutCancel(ctx), "kube-apiserver", api)
	parts, err := c.newParts(informing, api, db, usage)
	if err != nil {
		return nil, err
	}
	if err := c.wait(ctx, group, "the API server", nil, progress.UntilReady(api)); err != nil {
		return nil, err
	}
	step.Done("the API server is ready on %s", c.server())
	return parts, nil
}

// waitControl waits until the controller manager and the scheduler are ready.
func (c *clusterRun) waitControl(ctx context.Context, group *lifecycle.Group, p *parts) error {
	if err := c.wait(ctx, group, "the controller manager", nil, progress.UntilReady(p.controllers)); err != nil {
		return err
	}
	return c.wait(ctx, group, "the scheduler", nil, progress.UntilReady(p.scheduler))
}

// waitNode waits until this node is ready, and labels it as a control plane node.
func (c *clusterRun) waitNode(ctx context.Context, group *lifecycle.Group, p *parts) error {
	name, nodes := c.cluster.NodeName, p.shared.Informers.Core().V1().Nodes().Informer()
	if err := c.wait(ctx, group, fmt.Sprintf("node %q", name),
		func(ctx context.Context) string { return describeNode(ctx, p.admin.Kube, name) },
		func(ctx context.Context) error { return waitNodeReady(ctx, nodes, name) },
	); err != nil {
		return err
	}
	return labelControlPlane(ctx, p.admin.Kube, name)
}

// waitsForCloudProvider reports whether a cloud controller manager must still initialize this node, before pods such as
// those of DNS run on it. The node must be ready.
func (c *clusterRun) waitsForCloudProvider(p *parts) bool {
	node, err := p.shared.Informers.Core().V1().Nodes().Lister().Get(c.cluster.NodeName)
	return err == nil && cloudprovider.IsUninitialized(node)
}

// waitDNS waits until the cluster DNS answers queries of this machine at its service IP.
func (c *clusterRun) waitDNS(ctx context.Context, group *lifecycle.Group, p *parts) error {
	step := c.steps.Begin("dns")
	names := &dnsWait{
		slices: p.shared.Informers.Discovery().V1().EndpointSlices().Informer(), kube: p.admin.Kube,
		server: net.JoinHostPort(c.cluster.DNSAddress, "53"), domain: c.cluster.Domain,
	}
	if err := c.wait(ctx, group, "DNS", names.describe, names.wait); err != nil {
		return err
	}
	step.Done("DNS is ready")
	return nil
}

// startAdditionalNodes starts the additional nodes of this machine. It first waits until the first node has
// its pod CIDRs, because those are the first in the range.
func (c *clusterRun) startAdditionalNodes(ctx context.Context, p *parts) error {
	nodes := p.shared.Informers.Core().V1().Nodes().Informer()
	if err := waitForObject(ctx, nodes, func(n *corev1.Node) bool {
		return n.Name == c.cluster.NodeName && len(n.Spec.PodCIDRs) > 0
	}); err != nil {
		return err
	}
	f := c.newNodeManager(p, c.additional)
	return f.ensure(ctx)
}

// maintainNodeRules restores the packet filter rules of the additional nodes when another program removes them, until ctx
// is done. It starts when the first of them is created, which another process may do. If their configuration cannot be
// loaded, it only logs that.
func (c *clusterRun) maintainNodeRules(ctx context.Context, p *parts) error {
	first := additionalNodeName(c.cluster, 1)
	if err := waitForObject(ctx, p.shared.Informers.Core().V1().Nodes().Informer(), func(n *corev1.Node) bool { return n.Name == first }); err != nil {
		return nil // ctx is done
	}
	log := c.log.With("component", "network")
	saved, err := loadAdditionalNodes(c.layout)
	if err == nil && saved.Count > 1 {
		f := c.newNodeManager(p, saved)
		var machine *localnodes.Network
		if machine, err = f.network(ctx); err == nil {
			machine.MaintainRules(ctx, log)
			return nil
		}
	}
	if err != nil {
		log.Warn("loading the additional nodes of this machine or their network failed; if another program removes the packet filter rules of these nodes, they are not restored, and the nodes lose their connections, retrying at the next start of the cluster", "err", err)
	}
	<-ctx.Done()
	return nil
}

// newNodeManager returns the manager of the additional nodes with the desired configuration.
func (c *clusterRun) newNodeManager(p *parts, desired additionalNodes) nodeManager {
	return nodeManager{
		layout: c.layout, cluster: c.cluster, desired: desired, ca: c.pki.CA,
		kube: p.admin.Kube, nodes: p.shared.Informers.Core().V1().Nodes().Informer(), steps: c.steps, noSeccompDefault: c.noSeccompDefault, proxyMode: c.proxyMode, cloudProvider: c.cloudProvider, apiServer: apiServerAddress(&c.settings),
	}
}

// wait runs f, which waits for what. It reports at intervals what it waits for and the result of describe, which may be
// nil. It fails after progress.DefaultTimeout, or if a member of the group fails.
func (c *clusterRun) wait(ctx context.Context, group *lifecycle.Group, what string, describe func(context.Context) string, f func(context.Context) error) error {
	p := progress.Waiter{
		FirstReport: progress.FirstReport, ReportInterval: progress.ReportInterval, Timeout: progress.DefaultTimeout,
		Report: func(text string) { c.steps.Send(progress.Step{Text: text, Waiting: true}) },
		Hint: fmt.Sprintf("see %s and %s; run `hyperkube up` to retry, or `hyperkube down` to revert all changes",
			c.layout.Log(layout.MainProcess), c.layout.Log("runtime")),
	}
	return group.WaitFor(ctx, what, func(ctx context.Context) error { return p.Wait(ctx, what, describe, f) })
}

// receiveError returns a function that waits for the one value of from and returns it, or the cause of its context if
// that is done first.
func receiveError(from <-chan error) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case err := <-from:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// prepare detects the addresses of the node, and creates what the components need when they start: certificates, the
// EncryptionConfiguration and the journal of host changes. It records the cgroup of the node in the journal.
func (c *clusterRun) prepare() error {
	var err error
	if c.addresses, err = clusterconfig.NodeAddresses(c.cluster.PodCIDRs); err != nil {
		return err
	}
	if c.addresses, err = withGateways(c.addresses, c.cluster.PodCIDRs); err != nil {
		return err
	}
	if c.pki, err = c.ensureCertificates(); err != nil {
		return err
	}
	if err := encryption.Ensure(encryptionFile(c.layout)); err != nil {
		return err
	}
	if c.journal, err = hostjournal.Open(c.layout.Journal("node")); err != nil {
		return err
	}
	return node.RecordCgroupRoot(c.journal, c.layout)
}

// withGateways returns the addresses of a node, one for each pod CIDR in their order. If the machine has no address of the IP
// family of a CIDR, the node gets the first address of the CIDR, which is the address of the bridge of its pods.
func withGateways(machine []netip.Addr, pods []string) ([]netip.Addr, error) {
	out := make([]netip.Addr, 0, len(pods))
	for _, cidr := range pods {
		gateway, err := clusterconfig.NthAddress(cidr, 1)
		if err != nil {
			return nil, err
		}
		matching := slices.IndexFunc(machine, func(a netip.Addr) bool { return hostaddress.Family(a) == hostaddress.Family(gateway) })
		if matching >= 0 {
			gateway = machine[matching]
		}
		out = append(out, gateway)
	}
	return out, nil
}

// server returns the URL of the API server for users of this machine: its address, or 127.0.0.1 if it listens on all.
func (c *clusterRun) server() string {
	address := apiServerAddress(&c.settings)
	if address.Addr().IsUnspecified() {
		address = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), address.Port())
	}
	return "https://" + address.String()
}

// writeKubeconfigs writes the kubeconfig of the administrator and, unless --no-kubeconfig is set, merges it into that
// of the user.
func (c *clusterRun) writeKubeconfigs() error {
	admin, err := c.admin()
	if err != nil {
		return err
	}
	c.adminCert = admin.Cert
	cfg := kubeconfig.Config{Name: kubeconfig.DefaultName, Server: c.server(), CA: c.pki.CA.CertPEM, Cert: admin.CertPEM, Key: admin.KeyPEM}
	if err := kubeconfig.Write(clusterconfig.AdminKubeconfig(c.layout), cfg); err != nil {
		return err
	}
	if !c.mergeKubeconfig {
		return nil
	}
	target, err := kubeconfig.UserTarget(os.Getenv)
	if err != nil {
		return err
	}
	return target.Merge(cfg)
}
