package rest

import (
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/apiserver/fieldmanager"
	"hyperkube/internal/api"
	"hyperkube/internal/store"
)

// committer stores and removes objects in transactions with the operations of hooks.
type committer struct{ *call }

// pendingWrite is an object as it will be stored, and the operations of its transaction, of which the
// first is reserved for the object itself.
type pendingWrite struct {
	stored api.Object
	ops    []store.Op
	// same means that only the times of managed fields have changed. times are the new managed
	// fields.
	same  bool
	times []metav1.ManagedFieldsEntry
}

func (c committer) prepareWrite(obj, current api.Object) (w pendingWrite, err error) {
	before := current.GetManagedFields()
	w.times = obj.GetManagedFields()
	if w.same = onlyTimesChanged(w.times, before); w.same {
		obj.SetManagedFields(before)
	}
	w.stored, w.ops, err = c.runHooks(obj, current)
	return w, err
}

// runHooks calls the hooks. It returns obj in its stored form and the operations of its transaction,
// of which the first is reserved for the object itself. Values that hooks allocate are also set in
// obj unless the stored form is different. The resource version of the stored form is cleared.
func (c committer) runHooks(obj, old api.Object) (stored api.Object, ops []store.Op, err error) {
	ops = make([]store.Op, 1, 4)
	if obj != nil {
		if stored, err = c.res.Stored(obj); err != nil {
			return nil, nil, err
		}
	}
	hooks := c.res.Hooks()
	if len(hooks) == 0 {
		return stored, ops, nil
	}
	if old != nil && c.res.StoredAs != nil {
		if old, err = c.res.StoredAs.ToStored(old); err != nil {
			return nil, nil, err
		}
	}
	for _, hook := range hooks {
		more, err := hook(c.ctx, stored, old)
		if err != nil {
			return nil, nil, err
		}
		ops = append(ops, more...)
	}
	return stored, ops, nil
}

// asStored returns the result of a dry run as it would be after reading it from storage: an object
// that is stored in another version may get default values, and a custom resource is pruned.
func (c committer) asStored(obj api.Object) (api.Object, error) {
	if c.res.StoredAs == nil {
		return obj, nil
	}
	stored, err := c.res.StoredAs.ToStored(obj.DeepCopyObject().(api.Object))
	if err != nil {
		return nil, err
	}
	if c.res.Custom != nil {
		if err := c.res.Custom.Load(stored); err != nil {
			return nil, err
		}
	}
	return c.res.StoredAs.FromStored(stored)
}

// tryStore writes obj in place of entry. If only the times of managed fields would change, it
// writes nothing.
func (c committer) tryStore(r review, entry *store.Entry, w pendingWrite, obj, current api.Object) (changed, error) {
	if r.dryRun {
		obj.SetResourceVersion(current.GetResourceVersion())
		obj, err := c.asStored(obj)
		return changed{obj: obj}, err
	}
	w.stored.SetResourceVersion("") // admission has seen one
	if w.same && !c.unchanged(w.stored, entry) {
		w.stored.SetManagedFields(w.times)
	}
	if err := c.checkReplaced(); err != nil {
		return changed{}, err
	}
	w.ops[0] = c.res.Collection.Update(entry, w.stored, c.res.TTL)
	entries, _, err := c.res.Collection.Store().Commit(c.ctx, w.ops...)
	if err != nil {
		return changed{}, markUncertain(err)
	}
	return changed{entry: entries[0]}, nil
}

// unchanged reports whether the encoding of stored equals the stored bytes of entry.
func (c committer) unchanged(stored api.Object, entry *store.Entry) bool {
	return c.res.SameBytes(stored, entry)
}

// tryMark stores an object with a deletion timestamp.
func (c committer) tryMark(r review, entry *store.Entry, obj, current api.Object) (removed, error) {
	stored, ops, err := c.runHooks(obj, current)
	if err != nil {
		return removed{}, err
	}
	if r.dryRun {
		obj.SetResourceVersion(current.GetResourceVersion())
		return removed{obj: obj}, nil
	}
	ops[0] = c.res.Collection.Update(entry, stored, c.res.TTL)
	entries, _, err := c.res.Collection.Store().Commit(c.ctx, ops...)
	if err != nil {
		return removed{}, markUncertain(err)
	}
	return removed{entry: entries[0]}, nil
}

// tryRemove completes a deletion. The response has the resource version on which the change is
// based, because the changed object was never stored.
func (c committer) tryRemove(r review, entry *store.Entry, obj, current api.Object) (changed, error) {
	_, ops, err := c.runHooks(nil, current)
	if err != nil {
		return changed{}, err
	}
	obj.SetResourceVersion(current.GetResourceVersion())
	if r.dryRun {
		return changed{obj: obj}, nil
	}
	ops[0] = c.res.Collection.Delete(entry)
	if _, _, err := c.res.Collection.Store().Commit(c.ctx, ops...); err != nil {
		return changed{}, markUncertain(err)
	}
	return changed{obj: obj}, nil
}

// checkReplaced returns an error if the definition of a custom resource has changed since the request
// started. Objects made with a previous definition must not be stored.
func (c committer) checkReplaced() error {
	if c.res.Custom != nil && c.cfg.Registry.Lookup(c.res.GVR()) != c.res {
		return errStopped
	}
	return nil
}

// onlyTimesChanged reports whether managed fields differ only in times. In that case the object must be
// encoded to find out whether it has changed.
func onlyTimesChanged(now, before []metav1.ManagedFieldsEntry) bool {
	return fieldmanager.SameButTimes(now, before) && !fieldmanager.SameTimes(now, before)
}

// maybeWrittenError wraps the error of a write that may have succeeded.
type maybeWrittenError struct{ error }

func (e maybeWrittenError) Unwrap() error { return e.error }

// markUncertain wraps the error of a commit in maybeWrittenError, except for conflicts: only those
// guarantee that nothing was written.
func markUncertain(err error) error {
	if _, ok := errors.AsType[*store.ConflictError](err); ok {
		return err
	}
	return maybeWrittenError{err}
}

func uncertain(err error) bool {
	var u maybeWrittenError
	return errors.As(err, &u)
}
