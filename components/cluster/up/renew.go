package up

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"hyperkube/components/cluster/certs"
	"hyperkube/components/cluster/identity"
	"hyperkube/components/cluster/localnodes"
	"hyperkube/components/cluster/node"
	"hyperkube/components/cluster/pidlock"
	"hyperkube/components/cluster/progress"
	"hyperkube/components/cluster/teardown"
	"hyperkube/internal/layout"
	"hyperkube/internal/pki"
)

// ensureCertificates makes those of the control plane that are missing or due.
func (c *clusterRun) ensureCertificates() (*pki.Set, error) {
	cfg := pki.Config{NodeName: c.identity.NodeName, ClusterDomain: c.identity.Domain}
	for _, a := range c.addresses {
		cfg.NodeAddresses = append(cfg.NodeAddresses, a.AsSlice())
	}
	for _, cidr := range c.identity.ServiceCIDRs {
		first, err := identity.NthAddress(cidr, 1)
		if err != nil {
			return nil, err
		}
		cfg.ServiceAddresses = append(cfg.ServiceAddresses, first.AsSlice())
	}
	return pki.Ensure(c.layout.PKI(), cfg)
}

// ensureServing makes the certificate that the kubelet shows if that is due, and
// shows it.
func (c *clusterRun) ensureServing() error {
	pair, err := c.kubeletServing()
	if err != nil {
		return err
	}
	certificate := pair.TLS()
	c.serving.Store(&certificate)
	return nil
}

func (c *clusterRun) kubeletServing() (*pki.Pair, error) {
	return c.pki.CA.EnsurePair(filepath.Join(c.layout.PKI(), "kubelet"), pki.KubeletServer(c.identity.NodeName, node.ServingNames(c.addresses)...))
}

// admin is the administrator's certificate.
func (c *clusterRun) admin() (*pki.Pair, error) {
	return c.pki.CA.EnsurePair(filepath.Join(c.layout.PKI(), "admin"), pki.Client("kubernetes-admin", "system:masters"))
}

// keepCertificates renews the certificates of a cluster that runs, those of further
// nodes too, until ctx ends. Servers and clients read their files again when these
// change.
func (c *clusterRun) keepCertificates(ctx context.Context, p *parts) error {
	return certs.KeepRenewing(ctx, c.log, "certificates cannot be renewed, trying again", func() (time.Time, error) {
		return c.renewCertificates(ctx, p)
	})
}

// renewCertificates renews what is due, and returns when the next will be.
func (c *clusterRun) renewCertificates(ctx context.Context, p *parts) (next time.Time, err error) {
	set, err := c.ensureCertificates()
	if err != nil {
		return next, err
	}
	serving, err := c.kubeletServing()
	if err != nil {
		return next, err
	}
	if shown := c.serving.Load(); shown == nil || !shown.Leaf.Equal(serving.Cert) {
		c.log.Info("the kubelet's serving certificate is renewed", "until", serving.Cert.NotAfter)
		certificate := serving.TLS()
		c.serving.Store(&certificate)
	}
	admin, err := c.admin()
	if err != nil {
		return next, err
	}
	if !c.entered.Equal(admin.Cert) {
		c.log.Info("the administrator's certificate is renewed", "until", admin.Cert.NotAfter)
		if err := c.enter(); err != nil {
			return next, err
		}
	}
	further, err := c.renewFurther(ctx, p)
	for _, pair := range append(append(set.Pairs(), serving, admin), further...) {
		// What ends with its authority cannot be renewed.
		if at := pair.RenewAt(); (next.IsZero() || at.Before(next)) && at.After(time.Now()) {
			next = at
		}
	}
	if next.IsZero() {
		next = time.Now().Add(certs.RenewLook)
	}
	return next, err
}

// renewFurther renews the certificates of the further nodes and returns them. A node
// of which any is new is started again; its pods go on.
func (c *clusterRun) renewFurther(ctx context.Context, p *parts) (pairs []*pki.Pair, err error) {
	// Others may have made nodes since the start.
	wish, err := loadFurtherNodes(c.layout)
	if err != nil || wish.Count < 2 {
		return nil, err
	}
	lock, err := pidlock.Take(c.layout.PIDFile("nodes"))
	if errors.Is(err, pidlock.ErrHeld) {
		return nil, nil // whoever starts nodes renews theirs
	}
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	f := c.fleet(p, wish)
	f.steps = progress.New(func(progress.Step) {})
	machine, err := f.machine()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, machine.Journal.Close()) }()
	for i := 1; i < wish.Count; i++ {
		l := c.layout.Numbered(i)
		before := furtherCertificates(l)
		if len(before) == 0 {
			continue // it has not been made
		}
		some, err := f.configure(machine, i)
		if err != nil {
			return pairs, err
		}
		pairs = append(pairs, some...)
		if bytes.Equal(before, furtherCertificates(l)) {
			continue
		}
		c.log.Info("certificates of a further node are renewed, and it is started again", "node", furtherName(f.identity, i))
		if err := teardown.StopMain(ctx, io.Discard, l); err != nil {
			return pairs, err
		}
		if err := startBounded(ctx, f, machine, i); err != nil {
			return pairs, err
		}
	}
	return pairs, nil
}

// startBounded is start that gives up on a node that does not become ready: others
// are to be looked after, and whoever wishes other nodes waits.
func startBounded(ctx context.Context, f fleet, machine *localnodes.Machine, i int) error {
	ctx, cancel := context.WithTimeout(ctx, progress.WaitBound)
	defer cancel()
	return f.start(ctx, machine, i)
}

// furtherCertificates is what the files of a further node's certificates hold.
func furtherCertificates(l layout.Node) []byte {
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
