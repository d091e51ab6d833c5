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

// Config is the configuration of a Server, which serves the custom resources of all definitions.
type Config struct {
	// Registry contains the resource customresourcedefinitions. The server adds the resources that
	// the definitions define.
	Registry *registry.Registry
	// Fields maintains managed fields: of the definitions' status here, and of custom resources in
	// the REST handlers.
	Fields *fieldmanager.Managers
	// Resolver resolves the Services of conversion webhooks to addresses. Nil means their cluster
	// IPs.
	Resolver webhook.ServiceResolver
	// Log may be nil.
	Log *slog.Logger
}

// Server serves the custom resources of all CustomResourceDefinitions, and maintains the status of
// the definitions.
type Server struct {
	cfg         Config
	definitions *registry.Resource
	webhooks    *webhooks
	ready       chan struct{}

	// The following fields are only used by Run.

	// known contains the current CustomResourceDefinitions by name.
	known map[string]*crd
	// served contains what the server has added to the registry, by the name of the definition.
	served map[string]*served
	// cleaning contains the UIDs of definitions whose instances are being deleted.
	cleaning map[string]bool
	cleaners sync.WaitGroup
}

// served is a definition whose resources have been added to the registry.
type served struct {
	*definition
	resources   []*api.Resource
	terminating bool
	// early means that the resource is served although the condition Established has not been written yet. Discovery
	// does not include it, because clients that wait for it would conflict with the write of the condition.
	early bool
}

// New validates cfg and returns a Server. Nothing is served before Run is called.
func New(cfg Config) (*Server, error) {
	if cfg.Registry == nil || cfg.Fields == nil {
		return nil, errors.New("custom resources require a registry and field managers")
	}
	definitions := cfg.Registry.Lookup(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	if definitions == nil {
		return nil, errors.New("custom resources require that CustomResourceDefinitions are served")
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

// Ready returns a channel that is closed when the custom resources of all definitions that existed at startup are
// served.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Run adds and removes custom resources according to the definitions, and writes the status of the definitions, until
// ctx is canceled or the store is stopped, for which it returns nil. It returns an error if the definitions cannot be
// listed or watched.
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
			continue // list again
		case err != nil:
			return fmt.Errorf("watching custom resource definitions: %w", err)
		}
	}
}

// follow lists all definitions, adds their resources to the registry, closes ready, writes their status, and then
// handles each change. It returns the error that ends the watch; for store.ErrTooOld it must be called again.
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

// read decodes the definition in e, an entry of the watch cache. If that fails, it logs the error and returns nil.
func (s *Server) read(e *store.Entry) *crd {
	obj, err := s.definitions.Read(e)
	if err != nil {
		s.cfg.Log.Error("CustomResourceDefinition in etcd cannot be decoded; its custom resources are not served or keep their previous definition: restore its encryption key and restart the API server, or delete it with the delete option ignoreStoreReadErrorWithClusterBreakingPotential", "key", e.Key(), "err", err)
		return nil
	}
	d, ok := obj.(*crd)
	if !ok {
		return nil
	}
	return d
}

// event handles the creation, change or deletion of a definition. After a deletion or a change of
// accepted names, it also updates the other definitions of the group, because they may be waiting
// for a name that is free now.
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
		// The definition may have released a name.
		s.syncGroup(ctx, d.Spec.Group, d.Name)
	}
}

// syncGroup calls sync for all definitions of a group except the one named but.
func (s *Server) syncGroup(ctx context.Context, group, but string) {
	for name, d := range s.known {
		if d.Spec.Group == group && name != but {
			s.sync(ctx, name)
		}
	}
}

// sync writes the status of a definition if it is not as desired, and starts the cleanup of a deleted definition. A
// definition that becomes established is served before its status is written, but is included in discovery only
// afterwards. Otherwise a client that waits for it in discovery, and then reads and updates the definition, would
// conflict with the status update. It only logs errors.
func (s *Server) sync(ctx context.Context, name string) {
	d := s.known[name]
	wish := d.DeepCopy()
	updateStatus(wish, takenNamesOf(d.Spec.Group, s.known))
	if !equality.Semantic.DeepEqual(wish.Status, d.Status) {
		s.serveAs(wish, true)
		stored, err := s.update(ctx, name, func(now *crd) bool {
			if now.UID != d.UID || now.Generation != d.Generation {
				return false // an event will follow
			}
			updateStatus(now, takenNamesOf(d.Spec.Group, s.known))
			return true
		})
		if err != nil {
			if ctx.Err() == nil {
				s.cfg.Log.Error("writing status of CustomResourceDefinition failed; clients do not see whether it is established, and new custom resources are missing in discovery; retrying at the next change of the definition or the next start of the API server", "crd", name, "err", err)
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

// serve updates the registry to the current state of the definition with the name, which must be in s.known. See
// serveAs.
func (s *Server) serve(name string) { s.serveAs(s.known[name], false) }

// serveAs updates the registry so that the resources of d are served. It does nothing if d has no accepted names, if
// nothing has changed, or if a built-in resource has the same name. It logs an error and changes nothing if d is
// invalid. early means that the status of d has not been written yet, so discovery does not include the resources.
func (s *Server) serveAs(d *crd, early bool) {
	if !apihelpers.IsCRDConditionTrue(d, apiextensionsv1.Established) && !apihelpers.IsCRDConditionTrue(d, apiextensionsv1.NamesAccepted) {
		return
	}
	terminating := d.DeletionTimestamp != nil || apihelpers.IsCRDConditionTrue(d, apiextensionsv1.Terminating)
	before := s.served[d.Name]
	same := before != nil && before.crd.UID == d.UID &&
		equality.Semantic.DeepEqual(before.crd.Spec, d.Spec) && equality.Semantic.DeepEqual(before.names, d.Status.AcceptedNames)
	// What discovery already includes stays there.
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
			s.cfg.Log.Error("CustomResourceDefinition is invalid; its custom resources are not served or keep their previous definition: correct the definition", "crd", d.Name, "err", err)
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
		return // a built-in resource
	}
	s.forgetFields(before)
	s.served[d.Name] = now
}

// forget removes a deleted definition from s.known and its resources, if they are served, from the registry.
func (s *Server) forget(name string) {
	delete(s.known, name)
	if before := s.served[name]; before != nil {
		s.cfg.Registry.Replace(schema.GroupResource{Group: before.crd.Spec.Group, Resource: before.names.Plural}, false)
		s.forgetFields(before)
		delete(s.served, name)
	}
}

// forgetFields removes the cached field managers of resources that have been replaced or removed.
// before may be nil.
func (s *Server) forgetFields(before *served) {
	if before == nil {
		return
	}
	for _, res := range before.resources {
		s.cfg.Fields.Forget(res)
	}
}
