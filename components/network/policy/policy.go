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
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"hyperkube/internal/iptables"
	"hyperkube/internal/lifecycle"
)

// Config of an Enforcer.
type Config struct {
	NodeName string
	// Bridge is the name of the pods' bridge.
	Bridge string
	// Informers of policies, started by who composes the process, and of pods
	// and namespaces, which are asked for and started with the first policy.
	Informers informers.SharedInformerFactory
	// Log receives warnings; nil means slog's default.
	Log *slog.Logger
}

// Enforcer keeps the rules as policies, pods and namespaces are.
type Enforcer struct {
	cfg      Config
	policies cache.SharedIndexInformer
	synced   cache.DoneChecker
	dirty    chan struct{} // has one element when something changed
	guard    *iptables.Guard

	// Owned by the goroutine of Run.
	pods, namespaces cache.SharedIndexInformer // nil before the first policy
	writers          map[bool]*writer          // by IPv6

	mu sync.Mutex // guards what follows
	// expected are pods of Expect; holding are the addresses, in order, of this node's pods for which
	// the rules are written; written is closed, and made anew, when they are.
	expected map[types.UID]expectation
	holding  map[types.UID][]netip.Addr
	written  chan struct{}
}

// New validates cfg and asks for the policies.
func New(cfg Config) (*Enforcer, error) {
	if cfg.NodeName == "" || cfg.Bridge == "" || cfg.Informers == nil {
		return nil, errors.New("network policies: a node name, the name of a bridge and informers are needed")
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	e := &Enforcer{
		cfg: cfg, policies: cfg.Informers.Networking().V1().NetworkPolicies().Informer(), dirty: make(chan struct{}, 1),
		guard:    iptables.NewGuard(0, cfg.Log, chainPolicy, chainPrefix+"*"),
		expected: map[types.UID]expectation{}, written: make(chan struct{}),
	}
	e.writers = map[bool]*writer{false: {family: iptables.IPv4, guard: e.guard}, true: {family: iptables.IPv6, guard: e.guard}}
	registration, err := e.policies.AddEventHandler(e.handler(func(old, obj any) bool {
		return equality.Semantic.DeepEqual(old.(*networkingv1.NetworkPolicy).Spec, obj.(*networkingv1.NetworkPolicy).Spec)
	}))
	if err != nil {
		return nil, fmt.Errorf("network policies: preparing informers: %w", err)
	}
	e.synced = registration.HasSyncedChecker()
	return e, nil
}

// handler touches at every change but updates for which same is true.
func (e *Enforcer) handler(same func(old, obj any) bool) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: e.touch,
		UpdateFunc: func(old, obj any) {
			if !same(old, obj) {
				e.touch(obj)
			}
		},
		DeleteFunc: e.touch,
	}
}

func (e *Enforcer) touch(any) {
	select {
	case e.dirty <- struct{}{}:
	default:
	}
}

const (
	// minPeriod is the least time between two writes of the rules.
	minPeriod  = 50 * time.Millisecond
	retryAfter = time.Second
)

// Run keeps the rules until ctx ends. They stay then.
func (e *Enforcer) Run(ctx context.Context) error {
	if !cache.WaitFor(ctx, "", e.synced) {
		return nil
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	var watching sync.WaitGroup
	defer watching.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	suspect := make(chan struct{}, 1)
	guarded := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.dirty:
		case <-timer.C:
		case <-suspect:
			lost := false
			for _, w := range e.writers {
				lost = w.lost(ctx) || lost
			}
			if !lost {
				continue
			}
			e.cfg.Log.Info("somebody removed rules of network policies: all are written again")
		}
		if !guarded && len(e.policies.GetStore().ListKeys()) > 0 {
			guarded = true
			watching.Go(func() { e.guard.Run(ctx, suspect) })
		}
		if err := e.sync(ctx); err != nil && ctx.Err() == nil {
			e.cfg.Log.Error("writing the rules of network policies failed, trying again", "err", err)
			timer.Reset(retryAfter)
		}
		// What comes meanwhile is written together.
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
	if len(state.Policies) > 0 {
		if err := e.look(ctx); err != nil {
			return err
		}
		e.fill(state)
	}
	for is6, w := range e.writers {
		set := build(state, e.cfg.Bridge, is6)
		if is6 && len(set) == 1 && w.there == nil && !e.uses6(state) {
			continue // a family that nobody uses is left alone
		}
		if err := w.write(ctx, set); err != nil {
			return err
		}
	}
	e.hold(state)
	return nil
}

// uses6 tells whether any pod has an IPv6 address.
func (e *Enforcer) uses6(s *State) bool {
	return slices.ContainsFunc(s.Pods, func(p *Pod) bool { return p.ip(true).IsValid() })
}

// look asks for pods and namespaces, the first time, and waits for them.
func (e *Enforcer) look(ctx context.Context) error {
	if e.pods != nil {
		return nil
	}
	pods, namespaces := e.cfg.Informers.Core().V1().Pods().Informer(), e.cfg.Informers.Core().V1().Namespaces().Informer()
	podsSynced, err := pods.AddEventHandler(e.handler(func(old, obj any) bool {
		return podOf(old.(*corev1.Pod), e.cfg.NodeName).equal(podOf(obj.(*corev1.Pod), e.cfg.NodeName))
	}))
	if err != nil {
		return fmt.Errorf("asking for pods: %w", err)
	}
	namespacesSynced, err := namespaces.AddEventHandler(e.handler(func(old, obj any) bool {
		return maps.Equal(old.(*corev1.Namespace).Labels, obj.(*corev1.Namespace).Labels)
	}))
	if err != nil {
		return fmt.Errorf("asking for namespaces: %w", errors.Join(err, pods.RemoveEventHandler(podsSynced)))
	}
	e.cfg.Informers.StartWithContext(ctx)
	if !cache.WaitFor(ctx, "", podsSynced.HasSyncedChecker(), namespacesSynced.HasSyncedChecker()) {
		return ctx.Err()
	}
	e.pods, e.namespaces = pods, namespaces
	return nil
}

// fill adds pods and namespaces, all in an order that does not change by
// itself.
func (e *Enforcer) fill(s *State) {
	s.Namespaces = map[string]labels.Set{}
	for _, obj := range e.namespaces.GetStore().List() {
		if ns, ok := obj.(*corev1.Namespace); ok {
			s.Namespaces[ns.Name] = ns.Labels
		}
	}
	var told []*corev1.Pod
	for _, obj := range e.pods.GetStore().List() {
		if pod, ok := obj.(*corev1.Pod); ok {
			told = append(told, pod)
		}
	}
	s.Pods = e.with(told)
	slices.SortFunc(s.Pods, func(a, b *Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	slices.SortFunc(s.Policies, func(a, b *networkingv1.NetworkPolicy) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
}
