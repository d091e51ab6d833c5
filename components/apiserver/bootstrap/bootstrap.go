// Package bootstrap writes the objects that every cluster starts with: the default RBAC policy, the
// system namespaces and priority classes, the default ServiceCIDR, and the Service "kubernetes",
// through which pods reach the API. It writes only what is missing, directly into the store without
// authorization.
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
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/store"
)

// Config is the configuration of Run, which writes the objects that every cluster starts with.
type Config struct {
	// Registry contains the resources that are written: those of RBAC, namespaces, priorityclasses
	// and servicecidrs. Resources that it does not serve are skipped.
	Registry *registry.Registry
	// ServiceCIDRs are the configured Service ranges of the cluster: one, or one per IP family. If
	// it is empty, no ServiceCIDR is written.
	ServiceCIDRs []string
	// Log receives messages about written objects. Nil means slog's default.
	Log *slog.Logger
}

// defaultServiceCIDR is the name of the ServiceCIDR object that contains the configured Service
// ranges.
const defaultServiceCIDR = "kubernetes"

const (
	// maxAttempts limits how often a write is tried again when other API servers write the same
	// objects.
	maxAttempts = 5
	// retryDelay is the delay before a failed operation is retried.
	retryDelay = time.Second
)

// Run writes the missing initial objects and returns when all of them exist. It does not change existing objects,
// even if they cannot be decoded, with two exceptions: RBAC and flow control objects that differ from the defaults
// and have not opted out by their annotation, and the ServiceCIDR of a cluster that becomes dual-stack. Run retries
// while etcd is unavailable or slow, until ctx is canceled, and up to maxAttempts conflicts with other API servers.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	for conflicts := 0; ; {
		written, err := writeMissing(ctx, cfg)
		if err == nil {
			if written > 0 {
				cfg.Log.Info("missing or changed initial cluster objects, such as namespaces and default RBAC roles, written to etcd", "count", written)
			}
			return nil
		}
		var conflict *store.ConflictError
		switch {
		case errors.As(err, &conflict) && conflicts < maxAttempts:
			conflicts++ // another API server was faster: check again
		case errors.Is(err, store.ErrUnavailable) && ctx.Err() == nil:
			cfg.Log.Warn("writing initial cluster objects failed because etcd is unavailable or slow; this API server is not ready until they are written, retrying in a second", "err", err)
			lifecycle.Pause(ctx, retryDelay)
		default:
			return fmt.Errorf("writing initial cluster objects: %w", err)
		}
	}
}

// desiredObjects contains the objects of one resource that must exist.
type desiredObjects struct {
	gvr     schema.GroupVersionResource
	objects []api.Object
	// reconcile returns a replacement for an existing object, or nil if it needs no change. It may be
	// nil.
	reconcile func(existing, wanted api.Object) api.Object
}

// desiredResources returns all initial objects, by resource. They are new copies, which the caller
// may modify.
func desiredResources(cfg Config) []desiredObjects {
	policy := DefaultPolicy()
	rbac := func(resource string) schema.GroupVersionResource {
		return rbacv1.SchemeGroupVersion.WithResource(resource)
	}
	all := []desiredObjects{
		{corev1.SchemeGroupVersion.WithResource("namespaces"), objects(namespaces()), nil},
		{rbac("clusterroles"), objects(policy.ClusterRoles), reconcileClusterRole},
		{rbac("clusterrolebindings"), objects(policy.ClusterRoleBindings), reconcileClusterRoleBinding},
		{rbac("roles"), objects(policy.Roles), reconcileRole},
		{rbac("rolebindings"), objects(policy.RoleBindings), reconcileRoleBinding},
		{schedulingv1.SchemeGroupVersion.WithResource("priorityclasses"), objects(scheduling.SystemPriorityClasses()), nil},
	}
	all = append(all, flowControlObjects()...)
	if len(cfg.ServiceCIDRs) > 0 {
		all = append(all, desiredObjects{
			networkingv1.SchemeGroupVersion.WithResource("servicecidrs"),
			objects([]*networkingv1.ServiceCIDR{serviceCIDR(cfg.ServiceCIDRs)}), reconcileServiceCIDR,
		})
	}
	return all
}

// objects converts a list of objects of one Go type, such as []*corev1.Namespace, to a list of api.Object.
func objects[T api.Object](list []T) []api.Object {
	out := make([]api.Object, len(list))
	for i, o := range list {
		out[i] = o
	}
	return out
}

// namespaces returns the namespaces that every cluster has: default, kube-system, kube-public and
// kube-node-lease.
func namespaces() []*corev1.Namespace {
	var out []*corev1.Namespace
	for _, name := range []string{metav1.NamespaceDefault, kubeSystem, kubePublic, corev1.NamespaceNodeLease} {
		out = append(out, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return out
}

// serviceCIDR returns the ServiceCIDR object for the configured ranges, with the condition Ready.
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

// writeMissing writes the missing objects once, without retries, and returns the number of writes. If it returns an
// error, some of the objects may have been written.
func writeMissing(ctx context.Context, cfg Config) (int, error) {
	all := desiredResources(cfg)
	ops := make([][]store.Op, len(all))
	// Each resource's cache is filled from etcd. Do this concurrently.
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

// missing returns the operations that create the missing objects of w, or update those that must be reconciled. It
// logs and skips existing objects that cannot be decoded and would have to be reconciled.
func missing(ctx context.Context, res *registry.Resource, w desiredObjects, log *slog.Logger) ([]store.Op, error) {
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
		if w.reconcile == nil {
			continue
		}
		existing, err := e.Object()
		if err != nil {
			// Do not fail: the server must run so that an operator can delete the object.
			log.ErrorContext(ctx, "initial cluster object in etcd cannot be decoded, so it has no effect and is not repaired: delete it with the delete option ignoreStoreReadErrorWithClusterBreakingPotential and restart the API server, which writes it again", "resource", res.Plural, "key", key, "err", err)
			continue
		}
		if repaired := w.reconcile(existing.(api.Object), obj); repaired != nil {
			if repaired.GetUID() == "" {
				repaired = prepare(ctx, res.Resource, repaired)
			}
			repaired.SetResourceVersion("")
			ops = append(ops, res.Collection.Update(e, repaired, 0))
		}
	}
	return ops, nil
}

// prepare completes a new object as a create request through the API does: default values, managed fields,
// generation, UID and creation time. It modifies and returns obj. Unlike a create request, it keeps the status of
// ServiceCIDRs and FlowSchemas.
func prepare(ctx context.Context, res *api.Resource, obj api.Object) api.Object {
	given := obj.DeepCopyObject()
	res.Default(obj)
	setManagedFields(res, obj)
	res.PrepareCreate(ctx, obj)
	// PrepareCreate clears the status. Some of these objects have one.
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

// commit executes all operations and returns their number. ops contains a list per resource. A
// transaction contains at most one operation per resource and belongs to one store, so there are as
// many rounds as the longest list has operations. The transactions run concurrently, so that etcd
// can sync many of them with one disk write.
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
