package rest

import (
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/apiserver/fieldmanager"
	"hyperkube/internal/api"
	"hyperkube/internal/store"
)

// committer stores and deletes objects. The operations that the resource's hooks return, such as
// the allocation of an IP address for a Service, are part of the same transaction.
type committer struct{ *call }

// pendingWrite is an object as it will be stored, and the operations of its transaction. ops[0] is
// reserved for the object itself; the hooks have returned the others.
type pendingWrite struct {
	stored api.Object
	ops    []store.Op
	// same means that only the times of managed fields have changed. times are the new managed
	// fields.
	same  bool
	times []metav1.ManagedFieldsEntry
}

// prepareWrite calls the hooks for an update from current to obj and returns what tryStore writes. If the managed
// fields differ only in their times, obj keeps the old ones, so that tryStore can detect an update without a change.
func (c committer) prepareWrite(obj, current api.Object) (w pendingWrite, err error) {
	before := current.GetManagedFields()
	w.times = obj.GetManagedFields()
	if w.same = onlyTimesChanged(w.times, before); w.same {
		obj.SetManagedFields(before)
	}
	w.stored, w.ops, err = c.runHooks(obj, current)
	return w, err
}

// runHooks records the trace of the request in obj, and calls the resource's hooks for the replacement of old by obj (nil
// for a deletion or creation). It returns obj in its stored version and the operations of its transaction, of which the
// first is reserved for the object itself. Values that hooks allocate are also set in obj unless the stored version is
// different.
func (c committer) runHooks(obj, old api.Object) (stored api.Object, ops []store.Op, err error) {
	ops = make([]store.Op, 1, 4)
	if obj != nil {
		c.recordTrace(obj, old)
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

// asStored returns the object that a dry run would have stored, as a client would read it: an object that is stored
// in another API version may get default values, and a custom resource is pruned. It returns obj itself if it is
// stored in its own version.
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

// tryStore replaces entry by w.stored, which is obj in its stored version. If only the times of managed fields would
// change, it keeps the old times, so that the store writes nothing. On a dry run it returns obj without writing.
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

// unchanged reports whether an object in its stored version has the same encoding as entry, so that
// a write would change nothing.
func (c committer) unchanged(stored api.Object, entry *store.Entry) bool {
	return c.res.SameBytes(stored, entry)
}

// tryMark stores obj, whose deletion timestamp or grace period the caller has set. The object exists until its
// finalizers are removed or the kubelet deletes the pod. On a dry run it returns obj without writing.
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

// tryRemove deletes the object of entry. obj is its last state, with which the request is answered. It gets the
// resource version of current, because it was never stored itself. On a dry run it returns obj without deleting.
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

// checkReplaced returns errStopped if the custom resource definition has changed since the request
// started. The object was validated with the previous definition and must not be stored; ServeHTTP
// then repeats the request.
func (c committer) checkReplaced() error {
	if c.res.Custom != nil && c.cfg.Registry.Lookup(c.res.GVR()) != c.res {
		return errStopped
	}
	return nil
}

// onlyTimesChanged reports whether two lists of managed fields differ only in times. The object
// must then be encoded to find out whether anything else has changed.
func onlyTimesChanged(now, before []metav1.ManagedFieldsEntry) bool {
	return fieldmanager.SameButTimes(now, before) && !fieldmanager.SameTimes(now, before)
}

// maybeWrittenError wraps the error of a commit whose outcome is unknown. The request must not be
// repeated, and allocated values must not be released.
type maybeWrittenError struct{ error }

// Unwrap returns the error of the store, for errors.Is and errors.As.
func (e maybeWrittenError) Unwrap() error { return e.error }

// markUncertain wraps the error of a commit in maybeWrittenError, except for conflicts, which
// guarantee that nothing was written.
func markUncertain(err error) error {
	if _, ok := errors.AsType[*store.ConflictError](err); ok {
		return err
	}
	return maybeWrittenError{err}
}

// uncertain reports whether err comes from a write that may have succeeded.
func uncertain(err error) bool {
	var u maybeWrittenError
	return errors.As(err, &u)
}
