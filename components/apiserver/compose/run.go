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
	"hyperkube/components/apiserver/identity"
	"hyperkube/components/apiserver/tokentracking"
	"hyperkube/internal/lifecycle"
	"hyperkube/internal/store"
)

// lateAdmission is filled before the server runs.
type lateAdmission struct{ utiladmission.Interface }

// Admit as admission.MutationInterface.
func (l *lateAdmission) Admit(ctx context.Context, a utiladmission.Attributes, o utiladmission.ObjectInterfaces) error {
	if m, ok := l.Interface.(utiladmission.MutationInterface); ok {
		return m.Admit(ctx, a, o)
	}
	return nil
}

// Validate as admission.ValidationInterface.
func (l *lateAdmission) Validate(ctx context.Context, a utiladmission.Attributes, o utiladmission.ObjectInterfaces) error {
	if v, ok := l.Interface.(utiladmission.ValidationInterface); ok {
		return v.Validate(ctx, a, o)
	}
	return nil
}

// StopTimeout is as of lifecycle.Patient. Before the server itself a dozen parts
// end, most of them at once; some first tell etcd or other servers that they go.
func (s *Server) StopTimeout() time.Duration { return s.server.StopTimeout() + 20*time.Second }

// Run serves until ctx ends. What it needs in order: the store, the informers
// by which requests are decided about, the objects that a cluster starts with.
func (s *Server) Run(ctx context.Context) error {
	group := &lifecycle.Group{}
	background := context.WithoutCancel(ctx)
	fail := func(err error) error { return errors.Join(err, group.Stop()) }

	if s.audit != nil {
		// It is stopped last, and sends what it still has.
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
	// Closed once all that a cluster starts with is written.
	written := make(chan struct{})
	group.Start(background, "informers", lifecycle.Func(func(ctx context.Context) error {
		select {
		case <-written:
			s.own.Informers.StartWithContext(ctx)
			<-ctx.Done()
		case <-ctx.Done():
		}
		s.own.Informers.Shutdown()
		return nil
	}))
	group.Start(background, "webhooks and policies", s.dynamic)
	if s.cfg.CompactionInterval >= 0 {
		for client, one := range s.server.Stores() {
			group.Start(background, "compaction", &store.Compactor{Client: client, Interval: s.cfg.CompactionInterval, Compacted: one.Forget, Log: s.cfg.Log})
		}
	}
	if err := s.begin(ctx, group, background, written); err != nil {
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

// begin writes what a cluster starts with, then closes written, and starts what
// keeps it from then on.
// Requests whose fate depends on an informer wait for that by themselves, so
// informers begin with all of it: whoever hears that the server is ready is
// not refused for a role that an informer has yet to see.
func (s *Server) begin(ctx context.Context, group *lifecycle.Group, background context.Context, written chan<- struct{}) error {
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
		group.Start(background, "the configuration of priority and fairness", &fairness.Keeper{
			Informers: s.own.Informers, Log: s.cfg.Log,
			Keep: func(ctx context.Context) error { return bootstrap.KeepFlowControl(ctx, s.server.Registry()) },
		})
	}
	group.Start(background, "service addresses", lifecycle.Func(s.addresses.Run))
	group.Start(background, "aggregation", s.others)
	tracking, err := tokentracking.New(tokentracking.Config{
		ConfigMaps: s.server.Registry().Collection(schema.GroupResource{Resource: "configmaps"}), Kube: s.own.Kube, Log: s.cfg.Log,
	})
	if err != nil {
		return err
	}
	group.Start(background, "the tracking of tokens", tracking)
	group.Start(background, "the trust of aggregated servers", s.trust)
	if err := s.identify(group, background); err != nil {
		return err
	}
	if s.cfg.Advertise.IsValid() {
		cfg := bootstrap.KeeperConfig{
			Registry: s.server.Registry(), ServiceIP: firstOf(s.cfg.ServiceCIDRs[0]), Advertise: s.cfg.Advertise, Log: s.cfg.Log,
		}
		cfg.NoEndpoints, cfg.NodePort = s.cfg.NoEndpoints, s.cfg.ServiceNodePort
		if s.cfg.Shared && !s.cfg.NoEndpoints {
			cfg.Etcd, cfg.Prefix = s.cfg.Etcd, s.cfg.EtcdPrefix
			if cfg.Prefix == "" {
				cfg.Prefix = "/registry"
			}
		}
		keeper, err := bootstrap.NewKeeper(cfg)
		if err != nil {
			return err
		}
		group.Start(background, "the Service kubernetes", keeper)
	}
	return nil
}

// identify lets others know of this server.
func (s *Server) identify(group *lifecycle.Group, background context.Context) error {
	hostname, err := hostname()
	if err != nil {
		return err
	}
	keeper, err := identity.New(identity.Config{
		Leases: s.own.Kube.CoordinationV1().Leases(metav1.NamespaceSystem), Hostname: hostname, Log: s.cfg.Log,
	})
	if err != nil {
		return err
	}
	group.Start(background, "identity", keeper)
	return nil
}

func hostname() (string, error) {
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("the identity of this API server: %w", err)
	}
	return strings.ToLower(name), nil
}

// serverID is how others call this server.
func serverID() (string, error) {
	name, err := hostname()
	if err != nil {
		return "", err
	}
	return identity.Name(name), nil
}

// firstOf is the first usable address of a range.
func firstOf(p netip.Prefix) netip.Addr { return p.Masked().Addr().Next() }
