// Package storageversionmigrator rewrites all objects of a resource in the current storage format,
// after a change of the encryption or of a custom resource's storage version.
//
// https://kubernetes.io/docs/tasks/manage-kubernetes-objects/storage-version-migration/
package storageversionmigrator

import (
	"context"
	"errors"
	"fmt"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	storagemigrationlisters "k8s.io/client-go/listers/storagemigration/v1"
	"k8s.io/client-go/metadata"

	"hyperkube/components/controllers/internal/control"
)

const (
	// fieldManager is the field manager of the patches of migrated objects.
	fieldManager = "storage-version-migrator-controller"
	// discoveryTimeout is how long a migration waits until its resource is served, because a custom
	// resource's definition may be created after the migration.
	discoveryTimeout = time.Minute

	reasonRunning   = "MigrationRunning"
	reasonCompleted = "MigrationCompleted"
	reasonSucceeded = "StorageVersionMigrationSucceeded"
	reasonFailed    = "StorageVersionMigrationFailed"
)

// Config contains the clients that find, list and patch the migrated objects, and the client of their definitions.
type Config struct {
	// Discovery finds the version and verbs of a resource.
	Discovery discovery.DiscoveryInterface
	// Metadata lists and patches the objects.
	Metadata metadata.Interface
	// Definitions are the CustomResourceDefinitions, whose status shows the migration.
	Definitions apiextensionsclient.CustomResourceDefinitionsGetter
}

// Controller executes StorageVersionMigrations. It runs one migration of each resource at a time, the oldest first. The
// keys of its queue are group resources.
type Controller struct {
	*control.Loop
	env        control.Env
	cfg        Config
	migrations storagemigrationlisters.StorageVersionMigrationLister
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. All clients in cfg
// are required. The caller then starts the informers and calls Run.
func New(env control.Env, cfg Config) (*Controller, error) {
	env = env.Defaulted()
	if cfg.Discovery == nil || cfg.Metadata == nil || cfg.Definitions == nil {
		return nil, errors.New("storageversionmigrator: discovery, metadata, and definitions clients are required")
	}
	migrations := env.Informers.Storagemigration().V1().StorageVersionMigrations()
	c := &Controller{env: env, cfg: cfg, migrations: migrations.Lister()}
	c.Loop = control.NewLoop(env, "storageversionmigrator", c.sync)
	look := func(m *storagemigrationv1.StorageVersionMigration) { c.Add(resourceOf(m).String()) }
	// When a migration is deleted, the next may start.
	return c, c.Watch(migrations.Informer(), control.Handlers(look, func(_, m *storagemigrationv1.StorageVersionMigration) { look(m) }, look))
}

// resourceOf returns the resource that m migrates.
func resourceOf(m *storagemigrationv1.StorageVersionMigration) schema.GroupResource {
	return schema.GroupResource{Group: m.Spec.Resource.Group, Resource: m.Spec.Resource.Resource}
}

// is reports whether the condition t of m is true.
func is(m *storagemigrationv1.StorageVersionMigration, t storagemigrationv1.MigrationConditionType) bool {
	return meta.IsStatusConditionTrue(m.Status.Conditions, string(t))
}

// ended reports whether m has succeeded or failed.
func ended(m *storagemigrationv1.StorageVersionMigration) bool {
	return is(m, storagemigrationv1.MigrationSucceeded) || is(m, storagemigrationv1.MigrationFailed)
}

// sync executes the next step of the migrations of the resource with the key. The step ends with an update of a
// migration's status, whose event triggers the next sync.
func (c *Controller) sync(ctx context.Context, key string) error {
	resource := schema.ParseGroupResource(key)
	all, err := c.migrations.List(labels.Everything())
	if err != nil {
		return err
	}
	var running, next *storagemigrationv1.StorageVersionMigration
	for _, m := range all {
		if resourceOf(m) != resource {
			continue
		}
		switch {
		case is(m, storagemigrationv1.MigrationRunning) && ended(m):
			if err := c.finish(ctx, m.DeepCopy()); err != nil {
				return err
			}
		case is(m, storagemigrationv1.MigrationRunning):
			running = m
		case !ended(m) && (next == nil || before(m, next)):
			next = m
		}
	}
	switch {
	case running != nil:
		return c.migrate(ctx, running.DeepCopy())
	case next != nil:
		return c.begin(ctx, next.DeepCopy())
	}
	return nil
}

// before reports whether a is older than b. Migrations of the same age are ordered by name.
func before(a, b *storagemigrationv1.StorageVersionMigration) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
}

// begin marks m as the running migration of its resource. It modifies m.
func (c *Controller) begin(ctx context.Context, m *storagemigrationv1.StorageVersionMigration) error {
	if err := c.recordStart(ctx, m); err != nil {
		return err
	}
	c.set(m, storagemigrationv1.MigrationRunning, metav1.ConditionTrue, reasonRunning, progress(0, 0, nil))
	return c.update(ctx, m)
}

// finish marks m, which has succeeded or failed, as no longer running. It modifies m.
func (c *Controller) finish(ctx context.Context, m *storagemigrationv1.StorageVersionMigration) error {
	if err := c.recordEnd(ctx, m); err != nil {
		return err
	}
	c.set(m, storagemigrationv1.MigrationRunning, metav1.ConditionFalse, reasonCompleted, "Migration completed")
	return c.update(ctx, m)
}

// migrate executes the running migration m, which it modifies. The first call records the resource version up to which
// objects must be rewritten; the second rewrites them. After a transient error it shows the error in the status and
// returns it, so that the sync is retried.
func (c *Controller) migrate(ctx context.Context, m *storagemigrationv1.StorageVersionMigration) error {
	r, err := c.resource(ctx, resourceOf(m))
	if err != nil {
		return err
	}
	if r.gvr.Empty() {
		if c.env.Clock.Now().Before(m.CreationTimestamp.Add(discoveryTimeout)) {
			c.AddRateLimited(resourceOf(m).String())
			return nil
		}
		return c.fail(ctx, m, "resource does not exist in discovery")
	}
	if !r.migratable {
		return c.fail(ctx, m, fmt.Sprintf("resource %q does not support discovery operations: %v", r.gvr.String(), verbs))
	}
	if m.Status.ResourceVersion == "" {
		if m.Status.ResourceVersion, err = c.revision(ctx, r); err != nil {
			return err
		}
		return c.update(ctx, m)
	}
	left, total, err := c.rewrite(ctx, r, m.Status.ResourceVersion)
	switch {
	case err == nil:
		c.set(m, storagemigrationv1.MigrationRunning, metav1.ConditionTrue, reasonRunning, progress(0, total, nil))
		c.set(m, storagemigrationv1.MigrationSucceeded, metav1.ConditionTrue, reasonSucceeded, "Migration completed")
		return c.update(ctx, m)
	case ctx.Err() != nil:
		return err
	case isTransient(err):
		if c.set(m, storagemigrationv1.MigrationRunning, metav1.ConditionTrue, reasonRunning, progress(left, total, err)) {
			_ = c.update(ctx, m) // best effort: the update only shows err, and the sync is retried
		}
		return err
	}
	c.set(m, storagemigrationv1.MigrationRunning, metav1.ConditionTrue, reasonRunning, progress(left, total, nil))
	return c.fail(ctx, m, fmt.Sprintf("%d/%d not yet migrated. migration encountered unhandled error: %s", left, total, err))
}

// progress returns the condition message of a running migration. left of total objects are not
// migrated yet; err is the last error, or nil.
func progress(left, total int64, err error) string {
	msg := "The migration is running"
	switch {
	case total > 0 && left > 0:
		msg += fmt.Sprintf(", %d/%d objects not yet migrated", left, total)
	case total > 0:
		msg += fmt.Sprintf(", %d objects verified migrated", total)
	}
	if err != nil {
		msg += fmt.Sprintf("; transient error: %s", err)
	}
	return msg
}

// fail marks m as failed with a message. It modifies m.
func (c *Controller) fail(ctx context.Context, m *storagemigrationv1.StorageVersionMigration, message string) error {
	c.set(m, storagemigrationv1.MigrationFailed, metav1.ConditionTrue, reasonFailed, message)
	return c.update(ctx, m)
}

// set sets the condition t of m, and reports whether it changed anything.
func (c *Controller) set(m *storagemigrationv1.StorageVersionMigration, t storagemigrationv1.MigrationConditionType, status metav1.ConditionStatus, reason, message string) bool {
	return meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{
		Type: string(t), Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(c.env.Clock.Now()),
	})
}

// update writes the status of m to the API server. It returns nil if m does not exist any more.
func (c *Controller) update(ctx context.Context, m *storagemigrationv1.StorageVersionMigration) error {
	_, err := c.env.Kube.StoragemigrationV1().StorageVersionMigrations().UpdateStatus(ctx, m, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
