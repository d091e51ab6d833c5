package rest

import (
	"errors"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"

	"hyperkube/components/apiserver/audit"
	"hyperkube/components/apiserver/fieldmanager"
	"hyperkube/components/apiserver/request"
	"hyperkube/internal/api"
	"hyperkube/internal/store"
)

// errVersionOnCreate is the error for a new object with a resource version.
var errVersionOnCreate = errors.New("resourceVersion should not be set on objects to be created")

// Limits of retries. Conflicts of generated names, and of values that hooks allocate, are resolved
// much earlier.
const (
	maxNames    = 8
	maxAttempts = 100
)

// create handles a create request.
func (c *call) create() error {
	format, err := c.format()
	if err != nil {
		return err
	}
	opts, err := request.CreateOptions(c.query)
	if err != nil {
		return err
	}
	body, err := c.readBody()
	if err != nil {
		return err
	}
	obj := c.res.New()
	if err := c.decode(body, obj, c.res.GVK(), fieldValidation(opts.FieldValidation)); err != nil {
		return err
	}
	c.res.Default(obj)
	name := obj.GetName()
	if c.info.Namespace == "" && c.res.Group == "" && c.res.Plural == "namespaces" {
		c.info.Namespace = name
	}
	audit.Requested(c.ctx, obj, c.res.GroupVersion())
	wipe(obj)
	if err := c.checkNamespace(obj); err != nil {
		return err
	}
	uniqueOwners(c.ctx, obj, false)
	if err := c.checkTerminating(name); err != nil {
		return err
	}
	obj, err = c.cfg.Fields.Created(c.res.Resource, obj, fieldmanager.Name(opts.FieldManager, c.req.UserAgent()))
	if err != nil {
		return err
	}
	r := review{operation: admission.Create, obj: obj, name: name, options: opts, dryRun: dryRun(opts.DryRun)}
	if err := c.runMutating(c.ctx, r); err != nil {
		return err
	}
	uniqueOwners(c.ctx, obj, true)

	entry, made, err := c.insert(obj, r)
	if err != nil {
		return err
	}
	if entry == nil {
		if made, err = c.asStored(made); err != nil {
			return err
		}
		return c.sendAPIObject(format, http.StatusCreated, made)
	}
	return c.sendEntry(format, http.StatusCreated, entry)
}

// asStored returns the result of a dry run as it would be after reading it from storage: an object
// that is stored in another version may get default values, and a custom resource is pruned.
func (c *call) asStored(obj api.Object) (api.Object, error) {
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

// insert stores a new object after the final checks. entry is nil on a dry run. made is the object
// as it would be stored.
func (c *call) insert(obj api.Object, r review) (entry *store.Entry, made api.Object, err error) {
	generated := obj.GetName() == "" && obj.GetGenerateName() != ""
	hooks := c.res.Hooks()
	names := 0
	for range maxAttempts {
		// Attempts modify the object, so each works on a copy unless there can be only one.
		made = obj
		if generated || len(hooks) > 0 {
			made = obj.DeepCopyObject().(api.Object)
		}
		entry, err = c.insertOnce(made, r)
		var lost *store.ConflictError
		if err == nil || !errors.As(err, &lost) {
			break
		}
		own := lost.Resource == c.res.StoredResource() && lost.Key == c.res.Key(made.GetNamespace(), made.GetName())
		if own && generated {
			if names++; names < maxNames {
				continue
			}
			return nil, nil, apierrors.NewGenerateNameConflict(c.res.GroupResource(), made.GetName(), 1)
		}
		if own {
			break
		}
		if cerr := c.ctx.Err(); cerr != nil {
			return nil, nil, c.storeError(cerr, made.GetName())
		}
	}
	if err != nil {
		return nil, nil, c.createError(err, made)
	}
	return entry, made, nil
}

// createError converts the error of a create. If an object with the same name exists and is being
// deleted, the message says so.
func (c *call) createError(err error, obj api.Object) error {
	result := c.storeError(err, obj.GetName())
	if !apierrors.IsAlreadyExists(result) {
		return result
	}
	if obj.GetGenerateName() != "" {
		// This also applies if the client set both name and generateName.
		result = apierrors.NewGenerateNameConflict(c.res.GroupResource(), obj.GetName(), 1)
	}
	other, gerr := c.res.Collection.Get(c.ctx, c.res.Key(obj.GetNamespace(), obj.GetName()), -1)
	if gerr != nil {
		return result
	}
	if there, rerr := c.res.Read(other); rerr != nil || there.GetDeletionTimestamp() == nil {
		return result
	}
	if status, ok := errors.AsType[*apierrors.StatusError](result); ok {
		status.ErrStatus.Message = "object is being deleted: " + status.ErrStatus.Message
	}
	return result
}

func (c *call) insertOnce(obj api.Object, r review) (_ *store.Entry, err error) {
	if err := c.prepareNew(c.ctx, obj); err != nil {
		return nil, err
	}
	r.obj = obj
	if r.name == "" {
		r.name = obj.GetName()
	}
	// Admission must see values that hooks allocate. They only take effect with the commit.
	version := obj.GetResourceVersion()
	stored, ops, err := c.runHooks(obj, nil)
	if err != nil {
		return nil, err
	}
	ctx, undo := request.Undoable(c.ctx)
	defer func() {
		if err != nil && !uncertain(err) {
			undo()
		}
	}()
	if err := c.runValidating(ctx, r); err != nil {
		return nil, err
	}
	// This check follows admission, whose errors take precedence.
	if n, err := strconv.ParseUint(version, 10, 64); err == nil && n != 0 && !r.dryRun {
		return nil, errVersionOnCreate // an invalid number is ignored
	}
	key := c.res.Key(obj.GetNamespace(), obj.GetName())
	if r.dryRun {
		if _, err := c.res.Collection.Get(c.ctx, key, -1); err == nil {
			return nil, apierrors.NewAlreadyExists(c.res.GroupResource(), obj.GetName())
		} else if !errors.Is(err, store.ErrNotFound) {
			return nil, err
		}
		return nil, nil
	}
	if err := c.checkReplaced(); err != nil {
		return nil, err
	}
	ops[0] = c.res.Collection.Create(key, stored, c.res.TTL)
	entries, _, err := c.res.Collection.Store().Commit(c.ctx, ops...)
	if err != nil {
		return nil, markUncertain(err)
	}
	return entries[0], nil
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

// runHooks calls the hooks. It returns obj in its stored form and the operations of its transaction,
// of which the first is reserved for the object itself. Values that hooks allocate are also set in
// obj unless the stored form is different. The resource version of the stored form is cleared.
func (c *call) runHooks(obj, old api.Object) (stored api.Object, ops []store.Op, err error) {
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
