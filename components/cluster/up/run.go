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

	"hyperkube/components/cluster/addons"
	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/identity"
	"hyperkube/components/cluster/localnodes"
	"hyperkube/components/cluster/node"
	"hyperkube/components/cluster/progress"
	"hyperkube/components/etcd"
	"hyperkube/internal/encryption"
	"hyperkube/internal/hostaddress"
	"hyperkube/internal/hostchange"
	"hyperkube/internal/kubeconfig"
	"hyperkube/internal/layout"
	"hyperkube/internal/lifecycle"
	"hyperkube/internal/pki"
	"hyperkube/internal/version"
	"hyperkube/manifests"
)

// clusterRun is one run of a single-node cluster in this process.
type clusterRun struct {
	layout          layout.Node
	identity        identity.Cluster
	further         furtherNodes
	nodeGrace       time.Duration
	steps           *progress.Steps
	log             *slog.Logger
	mergeKubeconfig bool
	// kubelet is its KubeletConfiguration; nil: none.
	kubelet *kubeletv1beta1.KubeletConfiguration
	// providers are those of its credentials for images.
	providers node.Providers

	// addresses of the node, the primary family's first.
	addresses []netip.Addr
	pki       *pki.Set
	// serving is what the kubelet shows.
	serving atomic.Pointer[tls.Certificate]
	// entered is the administrator's certificate in kubeconfigs.
	entered *x509.Certificate
	journal *hostchange.Journal
}

// run starts everything in the order in which one thing stands on another, and
// stops it in reverse when ctx ends. Components end when the group stops them, not
// all at once with ctx.
func (c *clusterRun) run(ctx context.Context, began time.Time) (err error) {
	group := &lifecycle.Group{Log: c.log}
	defer func() {
		err = errors.Join(err, group.Stop())
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			err = nil
		}
	}()
	background := context.WithoutCancel(ctx)
	// Informers are shared by all and outlive whoever asks for one.
	informing, stopInforming := context.WithCancel(background)
	defer stopInforming()

	// The runtime is a process of its own and is needed last.
	podCIDRs, err := identity.FirstPodCIDRs(c.identity.PodCIDRs)
	if err != nil {
		return command.ConfigError(err)
	}
	runtime := make(chan error, 1)
	go func() { runtime <- node.StartRuntime(ctx, c.layout, podCIDRs) }()

	if err := c.prepare(); err != nil {
		return err
	}
	c.steps.Done(began, "keys and certificates are made")

	db, err := c.startEtcd(ctx, group)
	if err != nil {
		return err
	}
	parts, err := c.startAPIServer(ctx, informing, group, db)
	if err != nil {
		return err
	}
	began = time.Now()
	parts.shared.Informers.StartWithContext(informing)
	group.Start(background, "informers", lifecycle.Func(func(ctx context.Context) error {
		<-ctx.Done()
		stopInforming()
		parts.shared.Informers.Shutdown()
		return nil
	}))
	group.Start(background, "kube-controller-manager", parts.controllers)
	group.Start(background, "kube-scheduler", parts.scheduler)
	addons, err := c.startAddons(ctx, group, parts)
	if err != nil {
		return err
	}
	further := make(chan error, 1)
	go func() { further <- c.startFurther(ctx, parts) }()
	if err := c.waitControl(ctx, group, parts); err != nil {
		return err
	}
	c.steps.Done(began, "controllers and scheduler work")
	group.Start(background, "ports of controllers and scheduler", c.telling(parts))

	began = time.Now()
	if err := c.wait(ctx, group, "the container runtime", nil, result(runtime)); err != nil {
		return err
	}
	group.Start(background, "container runtime", node.RuntimeKeeper{Layout: c.layout, PodCIDRs: podCIDRs, Log: c.log})
	n, err := node.New(parts.node)
	if err != nil {
		return err
	}
	// The node has asked for informers of its own.
	parts.shared.Informers.StartWithContext(informing)
	group.Start(background, "node", n)
	if err := c.wait(ctx, group, "the add-ons' objects", addons.Describe, progress.UntilReady(addons)); err != nil {
		return err
	}
	if err := c.enter(); err != nil {
		return err
	}
	if err := c.waitNode(ctx, group, parts); err != nil {
		return err
	}
	c.steps.Done(began, "node %q is ready", c.identity.NodeName)
	if err := c.waitDNS(ctx, group, parts); err != nil {
		return err
	}
	if err := c.wait(ctx, group, "the further nodes", nil, result(further)); err != nil {
		return err
	}
	c.steps.Send(progress.Step{Text: readyText(c.identity, c.further.Count), Ready: true})
	group.Start(background, "rules of further nodes", lifecycle.Func(func(ctx context.Context) error { return c.keepFurtherRules(ctx, parts) }))
	group.Start(background, "certificates", lifecycle.Func(func(ctx context.Context) error { return c.keepCertificates(ctx, parts) }))

	select {
	case <-ctx.Done():
		return nil
	case err := <-group.Failed():
		return err
	}
}

// startEtcd returns when etcd takes writes.
func (c *clusterRun) startEtcd(ctx context.Context, group *lifecycle.Group) (*etcd.Server, error) {
	began := time.Now()
	db, err := c.newEtcd()
	if err != nil {
		return nil, err
	}
	group.Start(context.WithoutCancel(ctx), "etcd", db)
	if err := c.wait(ctx, group, "etcd", nil, progress.UntilReady(db)); err != nil {
		return nil, err
	}
	c.steps.Done(began, "etcd is ready")
	return db, nil
}

// startAPIServer returns when the API is served, with what is made on it meanwhile.
// Informers end with informing.
func (c *clusterRun) startAPIServer(ctx, informing context.Context, group *lifecycle.Group, db *etcd.Server) (*parts, error) {
	began := time.Now()
	api, err := c.newAPIServer(ctx, db)
	if err != nil {
		return nil, err
	}
	group.Start(context.WithoutCancel(ctx), "kube-apiserver", api)
	parts, err := c.newParts(informing, api)
	if err != nil {
		return nil, err
	}
	if err := c.wait(ctx, group, "the API server", nil, progress.UntilReady(api)); err != nil {
		return nil, err
	}
	c.steps.Done(began, "the API server is ready on %s", c.server())
	return parts, nil
}

// startAddons starts what keeps the objects of the add-ons that are wanted.
func (c *clusterRun) startAddons(ctx context.Context, group *lifecycle.Group, p *parts) (*addons.Keeper, error) {
	objects, err := addons.Objects(manifests.Values{
		Image: version.Image(), DNSAddress: c.identity.DNSAddress, Domain: c.identity.Domain,
	}, c.identity.With...)
	if err != nil {
		return nil, err
	}
	addons := addons.NewKeeper(p.admin.Dynamic, objects, c.log)
	group.Start(context.WithoutCancel(ctx), "add-ons", addons)
	return addons, nil
}

// waitControl returns when controllers and scheduler work.
func (c *clusterRun) waitControl(ctx context.Context, group *lifecycle.Group, p *parts) error {
	if err := c.wait(ctx, group, "the controllers", nil, progress.UntilReady(p.controllers)); err != nil {
		return err
	}
	return c.wait(ctx, group, "the scheduler", nil, progress.UntilReady(p.scheduler))
}

// waitNode returns when this node is ready.
func (c *clusterRun) waitNode(ctx context.Context, group *lifecycle.Group, p *parts) error {
	name, nodes := c.identity.NodeName, p.shared.Informers.Core().V1().Nodes().Informer()
	return c.wait(ctx, group, fmt.Sprintf("node %q", name),
		func(ctx context.Context) string { return describeNode(ctx, p.admin.Kube, name) },
		func(ctx context.Context) error { return waitNodeReady(ctx, nodes, name) },
	)
}

// waitDNS returns when names are answered.
func (c *clusterRun) waitDNS(ctx context.Context, group *lifecycle.Group, p *parts) error {
	began := time.Now()
	names := &dnsWait{
		slices: p.shared.Informers.Discovery().V1().EndpointSlices().Informer(), kube: p.admin.Kube,
		server: net.JoinHostPort(c.identity.DNSAddress, "53"), domain: c.identity.Domain,
	}
	if err := c.wait(ctx, group, "DNS", names.describe, names.wait); err != nil {
		return err
	}
	c.steps.Done(began, "DNS answers")
	return nil
}

// startFurther starts the further nodes of this machine. The first node comes
// first, for the first range of pods is its.
func (c *clusterRun) startFurther(ctx context.Context, p *parts) error {
	nodes := p.shared.Informers.Core().V1().Nodes().Informer()
	if err := until(ctx, nodes, func(n *corev1.Node) bool {
		return n.Name == c.identity.NodeName && len(n.Spec.PodCIDRs) > 0
	}); err != nil {
		return err
	}
	f := c.fleet(p, c.further)
	return f.ensure(ctx)
}

// keepFurtherRules keeps the rules by which the further nodes of this machine reach what
// is outside, from the first such node on, whoever has made it.
func (c *clusterRun) keepFurtherRules(ctx context.Context, p *parts) error {
	first := furtherName(c.identity, 1)
	if err := until(ctx, p.shared.Informers.Core().V1().Nodes().Informer(), func(n *corev1.Node) bool { return n.Name == first }); err != nil {
		return nil // ctx has ended
	}
	log := c.log.With("component", "network")
	wish, err := loadFurtherNodes(c.layout)
	if err == nil && wish.Count > 1 {
		f := c.fleet(p, wish)
		var machine *localnodes.Machine
		if machine, err = f.network(); err == nil {
			machine.KeepRules(ctx, log)
			return nil
		}
	}
	if err != nil {
		log.Warn("nobody looks after the rules of the nodes of this machine", "error", err)
	}
	<-ctx.Done()
	return nil
}

// fleet are the further nodes as they are wished.
func (c *clusterRun) fleet(p *parts, wish furtherNodes) fleet {
	return fleet{
		layout: c.layout, identity: c.identity, wish: wish, ca: c.pki.CA,
		kube: p.admin.Kube, nodes: p.shared.Informers.Core().V1().Nodes().Informer(), steps: c.steps,
	}
}

// wait runs f, which waits for what, says from time to time what stands in the
// way, as describe knows, and fails after a bound or when a member of the group
// does. describe may be nil.
func (c *clusterRun) wait(ctx context.Context, group *lifecycle.Group, what string, describe func(context.Context) string, f func(context.Context) error) error {
	p := progress.Patience{
		First: progress.FirstWord, Every: progress.EveryWord, Bound: progress.WaitBound,
		Say: func(text string) { c.steps.Send(progress.Step{Text: text, Waiting: true}) },
		Advice: fmt.Sprintf("see %s and %s; `hyperkube down` takes back what was changed, `hyperkube up` tries again",
			c.layout.Log(layout.MainProcess), c.layout.Log("runtime")),
	}
	return group.While(ctx, what, func(ctx context.Context) error { return p.Wait(ctx, what, describe, f) })
}

// result waits for the one error, or nil, that comes.
func result(from <-chan error) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case err := <-from:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// prepare makes what is on disk before anything runs.
func (c *clusterRun) prepare() error {
	var err error
	if c.addresses, err = identity.NodeAddresses(c.identity.PodCIDRs); err != nil {
		return err
	}
	if c.addresses, err = withGateways(c.addresses, c.identity.PodCIDRs); err != nil {
		return err
	}
	if c.pki, err = c.ensureCertificates(); err != nil {
		return err
	}
	if err := encryption.Ensure(encryptionFile(c.layout)); err != nil {
		return err
	}
	if c.journal, err = hostchange.Open(c.layout.Journal("node")); err != nil {
		return err
	}
	return node.RecordCgroupRoot(c.journal, c.layout)
}

// withGateways are the addresses of a node, one for each range of pods in the order of
// these: on a machine apart from all others of a family, the gateway of the first node's
// pods, on the bridge, is where pods reach it.
func withGateways(machine []netip.Addr, pods []string) ([]netip.Addr, error) {
	out := make([]netip.Addr, 0, len(pods))
	for _, cidr := range pods {
		gateway, err := identity.NthAddress(cidr, 1)
		if err != nil {
			return nil, err
		}
		own := slices.IndexFunc(machine, func(a netip.Addr) bool { return hostaddress.Family(a) == hostaddress.Family(gateway) })
		if own >= 0 {
			gateway = machine[own]
		}
		out = append(out, gateway)
	}
	return out, nil
}

// server is where this machine's users reach the API.
func (c *clusterRun) server() string {
	return fmt.Sprintf("https://127.0.0.1:%d", layout.PortAPIServer)
}

// enter writes the administrator's kubeconfig, and merges it into the user's.
func (c *clusterRun) enter() error {
	admin, err := c.admin()
	if err != nil {
		return err
	}
	c.entered = admin.Cert
	cfg := kubeconfig.Config{Name: kubeconfig.DefaultName, Server: c.server(), CA: c.pki.CA.CertPEM, Cert: admin.CertPEM, Key: admin.KeyPEM}
	if err := kubeconfig.Write(identity.AdminKubeconfig(c.layout), cfg); err != nil {
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
