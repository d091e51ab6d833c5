package customresource

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"hyperkube/internal/api"
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/store"
)

const (
	// manager is the name of the field manager that owns the status fields that this package
	// writes, as in upstream.
	manager = "kube-apiserver"
	// maxAttempts limits how often a write is tried again after a conflict with another writer.
	maxAttempts = 20
	// deletionTimeout is how long the cleanup waits for any change of the remaining custom
	// resources, which have finalizers. Then it reports them in the condition Terminating and
	// deletes again.
	deletionTimeout = time.Minute
	// deletionConcurrency is the number of custom resources of one definition that are deleted
	// concurrently.
	deletionConcurrency = 16
)

// update applies change to the current version of a CustomResourceDefinition, writes it with its status and returns
// the stored result. After a conflict it starts again with the current version, up to maxAttempts times. It returns
// nil if change returns false, if the definition does not exist anymore, or if the write removes the last finalizer
// of a deleted definition, which deletes it.
func (s *Server) update(ctx context.Context, name string, change func(*crd) bool) (*crd, error) {
	entry, err := s.definitions.Collection.Get(ctx, name, -1)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	for range maxAttempts {
		if err != nil {
			return nil, err
		}
		old := s.read(entry)
		if old == nil {
			return nil, fmt.Errorf("definition %s cannot be read", name)
		}
		d := old.DeepCopy()
		if !change(d) {
			return nil, nil
		}
		var op store.Op
		if d.DeletionTimestamp != nil && len(d.Finalizers) == 0 {
			op = s.definitions.Collection.Delete(entry)
		} else {
			obj, err := s.updateManagedFields(d, old)
			if err != nil {
				return nil, err
			}
			op = s.definitions.Collection.Update(entry, obj, 0)
		}
		var entries []*store.Entry
		entries, _, err = s.definitions.Collection.Store().Commit(ctx, op)
		var lost *store.ConflictError
		switch {
		case err == nil && entries[0] == nil:
			return nil, nil
		case err == nil:
			return s.read(entries[0]), nil
		case errors.As(err, &lost) && lost.Current == nil:
			return nil, nil
		case errors.As(err, &lost):
			entry, err = lost.Current, nil
		}
	}
	return nil, fmt.Errorf("definition %s is always changed by others", name)
}

// updateManagedFields returns d with managed fields that record manager as the owner of the status
// fields that differ from old.
func (s *Server) updateManagedFields(d, old *crd) (api.Object, error) {
	fields, err := s.cfg.Fields.For(s.definitions.Resource, "status")
	if err != nil {
		return nil, err
	}
	obj, ok := fields.UpdateNoErrors(old, d, manager).(api.Object)
	if !ok {
		return nil, errors.New("managed fields of a definition: not an API object")
	}
	obj.SetResourceVersion("")
	return obj, nil
}

// startCleanup starts a goroutine that deletes the custom resources of a deleted definition and then removes the
// definition's finalizer, until ctx is canceled. It retries every second after an error. It does nothing if a cleanup
// of this definition (by UID) was started before.
func (s *Server) startCleanup(ctx context.Context, d *crd) {
	uid := string(d.UID)
	if s.cleaning[uid] {
		return
	}
	s.cleaning[uid] = true
	collection := s.cfg.Registry.Collection(schema.GroupResource{Group: d.Spec.Group, Resource: d.Status.AcceptedNames.Plural})
	s.cleaners.Go(func() {
		for ctx.Err() == nil {
			err := s.cleanup(ctx, d, collection)
			if err == nil || ctx.Err() != nil {
				return
			}
			s.cfg.Log.Error("deleting the custom resources of a deleted CustomResourceDefinition failed; the definition remains with a deletion timestamp, retrying every second", "crd", d.Name, "err", err)
			s.setTerminating(ctx, d, apiextensionsv1.ConditionTrue, "InstanceDeletionFailed", fmt.Sprintf("could not issue all deletes: %v", err))
			lifecycle.Pause(ctx, time.Second)
		}
	})
}

// setTerminating writes the condition Terminating of the definition d, to show the progress of the cleanup to users.
// It does nothing if the definition does not exist anymore or was replaced by another with the same name. It only
// logs errors.
func (s *Server) setTerminating(ctx context.Context, d *crd, status apiextensionsv1.ConditionStatus, reason, message string) {
	_, err := s.update(ctx, d.Name, func(now *crd) bool {
		if now.UID != d.UID {
			return false
		}
		setCondition(now, condition{Type: apiextensionsv1.Terminating, Status: status, Reason: reason, Message: message})
		return true
	})
	if err != nil && ctx.Err() == nil {
		s.cfg.Log.Error("writing condition Terminating of CustomResourceDefinition failed; users do not see the progress of its deletion, which continues; no retry", "crd", d.Name, "err", err)
	}
}

// cleanup deletes all custom resources of a deleted definition, if it was ever established, and
// waits until they do not exist anymore. Then it removes the definition's finalizer, so that the
// definition itself is deleted. collection contains the custom resources. If it is nil, because no version is
// served, none are deleted.
func (s *Server) cleanup(ctx context.Context, d *crd, collection *store.Collection) error {
	reason, message := "NeverEstablished", "resource was never established"
	if collection != nil && apihelpers.IsCRDConditionTrue(d, apiextensionsv1.Established) {
		s.setTerminating(ctx, d, apiextensionsv1.ConditionTrue, "InstanceDeletionInProgress", "CustomResource deletion is in progress")
		if err := s.deleteInstances(ctx, d, collection); err != nil {
			return err
		}
		reason, message = "InstanceDeletionCompleted", "removed all instances"
	}
	_, err := s.update(ctx, d.Name, func(now *crd) bool {
		if now.UID != d.UID {
			return false
		}
		setCondition(now, condition{Type: apiextensionsv1.Terminating, Status: apiextensionsv1.ConditionFalse, Reason: reason, Message: message})
		apihelpers.CRDRemoveFinalizer(now, apiextensionsv1.CustomResourceCleanupFinalizer)
		return true
	})
	return err
}

// deleteInstances deletes all custom resources in collection and returns when none is left. Those with finalizers
// remain until other components remove their finalizers. After each minute without a change, it sets the condition
// Terminating and deletes the remaining ones again.
func (s *Server) deleteInstances(ctx context.Context, d *crd, collection *store.Collection) error {
	asked := false
	for {
		page, err := collection.List(ctx, store.ListOptions{Revision: -1})
		if err != nil {
			return err
		}
		if len(page.Entries) == 0 {
			return nil
		}
		if !asked {
			if err := s.deleteAll(ctx, collection, page.Entries); err != nil {
				return err
			}
			asked = true
			continue
		}
		if err := waitChange(ctx, collection, page.Revision); err != nil {
			if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, store.ErrTooOld) {
				return err
			}
			s.setTerminating(ctx, d, apiextensionsv1.ConditionTrue, "InstanceDeletionCheck",
				"could not confirm zero CustomResources remaining: context deadline exceeded")
			asked = false
		}
	}
}

// waitChange returns nil after the next change in a collection after the revision since. It returns
// context.DeadlineExceeded if there is none within deletionTimeout, or the error of the watch.
func waitChange(ctx context.Context, collection *store.Collection, since int64) error {
	ctx, cancel := context.WithTimeout(ctx, deletionTimeout)
	defer cancel()
	w, err := collection.Watch(ctx, store.WatchOptions{Since: since})
	if err != nil {
		return err
	}
	defer w.Close()
	if _, err = w.Next(ctx); err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// deleteAll calls deleteOne concurrently for all entries. It returns the first error.
func (s *Server) deleteAll(ctx context.Context, collection *store.Collection, entries []*store.Entry) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(deletionConcurrency)
	for _, e := range entries {
		group.Go(func() error { return s.deleteOne(ctx, collection, e) })
	}
	return group.Wait()
}

// deleteOne deletes one custom resource, or sets its deletion timestamp if it has finalizers. It also deletes a
// custom resource that cannot be decoded. After a conflict it tries again, up to maxAttempts times. It returns nil if
// the custom resource does not exist anymore.
func (s *Server) deleteOne(ctx context.Context, collection *store.Collection, e *store.Entry) error {
	for range maxAttempts {
		op := collection.Delete(e)
		if stored, err := e.Object(); err == nil {
			if obj, ok := stored.(api.Object); ok && len(obj.GetFinalizers()) > 0 {
				if obj.GetDeletionTimestamp() != nil {
					return nil
				}
				marked := obj.DeepCopyObject().(api.Object)
				now, none := metav1.NewTime(time.Now().Truncate(time.Second)), int64(0)
				marked.SetDeletionTimestamp(&now)
				marked.SetDeletionGracePeriodSeconds(&none)
				marked.SetGeneration(obj.GetGeneration() + 1)
				marked.SetResourceVersion("")
				op = collection.Update(e, marked, 0)
			}
		}
		_, _, err := collection.Store().Commit(ctx, op)
		var lost *store.ConflictError
		switch {
		case errors.As(err, &lost) && lost.Current == nil:
			return nil
		case errors.As(err, &lost):
			e = lost.Current
		default:
			return err
		}
	}
	return fmt.Errorf("instance %s is always changed by others", strings.TrimPrefix(e.Key(), "/"))
}
