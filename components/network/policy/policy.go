package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"hyperkube/internal/base/broadcast"
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/client"
	"hyperkube/internal/host/packetfilter"
)

// Config configures an Enforcer.
type Config struct {
	NodeName string
	// Bridge is the name of the pods' bridge.
	Bridge string
	// Informers is the factory of the informers of policies, which the caller starts, and of pods and
	// namespaces, which the Enforcer starts when the first policy exists.
	Informers informers.SharedInformerFactory
	// Metadata and Dynamic read ClusterNetworkPolicies, while their CustomResourceDefinition exists. If one is nil, there
	// are none.
	Metadata metadata.Interface
	Dynamic  dynamic.Interface
	// PacketFilter is how rules are written. Empty means packetfilter.IPTables.
	PacketFilter packetfilter.Mode
	// Log receives warnings. Nil means slog's default.
	Log *slog.Logger
}

// Enforcer keeps this node's packet filter rules in sync with the NetworkPolicies, ClusterNetworkPolicies, pods and
// namespaces of the cluster.
type Enforcer struct {
	cfg      Config
	policies cache.SharedIndexInformer
	synced   []cache.DoneChecker
	cluster  *clusterPolicies // nil if ClusterNetworkPolicies cannot be read
	dirty    chan struct{}    // buffered: holds one element after a change
	writer   *packetfilter.Writer

	// Used only by the goroutine of Run.
	pods, namespaces cache.SharedIndexInformer // nil before the first policy exists

	mu sync.Mutex // guards the fields below
	// expected contains the pods of Expect. enforced contains the sorted addresses of local pods
	// whose rules are written. written is sent after each write.
	expected map[types.UID]expectation
	enforced map[types.UID][]netip.Addr
	written  broadcast.Broadcast
}

// New validates cfg and registers with the informer of policies. Run enforces them.
func New(cfg Config) (*Enforcer, error) {
	if cfg.NodeName == "" || cfg.Bridge == "" || cfg.Informers == nil {
		return nil, errors.New("network policies: node name, bridge name and informers are required")
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	e := &Enforcer{
		cfg: cfg, policies: cfg.Informers.Networking().V1().NetworkPolicies().Informer(), dirty: make(chan struct{}, 1),
		writer:   newWriter(cfg.PacketFilter, cfg.Log, nil),
		expected: map[types.UID]expectation{},
	}
	_ = e.policies.SetWatchErrorHandlerWithContext(client.StartErrors()) // fails only after the start
	registration, err := e.policies.AddEventHandler(e.handler(func(old, obj any) bool {
		return equality.Semantic.DeepEqual(old.(*networkingv1.NetworkPolicy).Spec, obj.(*networkingv1.NetworkPolicy).Spec)
	}))
	if err != nil {
		return nil, fmt.Errorf("network policies: adding event handler: %w", err)
	}
	e.synced = []cache.DoneChecker{registration.HasSyncedChecker()}
	if cfg.Metadata != nil && cfg.Dynamic != nil {
		if e.cluster, err = newClusterPolicies(cfg.Metadata, cfg.Dynamic, func() { e.triggerSync(nil) }); err != nil {
			return nil, fmt.Errorf("network policies: %w", err)
		}
		e.synced = append(e.synced, e.cluster)
	}
	return e, nil
}

// newWriter returns the packet filter writer for the rules of this package. backend is nil except
// in tests. Package podnet creates HK-POLICY, and records all chains of this package in the
// journal.
func newWriter(mode packetfilter.Mode, log *slog.Logger, backend packetfilter.Backend) *packetfilter.Writer {
	return packetfilter.NewWriter(packetfilter.Config{
		Owner: "network policies", Objects: []packetfilter.Chain{chain(chainPrefix + "*")}, Foreign: []packetfilter.Chain{chain(chainPolicy)},
		Guarded: []string{chainPolicy, chainPrefix + "*"}, Mode: mode, Log: log, Backend: backend,
	})
}

// handler returns an event handler that triggers a sync, except for updates for which same returns
// true.
func (e *Enforcer) handler(same func(old, obj any) bool) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: e.triggerSync,
		UpdateFunc: func(old, obj any) {
			if !same(old, obj) {
				e.triggerSync(obj)
			}
		},
		DeleteFunc: e.triggerSync,
	}
}

func (e *Enforcer) triggerSync(any) {
	select {
	case e.dirty <- struct{}{}:
	default:
	}
}

const (
	// minPeriod is the minimum time between two writes of the rules.
	minPeriod  = 50 * time.Millisecond
	retryAfter = time.Second
)

// Run maintains the rules until ctx is canceled. It logs failures and retries, and returns no
// error. The rules stay in place afterwards.
func (e *Enforcer) Run(ctx context.Context) error {
	var watching sync.WaitGroup
	defer watching.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if e.cluster != nil {
		watching.Go(func() { e.cluster.run(ctx) })
	}
	if !cache.WaitFor(ctx, "", e.synced...) {
		return nil
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	suspect := make(chan struct{}, 1)
	guarded := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.dirty:
		case <-timer.C:
		case <-suspect:
			if !e.writer.Lost(ctx) {
				continue
			}
			e.cfg.Log.Info("rules of network policies are missing, changed or unreadable, probably because of another program; policies may not have been enforced; writing the rules again now")
		}
		if !guarded && len(e.policies.GetStore().ListKeys())+len(e.cluster.list()) > 0 {
			guarded = true
			watching.Go(func() { e.writer.Run(ctx, suspect) })
		}
		if err := e.sync(ctx); err != nil && ctx.Err() == nil {
			e.cfg.Log.Error("writing rules of network policies failed; the latest changes of policies and pods are not enforced, retrying", "retryAfter", retryAfter, "err", err)
			timer.Reset(retryAfter)
		}
		// Changes in this time are written together.
		if !lifecycle.Pause(ctx, minPeriod) {
			return nil
		}
	}
}

func (e *Enforcer) sync(ctx context.Context) error {
	state := &State{}
	for _, obj := range e.policies.GetStore().List() {
		if p, ok := obj.(*networkingv1.NetworkPolicy); ok {
			state.Policies = append(state.Policies, p)
		}
	}
	state.ClusterPolicies = e.cluster.list()
	if len(state.Policies)+len(state.ClusterPolicies) > 0 {
		if err := e.startInformers(ctx); err != nil {
			return err
		}
		e.fillState(state)
	}
	for _, is6 := range []bool{false, true} {
		family, chains := packetfilter.FamilyOf(is6), build(state, e.cfg.Bridge, is6)
		if is6 && len(chains) == 1 && !e.writer.Current(family) && !e.uses6(state) {
			continue // do not touch IPv6 rules if no pod uses IPv6
		}
		if err := e.writer.Sync(ctx, family, packetfilter.Ruleset{Chains: chains}); err != nil {
			return err
		}
	}
	e.recordWritten(state)
	return nil
}

// uses6 reports whether any pod has an IPv6 address.
func (e *Enforcer) uses6(s *State) bool {
	return slices.ContainsFunc(s.Pods, func(p *Pod) bool { return p.ip(true).IsValid() })
}

// startInformers starts the informers of pods and namespaces on the first call and waits until they
// have synced. Nodes of clusters without policies do not need these informers.
func (e *Enforcer) startInformers(ctx context.Context) error {
	if e.pods != nil {
		return nil
	}
	pods, namespaces := e.cfg.Informers.Core().V1().Pods().Informer(), e.cfg.Informers.Core().V1().Namespaces().Informer()
	podsSynced, err := pods.AddEventHandler(e.handler(func(old, obj any) bool {
		return podOf(old.(*corev1.Pod), e.cfg.NodeName).equal(podOf(obj.(*corev1.Pod), e.cfg.NodeName))
	}))
	if err != nil {
		return fmt.Errorf("watching pods: %w", err)
	}
	namespacesSynced, err := namespaces.AddEventHandler(e.handler(func(old, obj any) bool {
		return maps.Equal(old.(*corev1.Namespace).Labels, obj.(*corev1.Namespace).Labels)
	}))
	if err != nil {
		return fmt.Errorf("watching namespaces: %w", errors.Join(err, pods.RemoveEventHandler(podsSynced)))
	}
	e.cfg.Informers.StartWithContext(ctx)
	if !cache.WaitFor(ctx, "", podsSynced.HasSyncedChecker(), namespacesSynced.HasSyncedChecker()) {
		return ctx.Err()
	}
	e.pods, e.namespaces = pods, namespaces
	return nil
}

// fillState adds the pods and namespaces of the cluster to s and sorts pods and policies, so that
// equal input results in equal rules.
func (e *Enforcer) fillState(s *State) {
	s.Namespaces = map[string]labels.Set{}
	for _, obj := range e.namespaces.GetStore().List() {
		if ns, ok := obj.(*corev1.Namespace); ok {
			s.Namespaces[ns.Name] = ns.Labels
		}
	}
	var known []*corev1.Pod
	for _, obj := range e.pods.GetStore().List() {
		if pod, ok := obj.(*corev1.Pod); ok {
			known = append(known, pod)
		}
	}
	s.Pods = e.withExpected(known)
	slices.SortFunc(s.Pods, func(a, b *Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	slices.SortFunc(s.Policies, func(a, b *networkingv1.NetworkPolicy) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
}
