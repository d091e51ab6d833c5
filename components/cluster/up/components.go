package up

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"

	"hyperkube/components/apiserver"
	"hyperkube/components/apiserver/authn"
	"hyperkube/components/apiserver/compose"
	"hyperkube/components/cluster/applyset"
	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/node"
	"hyperkube/components/controllers"
	"hyperkube/components/controllers/loadbalancer"
	"hyperkube/components/controllers/nodelifecycle"
	"hyperkube/components/etcd"
	"hyperkube/components/metrics"
	"hyperkube/components/scheduler"
	"hyperkube/internal/client"
	"hyperkube/internal/credentials/encryption"
	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/credentials/tokens"
	"hyperkube/internal/host/layout"
)

// newEtcd returns the etcd member of the cluster. It listens only on 127.0.0.1, with TLS and client certificates. If
// its disk is full, this process executes itself to restart the cluster. The error for invalid flags of the
// configuration file is a configuration error.
func (c *clusterRun) newEtcd(ctx context.Context) (*etcd.Server, error) {
	url := func(port int) []string { return []string{fmt.Sprintf("https://127.0.0.1:%d", port)} }
	secure := func(p *pki.Pair) etcd.TLS {
		return etcd.TLS{CertFile: p.CertFile, KeyFile: p.KeyFile, TrustedCAFile: c.pki.EtcdCA.CertFile, ClientCertAuth: true}
	}
	cfg := etcd.Config{
		DataDir: c.layout.Etcd(), Name: c.cluster.NodeName,
		ListenClientURLs: url(layout.PortEtcdClient), ListenPeerURLs: url(layout.PortEtcdPeer),
		ClientTLS: secure(c.pki.EtcdServer), PeerTLS: secure(c.pki.EtcdPeer),
		Log: c.log.With("component", "etcd"),
		// It returns only if the process must exit.
		DiskFull: func(err error) { _ = c.resumer.resume(ctx, err) },
	}
	if flags := c.settings.Components.Etcd; flags != nil {
		var err error
		if cfg, err = flags.Apply(cfg); err != nil {
			return nil, command.ConfigError(err)
		}
	}
	return etcd.New(cfg)
}

// newAPIServer returns the API server and opens the socket on which it listens. usage is the handler of the metrics
// API, which the API server serves itself. Invalid service CIDRs and flags are configuration errors.
func (c *clusterRun) newAPIServer(ctx context.Context, db *etcd.Server, usage *metricsAPI) (*compose.Server, error) {
	keys, err := tokens.LoadKeySet(c.pki.ServiceAccountPubFile)
	if err != nil {
		return nil, err
	}
	cfg := compose.Config{
		Etcd:     db.Client(),
		CertFile: c.pki.APIServer.CertFile, KeyFile: c.pki.APIServer.KeyFile,
		ClientCAFile: c.pki.CA.CertFile, FrontProxyCAFile: c.pki.FrontProxyCA.CertFile,
		FrontProxy:    authn.FrontProxy{AllowedNames: []string{"front-proxy-client"}},
		ProxyCertFile: c.pki.FrontProxyClient.CertFile, ProxyKeyFile: c.pki.FrontProxyClient.KeyFile,
		// Pod IPs are reachable from this process as soon as the pods run.
		EndpointRouting: true,
		LocalAPIs:       usage.apis(),
		BootstrapTokens: true,
		Issuers:         []string{"https://kubernetes.default.svc." + c.cluster.Domain},
		Key:             c.pki.ServiceAccountKey, Keys: keys,
		Advertise: netip.AddrPortFrom(c.addresses[0], uint16(layout.PortAPIServer)),
		Kubelet: apiserver.KubeletConfig{
			ClientCertFile: c.pki.APIServerKubeletClient.CertFile, ClientKeyFile: c.pki.APIServerKubeletClient.KeyFile,
			CAFile: c.pki.CA.CertFile, AddressTypes: []string{"InternalIP", "Hostname"},
		},
		Components: map[string]func(context.Context) (string, error){"scheduler": healthy, "controller-manager": healthy},
		Profiling:  true,
		Limits:     apiserver.Limits{Stored: db.MaxRequestBytes()},
		Tracing:    c.settings.Components.Tracing,
		Log:        c.log.With("component", "kube-apiserver"),
	}
	if cfg.Audit, err = c.auditConfig(); err != nil {
		return nil, err
	}
	for _, text := range c.cluster.ServiceCIDRs {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, command.ConfigError(fmt.Errorf("service CIDR: %w", err))
		}
		cfg.ServiceCIDRs = append(cfg.ServiceCIDRs, prefix.Masked())
	}
	if flags := c.settings.Components.APIServer; flags != nil {
		if cfg, err = flags.Apply(cfg); err != nil {
			return nil, command.ConfigError(err)
		}
		if cfg.Encryption, err = flags.LoadEncryption(context.WithoutCancel(ctx), encryptionFile(c.layout), cfg.Log); err != nil {
			return nil, err
		}
		if cfg.Listener, err = flags.Listen(ctx); err != nil {
			return nil, err
		}
		return compose.New(cfg)
	}
	if cfg.Encryption, err = encryption.Load(context.WithoutCancel(ctx), encryption.Config{Path: encryptionFile(c.layout)}); err != nil {
		return nil, err
	}
	if cfg.Listener, err = net.Listen("tcp", fmt.Sprintf(":%d", layout.PortAPIServer)); err != nil {
		return nil, fmt.Errorf("listening for API requests: %w", err)
	}
	return compose.New(cfg)
}

// healthy reports the health of a component in this process, which is always ok because the process
// exits if the component fails.
func healthy(context.Context) (string, error) { return "ok", nil }

// parts are the components that use the API, and their clients. The clients share one set of informers.
type parts struct {
	admin, shared *client.Clients
	controllers   *controllers.Manager
	scheduler     *scheduler.Scheduler
	node          node.Config
	// metrics is the server of the metrics API. mapper finds the resource of a kind in the registry of the API server.
	metrics *metrics.InProcess
	mapper  applyset.Mapper
}

// live requests /livez and returns an error unless the API server and etcd of this process answer. It is the health
// check of the systemd watchdog.
func (p *parts) live(ctx context.Context) error {
	return p.admin.Kube.Discovery().RESTClient().Get().AbsPath("/livez").Do(ctx).Error()
}

// clientBuilder creates clients of the API server in this process. All of them use the informers of shared.
type clientBuilder struct {
	api    *compose.Server
	shared *client.Clients
}

// For implements client.Builder for the controllers: it returns clients that authenticate as the service account name
// in kube-system.
func (b clientBuilder) For(name string) (*client.Clients, error) {
	const agent = "kube-controller-manager"
	clients, err := b.api.MeasuredClients(b.shared.Requests, agent, "system:serviceaccount:kube-system:"+name, "system:serviceaccounts", "system:serviceaccounts:kube-system")
	if err != nil {
		return nil, err
	}
	clients.Informers = b.shared.Informers
	return clients, nil
}

// clientsAs returns clients that authenticate as user and groups, with agent as their user agent.
func (b clientBuilder) clientsAs(agent, user string, groups ...string) (*client.Clients, error) {
	clients, err := b.api.Clients(agent, user, groups...)
	if err != nil {
		return nil, err
	}
	clients.Informers = b.shared.Informers
	return clients, nil
}

// newParts creates the components that use the API, without starting them. It also sets the handler of usage, and
// creates or renews the serving certificate of the kubelet. The informers stop when ctx is done.
func (c *clusterRun) newParts(ctx context.Context, api *compose.Server, db *etcd.Server, usage *metricsAPI) (*parts, error) {
	p := &parts{mapper: api}
	var err error
	if p.shared, err = api.Clients("kube-controller-manager", "system:kube-controller-manager"); err != nil {
		return nil, err
	}
	b := clientBuilder{api: api, shared: p.shared}
	if p.admin, err = b.clientsAs("hyperkube", "kubernetes-admin", "system:masters"); err != nil {
		return nil, err
	}
	var podCIDRs, serviceCIDRs []netip.Prefix
	for from, to := range map[*[]string]*[]netip.Prefix{&c.cluster.PodCIDRs: &podCIDRs, &c.cluster.ServiceCIDRs: &serviceCIDRs} {
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
	controllersConfig := controllers.Config{
		Clients: p.shared, Builder: b,
		Controllers: []string{"*", "load-balancer-controller"},
		LoadBalancer: loadbalancer.Config{
			Reserved: append(loadbalancer.ComponentPorts(),
				loadbalancer.Port{Protocol: corev1.ProtocolTCP, Number: int32(apiServerAddress(&c.settings).Port())}),
			Pool: c.loadBalancerPool,
		},
		CloudProvider:     c.cloudProvider,
		AllocateNodeCIDRs: true, ClusterCIDRs: podCIDRs, ServiceCIDRs: serviceCIDRs,
		RootCA: c.pki.CA.CertPEM, SecretTokens: secretTokens,
		Signing:       controllers.SignWith(c.pki.CA.Cert, c.pki.CA.Key),
		NodeLifecycle: nodelifecycle.Config{GracePeriod: c.nodeMonitorGracePeriod},
		Metadata:      controllers.SharedInformers(ctx, p.shared),
		Tracing:       c.settings.Components.Tracing,
		Log:           c.log.With("component", "kube-controller-manager"),
	}
	if flags := c.settings.Components.Controllers; flags != nil {
		if controllersConfig, err = flags.Apply(controllersConfig); err != nil {
			return nil, command.ConfigError(err)
		}
	}
	if p.controllers, err = controllers.New(controllersConfig); err != nil {
		return nil, err
	}
	schedulerClients, err := b.clientsAs("kube-scheduler", "system:kube-scheduler")
	if err != nil {
		return nil, err
	}
	schedulerConfig := scheduler.Config{
		Clients: schedulerClients,
		// Pods that are created before the node otherwise wait a second for a retry.
		InitialBackoff: 20 * time.Millisecond,
		Tracing:        c.settings.Components.Tracing,
		Log:            c.log.With("component", "kube-scheduler"),
	}
	if flags := c.settings.Components.Scheduler; flags != nil {
		if schedulerConfig, err = flags.Apply(schedulerConfig); err != nil {
			return nil, command.ConfigError(err)
		}
	}
	if p.scheduler, err = scheduler.New(schedulerConfig); err != nil {
		return nil, err
	}
	p.node = node.Config{
		Layout: c.layout, Cluster: c.cluster, Addresses: c.addresses, SharedInformers: true,
		NetworkMode: c.additional.Network,
		ClusterDNS:  []string{c.cluster.DNSAddress}, ClientCA: c.pki.CA.Pool(), Journal: c.journal, Log: c.log,
		NoSeccompDefault: c.noSeccompDefault, CloudProvider: c.cloudProvider, CredentialProviders: c.credentialProviders,
		Settings: node.Settings{Kubelet: c.kubeletConfig, KubeletFlags: c.settings.Components.Kubelet, Proxy: c.settings.Components.Proxy},
	}
	if p.node.Kubelet, err = b.clientsAs("kubelet", "system:node:"+c.cluster.NodeName, "system:nodes"); err != nil {
		return nil, err
	}
	if p.node.Proxy, err = b.clientsAs("kube-proxy", "system:kube-proxy"); err != nil {
		return nil, err
	}
	if p.metrics, err = c.newMetrics(p.shared, usage, controlPlane{api, db, p.controllers}); err != nil {
		return nil, err
	}
	if err := c.ensureServingCertificate(); err != nil {
		return nil, err
	}
	p.node.Certificate = func() (*tls.Certificate, error) { return c.servingCert.Load(), nil }
	return p, nil
}
