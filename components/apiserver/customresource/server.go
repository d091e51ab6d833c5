package customresource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/util/webhook"

	"hyperkube/components/apiserver/fieldmanager"
	"hyperkube/components/apiserver/registry"
	"hyperkube/internal/api"
	"hyperkube/internal/store"
)

// Config of a Server.
type Config struct {
	// Registry has the definitions, and is given what they define.
	Registry *registry.Registry
	// Fields keeps managed fields.
	Fields *fieldmanager.Managers
	// Resolver finds the Services of conversion webhooks; nil: by their
	// cluster IP.
	Resolver webhook.ServiceResolver
	// Log may be nil.
	Log *slog.Logger
}

// Server follows the definitions.
type Server struct {
	cfg         Config
	definitions *registry.Resource
	webhooks    *webhooks
	ready       chan struct{}

	// What follows belongs to Run.

	// known are the definitions as they are known here, by name.
	known map[string]*crd
	// served is what the registry was given, by name.
	served map[string]*served
	// cleaning are the UIDs of definitions whose instances are being deleted.
	cleaning map[string]bool
	cleaners sync.WaitGroup
}

// served is a definition as the registry has it.
type served struct {
	*definition
	resources   []*api.Resource
	terminating bool
	// early: that it is served has not been written yet, and discovery does not
	// tell of it.
	early bool
}

// New validates cfg. Nothing is served before Run.
func New(cfg Config) (*Server, error) {
	if cfg.Registry == nil || cfg.Fields == nil {
		return nil, errors.New("custom resources need a registry and field managers")
	}
	definitions := cfg.Registry.Lookup(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	if definitions == nil {
		return nil, errors.New("custom resources need CustomResourceDefinitions to be served")
	}
	if cfg.Resolver == nil {
		cfg.Resolver = services{cfg.Registry}
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	return &Server{
		cfg: cfg, definitions: definitions, webhooks: newWebhooks(cfg.Resolver, nil), ready: make(chan struct{}),
		known: map[string]*crd{}, served: map[string]*served{}, cleaning: map[string]bool{},
	}, nil
}

// Ready is closed once all definitions that there were are served.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Run serves what is defined until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	defer s.cleaners.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		err := s.follow(ctx)
		switch {
		case ctx.Err() != nil, errors.Is(err, store.ErrStopped):
			return nil
		case errors.Is(err, store.ErrTooOld):
			continue // begin anew
		case err != nil:
			return fmt.Errorf("following custom resource definitions: %w", err)
		}
	}
}

func (s *Server) follow(ctx context.Context) error {
	page, err := s.definitions.Collection.List(ctx, store.ListOptions{Revision: -1})
	if err != nil {
		return err
	}
	now := map[string]*crd{}
	for _, e := range page.Entries {
		if d := s.read(e); d != nil {
			now[d.Name] = d
		}
	}
	for name := range s.known {
		if now[name] == nil {
			s.forget(name)
		}
	}
	s.known = now
	for name := range now {
		s.serve(name)
	}
	select {
	case <-s.ready:
	default:
		close(s.ready)
	}
	for name := range now {
		s.sync(ctx, name)
	}
	w, err := s.definitions.Collection.Watch(ctx, store.WatchOptions{Since: page.Revision})
	if err != nil {
		return err
	}
	defer w.Close()
	for {
		batch, err := w.Next(ctx)
		if err != nil {
			return err
		}
		for i := range batch.Events {
			s.event(ctx, &batch.Events[i])
		}
	}
}

func (s *Server) read(e *store.Entry) *crd {
	obj, err := s.definitions.Read(e)
	if err != nil {
		s.cfg.Log.Error("a custom resource definition cannot be read", "key", e.Key(), "err", err)
		return nil
	}
	d, ok := obj.(*crd)
	if !ok {
		return nil
	}
	return d
}

func (s *Server) event(ctx context.Context, ev *store.Event) {
	if ev.Current == nil {
		if d := s.read(ev.Previous); d != nil {
			s.forget(d.Name)
			s.syncGroup(ctx, d.Spec.Group, "")
		}
		return
	}
	d := s.read(ev.Current)
	if d == nil {
		return
	}
	before := s.known[d.Name]
	s.known[d.Name] = d
	if before != nil && before.UID != d.UID {
		s.forget(d.Name)
		s.known[d.Name] = d
	}
	s.serve(d.Name)
	s.sync(ctx, d.Name)
	if before != nil && !equality.Semantic.DeepEqual(before.Status.AcceptedNames, d.Status.AcceptedNames) {
		// It may have given a name free.
		s.syncGroup(ctx, d.Spec.Group, d.Name)
	}
}

func (s *Server) syncGroup(ctx context.Context, group, but string) {
	for name, d := range s.known {
		if d.Spec.Group == group && name != but {
			s.sync(ctx, name)
		}
	}
}

// sync gives a definition the status that it ought to have. What that makes
// servable is served before anybody can see it, but told of by discovery only once
// it is written: who has waited for it there would find that the definition that it
// then reads and updates changes once more.
func (s *Server) sync(ctx context.Context, name string) {
	d := s.known[name]
	wish := d.DeepCopy()
	decide(wish, takenOf(d.Spec.Group, s.known))
	if !equality.Semantic.DeepEqual(wish.Status, d.Status) {
		s.serveAs(wish, true)
		stored, err := s.update(ctx, name, func(now *crd) bool {
			if now.UID != d.UID || now.Generation != d.Generation {
				return false // there will be an event
			}
			decide(now, takenOf(d.Spec.Group, s.known))
			return true
		})
		if err != nil {
			if ctx.Err() == nil {
				s.cfg.Log.Error("the status of a custom resource definition cannot be written", "name", name, "err", err)
			}
			return
		}
		if stored != nil {
			s.known[name] = stored
			d = stored
			s.serve(name)
		}
	}
	if d.DeletionTimestamp != nil && apihelpers.CRDHasFinalizer(d, apiextensionsv1.CustomResourceCleanupFinalizer) {
		s.startCleanup(ctx, d)
	}
}

// serve gives the registry what a definition says now, if that is new.
func (s *Server) serve(name string) { s.serveAs(s.known[name], false) }

// serveAs serves d; early tells that its status is yet to be written.
func (s *Server) serveAs(d *crd, early bool) {
	if !apihelpers.IsCRDConditionTrue(d, apiextensionsv1.Established) && !apihelpers.IsCRDConditionTrue(d, apiextensionsv1.NamesAccepted) {
		return
	}
	terminating := d.DeletionTimestamp != nil || apihelpers.IsCRDConditionTrue(d, apiextensionsv1.Terminating)
	before := s.served[d.Name]
	same := before != nil && before.crd.UID == d.UID &&
		equality.Semantic.DeepEqual(before.crd.Spec, d.Spec) && equality.Semantic.DeepEqual(before.names, d.Status.AcceptedNames)
	// What discovery has told of stays there.
	early = early && (before == nil || before.early)
	if same && before.terminating == terminating && before.early == early {
		return
	}
	now := &served{terminating: terminating, early: early}
	if same {
		now.definition = before.definition
	} else {
		var err error
		if now.definition, err = newDefinition(d, s.webhooks.converter); err != nil {
			s.cfg.Log.Error("a custom resource cannot be served", "name", d.Name, "err", err)
			return
		}
	}
	now.resources = now.definition.resources(terminating, early)
	gr := schema.GroupResource{Group: d.Spec.Group, Resource: now.names.Plural}
	if before != nil && before.names.Plural != now.names.Plural {
		s.forget(d.Name)
		s.known[d.Name] = d
	}
	if !s.cfg.Registry.Replace(gr, same, now.resources...) {
		return // built in
	}
	s.forgetFields(before)
	s.served[d.Name] = now
}

// forget takes away what a definition defined.
func (s *Server) forget(name string) {
	delete(s.known, name)
	if before := s.served[name]; before != nil {
		s.cfg.Registry.Replace(schema.GroupResource{Group: before.crd.Spec.Group, Resource: before.names.Plural}, false)
		s.forgetFields(before)
		delete(s.served, name)
	}
}

func (s *Server) forgetFields(before *served) {
	if before == nil {
		return
	}
	for _, res := range before.resources {
		s.cfg.Fields.Forget(res)
	}
}
