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

// errVersionOnCreate is the error for a POST of an object that already has a resource version.
var errVersionOnCreate = errors.New("resourceVersion should not be set on objects to be created")

// Limits of retries of a write: maxNames for generated names that already exist, maxAttempts for
// conflicts with concurrent writes, which normally need only a few retries.
const (
	maxNames    = 8
	maxAttempts = 100
)

// creator handles the creation of objects (POST to a collection).
type creator struct{ *call }

// create handles a POST of an object: it decodes and validates the object, calls admission, stores
// it and sends the result.
func (c creator) create() error {
	format, err := c.format()
	if err != nil {
		return err
	}
	opts, err := request.CreateOptions(c.query)
	if err != nil {
		return err
	}
	body, err := c.bodyDecoder().readBody()
	if err != nil {
		return err
	}
	obj := c.res.New()
	if err := c.bodyDecoder().decode(body, obj, c.res.GVK(), fieldValidation(opts.FieldValidation)); err != nil {
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
	if err := c.checkSize(obj, len(obj.GetManagedFields()) == 0); err != nil {
		return err
	}
	obj, err = c.cfg.Fields.Created(c.res.Resource, obj, fieldmanager.Name(opts.FieldManager, c.req.UserAgent()))
	if err != nil {
		return err
	}
	r := review{operation: admission.Create, obj: obj, name: name, options: opts, dryRun: dryRun(opts.DryRun)}
	if err := c.admitter().runMutating(c.ctx, r); err != nil {
		return err
	}
	uniqueOwners(c.ctx, obj, true)

	entry, made, err := c.insert(obj, r)
	if err != nil {
		return err
	}
	if entry == nil {
		if made, err = c.committer().asStored(made); err != nil {
			return err
		}
		return c.responder().sendAPIObject(format, http.StatusCreated, made)
	}
	return c.responder().sendEntry(format, http.StatusCreated, entry)
}

// insert validates and stores a new object, after mutating admission. It retries with another name if a generated
// name exists, up to maxNames times, and after conflicts of other keys of the transaction, such as allocated
// addresses. entry is the stored object, or nil on a dry run. made is the object with all values set.
func (c creator) insert(obj api.Object, r review) (entry *store.Entry, made api.Object, err error) {
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

// createError converts the error of storing obj to the error response. If an object with the same name exists and is
// being deleted, the message says so.
func (c creator) createError(err error, obj api.Object) error {
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

// insertOnce is one attempt of insert. It validates obj, calls hooks, which may allocate values, and validating
// admission, and stores obj. On a dry run it stores nothing and returns a nil entry, but returns an error if the
// object exists.
func (c creator) insertOnce(obj api.Object, r review) (_ *store.Entry, err error) {
	if err := c.prepareNew(c.ctx, obj); err != nil {
		return nil, err
	}
	r.obj = obj
	if r.name == "" {
		r.name = obj.GetName()
	}
	// Admission must see values that hooks allocate. They only take effect with the commit.
	version := obj.GetResourceVersion()
	stored, ops, err := c.committer().runHooks(obj, nil)
	if err != nil {
		return nil, err
	}
	ctx, undo := request.Undoable(c.ctx)
	defer func() {
		if err != nil && !uncertain(err) {
			undo()
		}
	}()
	if err := c.admitter().runValidating(ctx, r); err != nil {
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
	if err := c.committer().checkReplaced(); err != nil {
		return nil, err
	}
	ops[0] = c.res.Collection.Create(key, stored, c.res.TTL)
	entries, _, err := c.res.Collection.Store().Commit(c.ctx, ops...)
	if err != nil {
		return nil, markUncertain(err)
	}
	return entries[0], nil
}
