package up

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"time"

	"hyperkube/components/apiserver"
	"hyperkube/components/apiserver/authn"
	"hyperkube/components/apiserver/compose"
	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/node"
	"hyperkube/components/controllers"
	"hyperkube/components/controllers/nodelifecycle"
	"hyperkube/components/etcd"
	"hyperkube/components/scheduler"
	"hyperkube/internal/client"
	"hyperkube/internal/encryption"
	"hyperkube/internal/layout"
	"hyperkube/internal/pki"
	"hyperkube/internal/tokens"
)

func (c *clusterRun) newEtcd() (*etcd.Server, error) {
	url := func(port int) []string { return []string{fmt.Sprintf("https://127.0.0.1:%d", port)} }
	secure := func(p *pki.Pair) etcd.TLS {
		return etcd.TLS{CertFile: p.CertFile, KeyFile: p.KeyFile, TrustedCAFile: c.pki.EtcdCA.CertFile, ClientCertAuth: true}
	}
	return etcd.New(etcd.Config{
		DataDir: c.layout.Etcd(), Name: c.identity.NodeName,
		ListenClientURLs: url(layout.PortEtcdClient), ListenPeerURLs: url(layout.PortEtcdPeer),
		ClientTLS: secure(c.pki.EtcdServer), PeerTLS: secure(c.pki.EtcdPeer),
		Log: c.log.With("component", "etcd"),
	})
}

func (c *clusterRun) newAPIServer(ctx context.Context, db *etcd.Server) (*compose.Server, error) {
	secrets, err := encryption.Load(context.WithoutCancel(ctx), encryption.Config{Path: encryptionFile(c.layout)})
	if err != nil {
		return nil, err
	}
	keys, err := tokens.LoadKeySet(c.pki.ServiceAccountPubFile)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", fmt.Sprintf(":%d", layout.PortAPIServer))
	if err != nil {
		return nil, fmt.Errorf("listening for API requests: %w", err)
	}
	cfg := compose.Config{
		Etcd: db.Client(), Encryption: secrets,
		Listener: listener, CertFile: c.pki.APIServer.CertFile, KeyFile: c.pki.APIServer.KeyFile,
		ClientCAFile: c.pki.CA.CertFile, FrontProxyCAFile: c.pki.FrontProxyCA.CertFile,
		FrontProxy:    authn.FrontProxy{AllowedNames: []string{"front-proxy-client"}},
		ProxyCertFile: c.pki.FrontProxyClient.CertFile, ProxyKeyFile: c.pki.FrontProxyClient.KeyFile,
		// Pods are reached from here as soon as they are there.
		EndpointRouting: true,
		BootstrapTokens: true,
		Issuers:         []string{"https://kubernetes.default.svc." + c.identity.Domain},
		Key:             c.pki.ServiceAccountKey, Keys: keys,
		Advertise: netip.AddrPortFrom(c.addresses[0], uint16(layout.PortAPIServer)),
		Kubelet: apiserver.KubeletConfig{
			ClientCertFile: c.pki.APIServerKubeletClient.CertFile, ClientKeyFile: c.pki.APIServerKubeletClient.KeyFile,
			CAFile: c.pki.CA.CertFile, AddressTypes: []string{"InternalIP", "Hostname"},
		},
		Components: map[string]func(context.Context) (string, error){"scheduler": here, "controller-manager": here},
		Profiling:  true,
		Log:        c.log.With("component", "kube-apiserver"),
	}
	for _, text := range c.identity.ServiceCIDRs {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, command.ConfigError(fmt.Errorf("service CIDR: %w", err))
		}
		cfg.ServiceCIDRs = append(cfg.ServiceCIDRs, prefix.Masked())
	}
	return compose.New(cfg)
}

// here tells how a component is that runs in this process: when it fails, the
// process ends.
func here(context.Context) (string, error) { return "ok", nil }

// parts are the components that live on the API, and their ways to it. They
// share one set of informers.
type parts struct {
	admin, shared *client.Clients
	controllers   *controllers.Manager
	scheduler     *scheduler.Scheduler
	node          node.Config
}

// builder makes the clients of controllers, each as its own service account.
type builder struct {
	api    *compose.Server
	shared *client.Clients
}

// For as client.Builder.
func (b builder) For(name string) (*client.Clients, error) {
	const agent = "kube-controller-manager"
	clients, err := b.api.MeasuredClients(b.shared.Requests, agent, "system:serviceaccount:kube-system:"+name, "system:serviceaccounts", "system:serviceaccounts:kube-system")
	if err != nil {
		return nil, err
	}
	clients.Informers = b.shared.Informers
	return clients, nil
}

// as makes a user's clients with the informers of all.
func (b builder) as(agent, user string, groups ...string) (*client.Clients, error) {
	clients, err := b.api.Clients(agent, user, groups...)
	if err != nil {
		return nil, err
	}
	clients.Informers = b.shared.Informers
	return clients, nil
}

func (c *clusterRun) newParts(ctx context.Context, api *compose.Server) (*parts, error) {
	p := &parts{}
	var err error
	if p.shared, err = api.Clients("kube-controller-manager", "system:kube-controller-manager"); err != nil {
		return nil, err
	}
	b := builder{api: api, shared: p.shared}
	if p.admin, err = b.as("hyperkube", "kubernetes-admin", "system:masters"); err != nil {
		return nil, err
	}
	var podCIDRs, serviceCIDRs []netip.Prefix
	for from, to := range map[*[]string]*[]netip.Prefix{&c.identity.PodCIDRs: &podCIDRs, &c.identity.ServiceCIDRs: &serviceCIDRs} {
		for _, text := range *from {
			prefix, err := netip.ParsePrefix(text)
			if err != nil {
				return nil, command.ConfigError(err)
			}
			*to = append(*to, prefix)
		}
	}
	secretTokens, err := tokens.NewSecretSigner(c.pki.ServiceAccountKey)
	if err != nil {
		return nil, err
	}
	p.controllers, err = controllers.New(controllers.Config{
		Clients: p.shared, Builder: b,
		AllocateNodeCIDRs: true, ClusterCIDRs: podCIDRs, ServiceCIDRs: serviceCIDRs,
		RootCA: c.pki.CA.CertPEM, SecretTokens: secretTokens,
		Signing:       controllers.SignWith(c.pki.CA.Cert, c.pki.CA.Key),
		NodeLifecycle: nodelifecycle.Config{GracePeriod: c.nodeGrace},
		Metadata:      controllers.SharedInformers(ctx, p.shared),
		Log:           c.log.With("component", "kube-controller-manager"),
	})
	if err != nil {
		return nil, err
	}
	schedulerClients, err := b.as("kube-scheduler", "system:kube-scheduler")
	if err != nil {
		return nil, err
	}
	p.scheduler, err = scheduler.New(scheduler.Config{
		Clients: schedulerClients,
		// A pod that comes before the node waits no second for it.
		InitialBackoff: 20 * time.Millisecond,
		Log:            c.log.With("component", "kube-scheduler"),
	})
	if err != nil {
		return nil, err
	}
	p.node = node.Config{
		Layout: c.layout, Identity: c.identity, Addresses: c.addresses, Shared: true,
		NetworkMode: c.further.Network,
		ClusterDNS:  []string{c.identity.DNSAddress}, ClientCA: c.pki.CA.Pool(), Journal: c.journal, Log: c.log,
		File: c.kubelet, Providers: c.providers,
	}
	if p.node.Kubelet, err = b.as("kubelet", "system:node:"+c.identity.NodeName, "system:nodes"); err != nil {
		return nil, err
	}
	if p.node.Proxy, err = b.as("kube-proxy", "system:kube-proxy"); err != nil {
		return nil, err
	}
	if err := c.ensureServing(); err != nil {
		return nil, err
	}
	p.node.Certificate = func() (*tls.Certificate, error) { return c.serving.Load(), nil }
	return p, nil
}
