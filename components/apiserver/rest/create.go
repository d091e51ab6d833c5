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

// errVersionOnCreate: a new object has no version yet.
var errVersionOnCreate = errors.New("resourceVersion should not be set on objects to be created")

// Bounds of what is tried again. Races over names that are generated, and over
// what hooks allocate, end long before.
const (
	maxNames    = 8
	maxAttempts = 100
)

// create answers with a new object.
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
	if err := c.mayBegin(name); err != nil {
		return err
	}
	obj, err = c.cfg.Fields.Created(c.res.Resource, obj, fieldmanager.Name(opts.FieldManager, c.req.UserAgent()))
	if err != nil {
		return err
	}
	r := review{operation: admission.Create, obj: obj, name: name, options: opts, dryRun: dryRun(opts.DryRun)}
	if err := c.admit(c.ctx, r); err != nil {
		return err
	}
	uniqueOwners(c.ctx, obj, true)

	entry, made, err := c.insert(obj, r)
	if err != nil {
		return err
	}
	if entry == nil {
		if made, err = c.restored(made); err != nil {
			return err
		}
		return c.sendAPIObject(format, http.StatusCreated, made)
	}
	return c.sendEntry(format, http.StatusCreated, entry)
}

// restored is the outcome of a dry run as it would come back from storage: what
// is stored in another version may have defaults there, and that of a custom
// resource leaves out what it does not know.
func (c *call) restored(obj api.Object) (api.Object, error) {
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

// insert stores a new object after the last checks. Entry is nil on a dry run;
// made is the object as it would be stored.
func (c *call) insert(obj api.Object, r review) (entry *store.Entry, made api.Object, err error) {
	generated := obj.GetName() == "" && obj.GetGenerateName() != ""
	hooks := c.res.Hooks()
	names := 0
	for range maxAttempts {
		// Attempts change the object, so all but the last that can happen
		// work on copies.
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
		return nil, nil, c.taken(err, made)
	}
	return entry, made, nil
}

// taken is what err says to clients. Where another object has the name of obj
// and is being deleted, it says so, too.
func (c *call) taken(err error, obj api.Object) error {
	told := c.storeError(err, obj.GetName())
	if !apierrors.IsAlreadyExists(told) {
		return told
	}
	if obj.GetGenerateName() != "" {
		// Whoever gave both is told so, too.
		told = apierrors.NewGenerateNameConflict(c.res.GroupResource(), obj.GetName(), 1)
	}
	other, gerr := c.res.Collection.Get(c.ctx, c.res.Key(obj.GetNamespace(), obj.GetName()), -1)
	if gerr != nil {
		return told
	}
	if there, rerr := c.res.Read(other); rerr != nil || there.GetDeletionTimestamp() == nil {
		return told
	}
	if status, ok := errors.AsType[*apierrors.StatusError](told); ok {
		status.ErrStatus.Message = "object is being deleted: " + status.ErrStatus.Message
	}
	return told
}

func (c *call) insertOnce(obj api.Object, r review) (_ *store.Entry, err error) {
	if err := c.prepareNew(c.ctx, obj); err != nil {
		return nil, err
	}
	r.obj = obj
	if r.name == "" {
		r.name = obj.GetName()
	}
	// Admission is shown what was allocated, which nobody has before the commit.
	version := obj.GetResourceVersion()
	stored, ops, err := c.hooked(obj, nil)
	if err != nil {
		return nil, err
	}
	ctx, undo := request.Undoable(c.ctx)
	defer func() {
		if err != nil && !uncertain(err) {
			undo()
		}
	}()
	if err := c.confirm(ctx, r); err != nil {
		return nil, err
	}
	// After admission, for what that refuses is told first.
	if n, err := strconv.ParseUint(version, 10, 64); err == nil && n != 0 && !r.dryRun {
		return nil, errVersionOnCreate // what is no number is no version
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
	if err := c.superseded(); err != nil {
		return nil, err
	}
	ops[0] = c.res.Collection.Create(key, stored, c.res.TTL)
	entries, _, err := c.res.Collection.Store().Commit(c.ctx, ops...)
	if err != nil {
		return nil, unlessLost(err)
	}
	return entries[0], nil
}

// uncertainError is of a write that may have happened in spite of it.
type uncertainError struct{ error }

func (e uncertainError) Unwrap() error { return e.error }

// unlessLost marks the error of a commit, but for a conflict: that alone says
// for certain that nothing was written.
func unlessLost(err error) error {
	if _, ok := errors.AsType[*store.ConflictError](err); ok {
		return err
	}
	return uncertainError{err}
}

func uncertain(err error) bool {
	var u uncertainError
	return errors.As(err, &u)
}

// hooked returns obj as it is stored and the operations of its transaction, of
// which the first is left for the object itself. What hooks allocate is in obj
// too, unless it is stored in another form; its resource version is cleared.
func (c *call) hooked(obj, old api.Object) (stored api.Object, ops []store.Op, err error) {
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
