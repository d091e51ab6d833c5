package compose

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiladmission "k8s.io/apiserver/pkg/admission"

	"hyperkube/components/apiserver/bootstrap"
	"hyperkube/components/apiserver/fairness"
	"hyperkube/components/apiserver/serverlease"
	"hyperkube/components/apiserver/tokentracking"
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/store"
)

// lateAdmission is an admission chain that is passed to the HTTP server before the actual chain
// exists. The actual one is set before the server runs.
type lateAdmission struct{ utiladmission.Interface }

// Admit implements admission.MutationInterface. It calls the actual chain, if that has mutating plugins.
func (l *lateAdmission) Admit(ctx context.Context, a utiladmission.Attributes, o utiladmission.ObjectInterfaces) error {
	if m, ok := l.Interface.(utiladmission.MutationInterface); ok {
		return m.Admit(ctx, a, o)
	}
	return nil
}

// Validate implements admission.ValidationInterface. It calls the actual chain, if that has validating plugins.
func (l *lateAdmission) Validate(ctx context.Context, a utiladmission.Attributes, o utiladmission.ObjectInterfaces) error {
	if v, ok := l.Interface.(utiladmission.ValidationInterface); ok {
		return v.Validate(ctx, a, o)
	}
	return nil
}

// StopTimeout implements lifecycle.StopTimeouter: Run returns within this time after its context is
// canceled. About a dozen components stop before the HTTP server. Most of them stop immediately,
// but some first notify etcd or other servers.
func (s *Server) StopTimeout() time.Duration { return s.server.StopTimeout() + 20*time.Second }

// Run serves until ctx is canceled, and then stops all parts in reverse order. It starts the HTTP server and the
// store, authentication and authorization, writes the initial cluster objects, and then starts the informers that
// authentication, authorization and admission use. If a part fails, it stops the others and returns the error.
func (s *Server) Run(ctx context.Context) error {
	defer s.traces.Flush(s.cfg.Log)
	group := &lifecycle.Group{}
	background := context.WithoutCancel(ctx)
	fail := func(err error) error { return errors.Join(err, group.Stop()) }

	if s.audit != nil {
		// It stops last, and then flushes its buffered events.
		group.Start(background, "audit", s.audit)
	}
	group.Start(background, "encryption", lifecycle.Func(s.cfg.Encryption.Run))
	group.Start(background, "server", s.server)
	if err := group.WaitReady(ctx, "the store", s.server.Ready()); err != nil {
		if ctx.Err() != nil {
			return group.Stop()
		}
		return fail(err)
	}
	group.Start(background, "authentication", lifecycle.Func(s.authn.Run))
	group.Start(background, "authorization", lifecycle.Func(s.authz.Run))
	// Closed once the initial cluster objects have been written.
	written := make(chan struct{})
	group.Start(background, "informers", lifecycle.Func(func(ctx context.Context) error {
		select {
		case <-written:
			s.ownClients.Informers.StartWithContext(ctx)
			<-ctx.Done()
		case <-ctx.Done():
		}
		s.ownClients.Informers.Shutdown()
		return nil
	}))
	group.Start(background, "webhooks and policies", s.dynamic)
	if s.cfg.CompactionInterval >= 0 {
		for client, one := range s.server.Stores() {
			group.Start(background, "compaction", &store.Compactor{Client: client, Interval: s.cfg.CompactionInterval, Compacted: one.SetCompacted, Log: s.cfg.Log})
		}
	}
	if err := s.bootstrap(ctx, group, background, written); err != nil {
		if ctx.Err() != nil {
			return group.Stop()
		}
		return fail(err)
	}
	close(s.ready)
	select {
	case <-ctx.Done():
		return group.Stop()
	case err := <-group.Failed():
		return fail(err)
	}
}

// bootstrap writes the initial cluster objects, with ctx, and closes written. It then starts the components that
// maintain these objects in group, with the context background. The informers start only after all objects are
// written, so that when the server reports ready, no request is rejected because an informer does not have a role yet.
// Requests that depend on an informer wait for it themselves.
func (s *Server) bootstrap(ctx context.Context, group *lifecycle.Group, background context.Context, written chan<- struct{}) error {
	var cidrs []string
	for _, c := range s.cfg.ServiceCIDRs {
		cidrs = append(cidrs, c.String())
	}
	if err := bootstrap.Run(ctx, bootstrap.Config{Registry: s.server.Registry(), ServiceCIDRs: cidrs, Log: s.cfg.Log}); err != nil {
		return err
	}
	close(written)
	if s.fairness != nil {
		group.Start(background, "priority and fairness", s.fairness)
		group.Start(background, "the configuration of priority and fairness", &fairness.DefaultsReconciler{
			Informers: s.ownClients.Informers, Log: s.cfg.Log,
			Reconcile: func(ctx context.Context) error { return bootstrap.ReconcileFlowControl(ctx, s.server.Registry()) },
		})
	}
	group.Start(background, "service addresses", lifecycle.Func(s.addresses.Run))
	group.Start(background, "aggregation", s.aggregator)
	tracking, err := tokentracking.New(tokentracking.Config{
		ConfigMaps: s.server.Registry().Collection(schema.GroupResource{Resource: "configmaps"}), Kube: s.ownClients.Kube, Log: s.cfg.Log,
	})
	if err != nil {
		return err
	}
	group.Start(background, "the tracking of tokens", tracking)
	group.Start(background, "the trust of aggregated servers", s.authConfigPublisher)
	if err := s.publishIdentity(group, background); err != nil {
		return err
	}
	if s.cfg.Advertise.IsValid() {
		cfg := bootstrap.ServiceReconcilerConfig{
			Registry: s.server.Registry(), ServiceIP: firstAddress(s.cfg.ServiceCIDRs[0]), Advertise: s.cfg.Advertise, Log: s.cfg.Log,
		}
		cfg.NoEndpoints, cfg.NodePort = s.cfg.NoEndpoints, s.cfg.ServiceNodePort
		if s.cfg.Shared && !s.cfg.NoEndpoints {
			cfg.Etcd, cfg.Prefix = s.cfg.Etcd, s.cfg.EtcdPrefix
			if cfg.Prefix == "" {
				cfg.Prefix = "/registry"
			}
		}
		keeper, err := bootstrap.NewServiceReconciler(cfg)
		if err != nil {
			return err
		}
		group.Start(background, "the Service kubernetes", keeper)
	}
	return nil
}

// publishIdentity starts the component that publishes the identity of this server in a Lease,
// from which clients see which API servers are running.
func (s *Server) publishIdentity(group *lifecycle.Group, background context.Context) error {
	hostname, err := hostname()
	if err != nil {
		return err
	}
	keeper, err := serverlease.New(serverlease.Config{
		Leases: s.ownClients.Kube.CoordinationV1().Leases(metav1.NamespaceSystem), Hostname: hostname, Log: s.cfg.Log,
	})
	if err != nil {
		return err
	}
	group.Start(background, "identity", keeper)
	return nil
}

// hostname returns the host's name in lower case.
func hostname() (string, error) {
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("determining API server identity: %w", err)
	}
	return strings.ToLower(name), nil
}

// serverID returns the identity of this server, which is derived from the host's name: the name of
// its Lease.
func serverID() (string, error) {
	name, err := hostname()
	if err != nil {
		return "", err
	}
	return serverlease.Name(name), nil
}

// firstAddress returns the first address of a Service range after the network address, which is the cluster IP of the
// Service kubernetes.
func firstAddress(p netip.Prefix) netip.Addr { return p.Masked().Addr().Next() }
