// Package storageversionmigrator rewrites all objects of a resource as the API
// server would store them today: after a change of the encryption or of a custom
// resource's storage version.
//
// https://kubernetes.io/docs/tasks/manage-kubernetes-objects/storage-version-migration/
package storageversionmigrator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	storagemigrationlisters "k8s.io/client-go/listers/storagemigration/v1"
	"k8s.io/client-go/metadata"

	"hyperkube/components/controllers/internal/control"
)

const (
	fieldManager = "storage-version-migrator-controller"
	// page is how many objects are listed at once.
	page = 500

	reasonRunning   = "StorageVersionMigrationInProgress"
	reasonSucceeded = "StorageVersionMigrationSucceeded"
	reasonFailed    = "StorageVersionMigrationFailed"
)

// Config is what a migration needs besides the migrations themselves.
type Config struct {
	Discovery discovery.DiscoveryInterface
	// Metadata lists and patches the objects.
	Metadata metadata.Interface
}

// Controller migrates. Make it with New.
type Controller struct {
	*control.Loop
	env        control.Env
	cfg        Config
	migrations storagemigrationlisters.StorageVersionMigrationLister
}

// New makes the controller.
func New(env control.Env, cfg Config) (*Controller, error) {
	env = env.Defaulted()
	if cfg.Discovery == nil || cfg.Metadata == nil {
		return nil, errors.New("storageversionmigrator: a client is missing")
	}
	migrations := env.Informers.Storagemigration().V1().StorageVersionMigrations()
	c := &Controller{env: env, cfg: cfg, migrations: migrations.Lister()}
	c.Loop = control.NewLoop(env, "storageversionmigrator", c.sync)
	look := func(m *storagemigrationv1.StorageVersionMigration) { c.Add(m.Name) }
	return c, c.Watch(migrations.Informer(), control.Handlers(look, func(_, m *storagemigrationv1.StorageVersionMigration) { look(m) }, nil))
}

func (c *Controller) sync(ctx context.Context, name string) error {
	m, err := c.migrations.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	is := func(t storagemigrationv1.MigrationConditionType) bool {
		return meta.IsStatusConditionTrue(m.Status.Conditions, string(t))
	}
	if is(storagemigrationv1.MigrationSucceeded) || is(storagemigrationv1.MigrationFailed) {
		return nil
	}
	gvr, kind, err := c.resource(m.Spec.Resource)
	if err != nil {
		return err
	}
	if gvr.Empty() {
		return c.end(ctx, m, storagemigrationv1.MigrationFailed, reasonFailed, fmt.Sprintf("resource %s does not exist or cannot be listed and patched", m.Spec.Resource.String()))
	}
	if m.Status.ResourceVersion == "" || !is(storagemigrationv1.MigrationRunning) {
		next := m.DeepCopy()
		if next.Status.ResourceVersion == "" {
			list, err := c.cfg.Metadata.Resource(gvr).List(ctx, metav1.ListOptions{Limit: 1})
			if err != nil {
				return fmt.Errorf("reading the resource version of %s: %w", gvr.GroupResource(), err)
			}
			next.Status.ResourceVersion = list.ResourceVersion
		}
		c.set(next, storagemigrationv1.MigrationRunning, metav1.ConditionTrue, reasonRunning, "")
		// The change brings us back here.
		return c.update(ctx, next)
	}
	if err := c.rewrite(ctx, gvr, kind); err != nil {
		if ctx.Err() != nil {
			return err
		}
		return c.end(ctx, m, storagemigrationv1.MigrationFailed, reasonFailed, err.Error())
	}
	return c.end(ctx, m, storagemigrationv1.MigrationSucceeded, reasonSucceeded, "")
}

func (c *Controller) set(m *storagemigrationv1.StorageVersionMigration, t storagemigrationv1.MigrationConditionType, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{
		Type: string(t), Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(c.env.Clock.Now()),
	})
}

func (c *Controller) end(ctx context.Context, m *storagemigrationv1.StorageVersionMigration, t storagemigrationv1.MigrationConditionType, reason, message string) error {
	next := m.DeepCopy()
	c.set(next, storagemigrationv1.MigrationRunning, metav1.ConditionFalse, reason, message)
	c.set(next, t, metav1.ConditionTrue, reason, message)
	return c.update(ctx, next)
}

func (c *Controller) update(ctx context.Context, m *storagemigrationv1.StorageVersionMigration) error {
	_, err := c.env.Kube.StoragemigrationV1().StorageVersionMigrations().UpdateStatus(ctx, m, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// resource finds the version that the API server prefers; an empty one if there
// is none that can be rewritten.
func (c *Controller) resource(r metav1.GroupResource) (schema.GroupVersionResource, schema.GroupVersionKind, error) {
	lists, err := c.cfg.Discovery.ServerPreferredResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return schema.GroupVersionResource{}, schema.GroupVersionKind{}, fmt.Errorf("looking for %s: %w", r.String(), err)
	}
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil || gv.Group != r.Group {
			continue
		}
		for _, x := range l.APIResources {
			if x.Name == r.Resource && slices.Contains(x.Verbs, "list") && slices.Contains(x.Verbs, "patch") {
				return gv.WithResource(x.Name), gv.WithKind(x.Kind), nil
			}
		}
	}
	return schema.GroupVersionResource{}, schema.GroupVersionKind{}, nil
}

// rewrite applies nothing to each object, which makes the API server store it
// again if it would store it otherwise than it is.
func (c *Controller) rewrite(ctx context.Context, gvr schema.GroupVersionResource, kind schema.GroupVersionKind) error {
	opts := metav1.ListOptions{Limit: page}
	for {
		list, err := c.cfg.Metadata.Resource(gvr).List(ctx, opts)
		if apierrors.IsResourceExpired(err) && opts.Continue != "" {
			// What was done already costs little the second time.
			opts.Continue = ""
			continue
		}
		if err != nil {
			return fmt.Errorf("listing %s: %w", gvr.GroupResource(), err)
		}
		for i := range list.Items {
			if err := c.touch(ctx, gvr, kind, &list.Items[i]); err != nil {
				return err
			}
		}
		if opts.Continue = list.Continue; opts.Continue == "" {
			return nil
		}
	}
}

func (c *Controller) touch(ctx context.Context, gvr schema.GroupVersionResource, kind schema.GroupVersionKind, obj *metav1.PartialObjectMetadata) error {
	version, k := kind.ToAPIVersionAndKind()
	patch, err := json.Marshal(metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{APIVersion: version, Kind: k},
		ObjectMeta: metav1.ObjectMeta{
			Name: obj.Name, Namespace: obj.Namespace, UID: obj.UID, ResourceVersion: obj.ResourceVersion,
		},
	})
	if err != nil {
		return fmt.Errorf("encoding a patch: %w", err)
	}
	_, err = c.cfg.Metadata.Resource(gvr).Namespace(obj.Namespace).Patch(ctx, obj.Name, types.ApplyPatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		// It is gone, or was written meanwhile, as a write does it now.
		return nil
	}
	if err != nil {
		return fmt.Errorf("migrating %s %s: %w", gvr.GroupResource(), obj.Namespace+"/"+obj.Name, err)
	}
	return nil
}
