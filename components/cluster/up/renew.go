package up

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"hyperkube/components/cluster/certrenewal"
	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/localnodes"
	"hyperkube/components/cluster/node"
	"hyperkube/components/cluster/pidlock"
	"hyperkube/components/cluster/progress"
	"hyperkube/components/cluster/teardown"
	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/host/layout"
)

// ensureCertificates creates the missing certificates of the control plane. It renews those that
// are invalid or expire soon.
func (c *clusterRun) ensureCertificates() (*pki.Set, error) {
	cfg := pki.Config{NodeName: c.cluster.NodeName, ClusterDomain: c.cluster.Domain}
	cfg.ExtraNames = c.extraNames()
	for _, a := range c.addresses {
		cfg.NodeAddresses = append(cfg.NodeAddresses, a.AsSlice())
	}
	for _, cidr := range c.cluster.ServiceCIDRs {
		first, err := clusterconfig.NthAddress(cidr, 1)
		if err != nil {
			return nil, err
		}
		cfg.ServiceAddresses = append(cfg.ServiceAddresses, first.AsSlice())
	}
	return pki.Ensure(c.layout.PKI(), cfg)
}

// extraNames returns the names and addresses that the configuration adds to the certificate of the API server.
func (c *clusterRun) extraNames() []string {
	names := slices.Clone(c.settings.CertSANs)
	if address := apiServerAddress(&c.settings).Addr(); !address.IsUnspecified() {
		names = append(names, address.String())
	}
	return names
}

// ensureServingCertificate creates or renews the serving certificate of the kubelet and starts using it.
func (c *clusterRun) ensureServingCertificate() error {
	pair, err := c.kubeletServing()
	if err != nil {
		return err
	}
	certificate := pair.TLS()
	c.servingCert.Store(&certificate)
	return nil
}

// kubeletServing returns the serving certificate of the kubelet on this node. It creates or renews the certificate if
// necessary.
func (c *clusterRun) kubeletServing() (*pki.Pair, error) {
	return c.pki.CA.EnsurePair(filepath.Join(c.layout.PKI(), "kubelet"), pki.KubeletServer(c.cluster.NodeName, node.ServingNames(c.addresses)...))
}

// admin returns the client certificate of the administrator. It creates or renews the certificate if necessary.
func (c *clusterRun) admin() (*pki.Pair, error) {
	return c.pki.CA.EnsurePair(filepath.Join(c.layout.PKI(), "admin"), pki.Client("kubernetes-admin", "system:masters"))
}

// maintainCertificates renews the certificates of a running cluster and its additional nodes until ctx is done. Servers
// and clients reload their certificate files when these change; an additional node is restarted.
func (c *clusterRun) maintainCertificates(ctx context.Context, p *parts) error {
	return certrenewal.RunRenewal(ctx, c.log, "renewing certificates failed; the existing certificates stay in use until they expire, retrying in a minute", func() (time.Time, error) {
		return c.renewCertificates(ctx, p)
	})
}

// renewCertificates renews the certificates that expire soon and returns the time of the next renewal. New
// connections then use a renewed serving certificate of the kubelet, and a renewed certificate of the administrator
// is written to the kubeconfigs. If no certificate can be renewed later, the result is the time of the next check.
func (c *clusterRun) renewCertificates(ctx context.Context, p *parts) (next time.Time, err error) {
	set, err := c.ensureCertificates()
	if err != nil {
		return next, err
	}
	serving, err := c.kubeletServing()
	if err != nil {
		return next, err
	}
	if shown := c.servingCert.Load(); shown == nil || !shown.Leaf.Equal(serving.Cert) {
		c.log.Info("kubelet serving certificate renewed, new connections to the kubelet use it", "notAfter", serving.Cert.NotAfter)
		certificate := serving.TLS()
		c.servingCert.Store(&certificate)
	}
	admin, err := c.admin()
	if err != nil {
		return next, err
	}
	if !c.adminCert.Equal(admin.Cert) {
		c.log.Info("administrator certificate renewed, writing it to the kubeconfigs now", "notAfter", admin.Cert.NotAfter)
		if err := c.writeKubeconfigs(); err != nil {
			return next, err
		}
	}
	additional, err := c.renewAdditionalNodes(ctx, p)
	for _, pair := range append(append(set.Pairs(), serving, admin), additional...) {
		// A certificate that expires together with its CA cannot be renewed.
		if at := pair.RenewAt(); (next.IsZero() || at.Before(next)) && at.After(time.Now()) {
			next = at
		}
	}
	if next.IsZero() {
		next = time.Now().Add(certrenewal.MaxCheckInterval)
	}
	return next, err
}

// renewAdditionalNodes renews the certificates of the additional nodes and returns them. A node with a renewed
// certificate is restarted; its pods keep running. It returns nil if there are no additional nodes, and if another
// process is changing them, which renews their certificates too.
func (c *clusterRun) renewAdditionalNodes(ctx context.Context, p *parts) (pairs []*pki.Pair, err error) {
	// Another process may have added nodes since the start.
	saved, err := loadAdditionalNodes(c.layout)
	if err != nil || saved.Count < 2 {
		return nil, err
	}
	lock, err := pidlock.Acquire(c.layout.PIDFile("nodes"))
	if errors.Is(err, pidlock.ErrHeld) {
		return nil, nil // the process that starts nodes renews their certificates
	}
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	f := c.newNodeManager(p, saved)
	f.steps = progress.New(func(progress.Step) {})
	machine, err := f.openNetwork(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, machine.Journal.Close()) }()
	for i := 1; i < saved.Count; i++ {
		l := c.layout.Numbered(i)
		before := additionalNodeCertificates(l)
		if len(before) == 0 {
			continue // the node was not created yet
		}
		nodePairs, err := f.configure(machine, i)
		if err != nil {
			return pairs, err
		}
		pairs = append(pairs, nodePairs...)
		if bytes.Equal(before, additionalNodeCertificates(l)) {
			continue
		}
		c.log.Info("certificates of additional node renewed, restarting the node", "node", additionalNodeName(f.cluster, i))
		if err := teardown.StopMain(ctx, io.Discard, l); err != nil {
			return pairs, err
		}
		if err := startWithTimeout(ctx, f, machine, i); err != nil {
			return pairs, err
		}
	}
	return pairs, nil
}

// startWithTimeout starts an additional node and fails if the node is not ready after progress.DefaultTimeout. Without
// the timeout, such a node would prevent the renewal for other nodes and changes of the number of nodes.
func startWithTimeout(ctx context.Context, f nodeManager, machine *localnodes.Network, i int) error {
	ctx, cancel := context.WithTimeout(ctx, progress.DefaultTimeout)
	defer cancel()
	return f.start(ctx, machine, i)
}

// additionalNodeCertificates returns the contents of the certificate files of an additional node, or nil if one of them
// cannot be read.
func additionalNodeCertificates(l layout.Node) []byte {
	var all []byte
	for _, name := range []string{"kubelet", "kubelet-client", "proxy-client"} {
		data, err := os.ReadFile(filepath.Join(l.PKI(), name+".crt"))
		if err != nil {
			return nil
		}
		all = append(all, data...)
	}
	return all
}
