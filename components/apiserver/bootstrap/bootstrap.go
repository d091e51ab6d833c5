// Package bootstrap writes the objects that every cluster starts with: RBAC's
// default policy, the system's namespaces and priority classes, the default
// range of service addresses, and the Service "kubernetes" by which pods reach
// the API. It writes past the API's own authorization, straight into the
// store, and only what is missing.
package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"

	"hyperkube/components/apiserver/registry"
	"hyperkube/internal/api"
	"hyperkube/internal/api/scheduling"
	"hyperkube/internal/lifecycle"
	"hyperkube/internal/store"
)

// Config of Run.
type Config struct {
	// Registry has the resources that are written: those of RBAC, namespaces,
	// priorityclasses and servicecidrs. What it does not serve is left out.
	Registry *registry.Registry
	// ServiceCIDRs is the default range of service addresses: one, or one of
	// each family.
	ServiceCIDRs []string
	// Log tells what was written; nil: slog's default.
	Log *slog.Logger
}

// defaultServiceCIDR is the name of the ServiceCIDR from the configuration.
const defaultServiceCIDR = "kubernetes"

const (
	// attempts to write when other API servers write the same.
	attempts = 5
	// pause before what failed is tried again.
	pause = time.Second
)

// Run writes what is missing and returns when all of it is there. What exists
// is left as it is, even if it cannot be read, but for RBAC objects that lack
// rules or subjects and have not opted out by their annotation. It waits for an
// etcd that is away or slow, as the store itself does.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	for conflicts := 0; ; {
		written, err := pass(ctx, cfg)
		if err == nil {
			if written > 0 {
				cfg.Log.Info("Wrote objects that the cluster starts with", "count", written)
			}
			return nil
		}
		var conflict *store.ConflictError
		switch {
		case errors.As(err, &conflict) && conflicts < attempts:
			conflicts++ // another API server was faster: look again
		case errors.Is(err, store.ErrUnavailable) && ctx.Err() == nil:
			cfg.Log.Warn("etcd has not taken the objects that the cluster starts with, trying again", "error", err)
			lifecycle.Pause(ctx, pause)
		default:
			return fmt.Errorf("writing the objects that the cluster starts with: %w", err)
		}
	}
}

// want is the objects of one resource that shall be there.
type want struct {
	gvr     schema.GroupVersionResource
	objects []api.Object
	// mend returns what shall replace an object that exists, or nil when it
	// is fine. It may be nil.
	mend func(existing, wanted api.Object) api.Object
}

func wants(cfg Config) []want {
	policy := DefaultPolicy()
	rbac := func(resource string) schema.GroupVersionResource {
		return rbacv1.SchemeGroupVersion.WithResource(resource)
	}
	all := []want{
		{corev1.SchemeGroupVersion.WithResource("namespaces"), objects(namespaces()), nil},
		{rbac("clusterroles"), objects(policy.ClusterRoles), mendClusterRole},
		{rbac("clusterrolebindings"), objects(policy.ClusterRoleBindings), mendClusterRoleBinding},
		{rbac("roles"), objects(policy.Roles), mendRole},
		{rbac("rolebindings"), objects(policy.RoleBindings), mendRoleBinding},
		{schedulingv1.SchemeGroupVersion.WithResource("priorityclasses"), objects(scheduling.SystemPriorityClasses()), nil},
	}
	all = append(all, flowControl()...)
	if len(cfg.ServiceCIDRs) > 0 {
		all = append(all, want{
			networkingv1.SchemeGroupVersion.WithResource("servicecidrs"),
			objects([]*networkingv1.ServiceCIDR{serviceCIDR(cfg.ServiceCIDRs)}), mendServiceCIDR,
		})
	}
	return all
}

func objects[T api.Object](list []T) []api.Object {
	out := make([]api.Object, len(list))
	for i, o := range list {
		out[i] = o
	}
	return out
}

func namespaces() []*corev1.Namespace {
	var out []*corev1.Namespace
	for _, name := range []string{metav1.NamespaceDefault, kubeSystem, kubePublic, corev1.NamespaceNodeLease} {
		out = append(out, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return out
}

func serviceCIDR(cidrs []string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: defaultServiceCIDR},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: cidrs},
		Status: networkingv1.ServiceCIDRStatus{Conditions: []metav1.Condition{{
			Type:               networkingv1.ServiceCIDRConditionReady,
			Status:             metav1.ConditionTrue,
			Message:            "Kubernetes default Service CIDR is ready",
			LastTransitionTime: metav1.Now(),
		}}},
	}
}

// pass writes what is missing once and returns how many objects that were.
func pass(ctx context.Context, cfg Config) (int, error) {
	all := wants(cfg)
	ops := make([][]store.Op, len(all))
	// Each cache is filled by a read of etcd, all at the same time.
	group, gctx := errgroup.WithContext(ctx)
	for i, w := range all {
		res := cfg.Registry.Lookup(w.gvr)
		if res == nil {
			continue
		}
		group.Go(func() error {
			var err error
			ops[i], err = missing(gctx, res, w, cfg.Log)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	return commit(ctx, ops)
}

// missing returns the operations that make w true, as far as it can be read.
func missing(ctx context.Context, res *registry.Resource, w want, log *slog.Logger) ([]store.Op, error) {
	page, err := res.Collection.List(ctx, store.ListOptions{Revision: -1})
	if err != nil {
		return nil, err
	}
	entries := make(map[string]*store.Entry, len(page.Entries))
	for _, e := range page.Entries {
		entries[e.Key()] = e
	}
	var ops []store.Op
	for _, obj := range w.objects {
		key := res.Key(obj.GetNamespace(), obj.GetName())
		e := entries[key]
		if e == nil {
			ops = append(ops, res.Collection.Create(key, prepare(ctx, res.Resource, obj), 0))
			continue
		}
		if w.mend == nil {
			continue
		}
		existing, err := e.Object()
		if err != nil {
			// Whoever is to delete it needs a server that runs.
			log.ErrorContext(ctx, "an object that the cluster starts with cannot be read", "resource", res.Plural, "key", key, "error", err)
			continue
		}
		if mended := w.mend(existing.(api.Object), obj); mended != nil {
			if mended.GetUID() == "" {
				mended = prepare(ctx, res.Resource, mended)
			}
			mended.SetResourceVersion("")
			ops = append(ops, res.Collection.Update(e, mended, 0))
		}
	}
	return ops, nil
}

// prepare makes a new object complete, as a create through the API does.
func prepare(ctx context.Context, res *api.Resource, obj api.Object) api.Object {
	given := obj.DeepCopyObject()
	res.Default(obj)
	manage(res, obj)
	res.PrepareCreate(ctx, obj)
	// A create through the API takes no status; some of these have one.
	switch o := obj.(type) {
	case *networkingv1.ServiceCIDR:
		o.Status = given.(*networkingv1.ServiceCIDR).Status
	case *flowcontrolv1.FlowSchema:
		o.Status = given.(*flowcontrolv1.FlowSchema).Status
	}
	obj.GetObjectKind().SetGroupVersionKind(res.GVK())
	obj.SetUID(uuid.NewUUID())
	obj.SetCreationTimestamp(metav1.Time{Time: time.Now().Truncate(time.Second)})
	return obj
}

// commit writes all operations in as many transactions as the longest list
// has, since a transaction has at most one of each resource (and is of one
// store). They run at the
// same time, so that etcd syncs many with one write to the disk.
func commit(ctx context.Context, ops [][]store.Op) (int, error) {
	written := 0
	group, ctx := errgroup.WithContext(ctx)
	for i := 0; ; i++ {
		txns := map[*store.Store][]store.Op{}
		for _, list := range ops {
			if i < len(list) {
				s := list[i].Store()
				txns[s] = append(txns[s], list[i])
			}
		}
		if len(txns) == 0 {
			break
		}
		for s, txn := range txns {
			written += len(txn)
			group.Go(func() error {
				_, _, err := s.Commit(ctx, txn...)
				return err
			})
		}
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	return written, nil
}
