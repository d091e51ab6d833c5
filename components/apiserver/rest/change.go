package rest

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"hyperkube/components/apiserver/fieldmanager"
	"hyperkube/components/apiserver/request"
	"hyperkube/internal/api"
	"hyperkube/internal/store"
)

// change is one update of one object, however it is asked for: PUT, a patch,
// or what the server does for a subresource.
type change struct {
	// way says what may change.
	way *api.Update
	// create: an object that does not exist is created.
	create bool
	// uid, when set, is the only object meant.
	uid types.UID
	// version, when set, is the only version of the object meant.
	version string
	// make returns the wished object, made from current, which it must not
	// write to; current is nil when there is none. Managed fields have been
	// taken care of. It is called in every attempt.
	make func(ctx context.Context, current api.Object) (api.Object, error)
	// unadmitted changes are the server's own; admission is not asked.
	unadmitted bool
	options    *metav1.UpdateOptions
}

// changed is the outcome of a change. Entry is nil when nothing was stored: on
// a dry run, or because the object is gone.
type changed struct {
	entry   *store.Entry
	obj     api.Object
	created bool
}

// change makes a change, again and again for as long as others win races.
func (c *call) change(ch change) (changed, error) {
	key := c.res.Key(c.namespace, c.name)
	var current *store.Entry
	if !dryRun(ch.options.DryRun) {
		// A dry run has no commit that would tell that the cache is behind.
		current = c.res.Collection.Cached(key)
	}
	fresh := false
	if current == nil {
		var err error
		if current, err = c.newest(key); err != nil {
			return changed{}, err
		}
		fresh = true
	}
	var err error
	for range maxAttempts {
		var out changed
		if out, err = c.try(ch, key, current); err == nil {
			return out, nil
		}
		if cerr := c.ctx.Err(); cerr != nil {
			return changed{}, c.storeError(cerr, c.name)
		}
		var lost *store.ConflictError
		switch {
		case errors.As(err, &lost):
			if lost.Resource == c.res.StoredResource() && lost.Key == key {
				current, fresh = lost.Current, true
			}
		case uncertain(err):
			// It may have happened: tried again, it would be told as refused.
			return changed{}, c.storeError(err, c.name)
		case !fresh:
			// Perhaps the cache was behind.
			newest, nerr := c.newest(key)
			if nerr != nil {
				return changed{}, nerr
			}
			fresh = true
			if revisionOf(newest) == revisionOf(current) {
				return changed{}, c.storeError(err, c.name)
			}
			current = newest
		default:
			return changed{}, c.storeError(err, c.name)
		}
	}
	return changed{}, c.storeError(err, c.name)
}

// newest reads what etcd has; nil when there is nothing.
func (c *call) newest(key string) (*store.Entry, error) {
	e, err := c.res.Collection.Get(c.ctx, key, -1)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, c.storeError(err, c.name)
	}
	return e, nil
}

func revisionOf(e *store.Entry) int64 {
	if e == nil {
		return 0
	}
	return e.Revision()
}

// otherUID tells of an object that is another one than the client means; is may
// be empty, if there is none.
func (c *call) otherUID(key string, ch change, is types.UID) error {
	return c.unmet(key, ch, fmt.Sprintf("UID in precondition: %v, UID in object meta: %v", ch.uid, is))
}

// unmet is what upstream's storage says of a precondition that an object does not meet.
func (c *call) unmet(key string, ch change, what string) error {
	full := c.res.Collection.FullKey(key)
	if dryRun(ch.options.DryRun) {
		full = c.res.Collection.PathOf(key)
	}
	return apierrors.NewConflict(c.res.GroupResource(), c.name,
		fmt.Errorf("StorageError: invalid object, Code: 4, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: "+
			"Precondition failed: %s", full, what))
}

func (c *call) try(ch change, key string, entry *store.Entry) (_ changed, err error) {
	if entry == nil {
		if ch.create && ch.uid != "" {
			return changed{}, c.otherUID(key, ch, "")
		}
		return c.tryCreate(ch)
	}
	current, err := c.res.Read(entry)
	if err != nil {
		return changed{}, unchangeable(err)
	}
	if ch.uid != "" && ch.uid != current.GetUID() {
		return changed{}, c.otherUID(key, ch, current.GetUID())
	}
	if is := current.GetResourceVersion(); ch.version != "" && ch.version != is {
		return changed{}, c.unmet(key, ch, fmt.Sprintf("ResourceVersion in precondition: %v, ResourceVersion in object meta: %v", ch.version, is))
	}
	obj, err := ch.make(c.ctx, current)
	if err != nil {
		return changed{}, err
	}
	r := review{operation: admission.Update, obj: obj, old: current, name: c.name, options: ch.options, dryRun: dryRun(ch.options.DryRun)}
	if !ch.unadmitted {
		if err := c.admit(c.ctx, r); err != nil {
			return changed{}, err
		}
	}
	uniqueOwners(c.ctx, obj, true)
	if err := c.checkVersion(obj, entry.Revision()); err != nil {
		return changed{}, err
	}
	// An unconditional update is one of what there is.
	obj.SetResourceVersion(current.GetResourceVersion())
	if err := prepareChange(c.ctx, c.res, ch.way, obj, current); err != nil {
		return changed{}, err
	}
	last := done(c.res.Resource, obj, current)
	var w written
	if !last {
		// Admission is shown what was allocated, which nobody has before the commit.
		if w, err = c.written(obj, current); err != nil {
			return changed{}, err
		}
	}
	ctx, undo := request.Undoable(c.ctx)
	defer func() {
		if err != nil && !uncertain(err) {
			undo()
		}
	}()
	if !ch.unadmitted {
		obj.SetResourceVersion(current.GetResourceVersion())
		if err := c.confirm(ctx, r); err != nil {
			return changed{}, err
		}
	}
	if last {
		return c.tryRemove(r, entry, obj, current)
	}
	return c.tryStore(r, entry, w, obj, current)
}

// checkVersion compares the version that the client made its object from with
// the one that there is.
func (c *call) checkVersion(obj api.Object, revision int64) error {
	given, err := parseRevision(obj.GetResourceVersion())
	switch {
	case err != nil:
		return err
	case given == 0 && !c.res.AllowUnconditionalUpdate:
		return apierrors.NewInvalid(schema.GroupKind{Group: c.res.Group, Kind: c.res.Plural}, c.name, field.ErrorList{
			field.Invalid(field.NewPath("metadata", "resourceVersion"), uint64(0), "must be specified for an update"),
		})
	case given != 0 && given != revision:
		return conflict(c.res.GroupResource(), c.name)
	}
	// Validation wants to see one.
	obj.SetResourceVersion(strconv.FormatInt(revision, 10))
	return nil
}

// written is an object as it is to be stored, and the operations of its
// transaction, of which the first is left for itself.
type written struct {
	stored api.Object
	ops    []store.Op
	// same: of managed fields nothing but times have changed. These are they.
	same  bool
	times []metav1.ManagedFieldsEntry
}

func (c *call) written(obj, current api.Object) (w written, err error) {
	before := current.GetManagedFields()
	w.times = obj.GetManagedFields()
	if w.same = timesAlone(w.times, before); w.same {
		obj.SetManagedFields(before)
	}
	w.stored, w.ops, err = c.hooked(obj, current)
	return w, err
}

// tryStore writes obj in place of entry. When nothing but the times of managed
// fields would change, nothing does.
func (c *call) tryStore(r review, entry *store.Entry, w written, obj, current api.Object) (changed, error) {
	if r.dryRun {
		obj.SetResourceVersion(current.GetResourceVersion())
		obj, err := c.restored(obj)
		return changed{obj: obj}, err
	}
	w.stored.SetResourceVersion("") // admission was shown one
	if w.same && !c.unchanged(w.stored, entry) {
		w.stored.SetManagedFields(w.times)
	}
	if err := c.superseded(); err != nil {
		return changed{}, err
	}
	w.ops[0] = c.res.Collection.Update(entry, w.stored, c.res.TTL)
	entries, _, err := c.res.Collection.Store().Commit(c.ctx, w.ops...)
	if err != nil {
		return changed{}, unlessLost(err)
	}
	return changed{entry: entries[0]}, nil
}

// timesAlone tells whether managed fields differ, and in nothing but times: then it
// has to be found out whether the object has changed, for which it is encoded.
func timesAlone(now, before []metav1.ManagedFieldsEntry) bool {
	return fieldmanager.SameButTimes(now, before) && !fieldmanager.SameTimes(now, before)
}

// unchanged tells whether storing obj would store the bytes that are there.
func (c *call) unchanged(stored api.Object, entry *store.Entry) bool {
	return c.res.SameBytes(stored, entry)
}

// done tells whether the last obstacle to a deletion that is under way has
// gone with this update.
func done(res *api.Resource, obj, old api.Object) bool {
	if len(obj.GetFinalizers()) > 0 || old.GetDeletionTimestamp() == nil || res.Retain != nil && res.Retain(obj) {
		return false
	}
	grace := old.GetDeletionGracePeriodSeconds()
	return grace == nil || *grace == 0
}

// tryRemove completes a deletion. The answer has the version that the change was
// made to, for the changed object was never stored.
func (c *call) tryRemove(r review, entry *store.Entry, obj, current api.Object) (changed, error) {
	_, ops, err := c.hooked(nil, current)
	if err != nil {
		return changed{}, err
	}
	obj.SetResourceVersion(current.GetResourceVersion())
	if r.dryRun {
		return changed{obj: obj}, nil
	}
	ops[0] = c.res.Collection.Delete(entry)
	if _, _, err := c.res.Collection.Store().Commit(c.ctx, ops...); err != nil {
		return changed{}, unlessLost(err)
	}
	return changed{obj: obj}, nil
}

// tryCreate is an update of an object that is not there.
func (c *call) tryCreate(ch change) (changed, error) {
	if !ch.create {
		return changed{}, apierrors.NewNotFound(c.res.GroupResource(), c.name)
	}
	obj, err := ch.make(c.ctx, nil)
	if err != nil {
		return changed{}, err
	}
	if err := c.noUID(obj); err != nil {
		return changed{}, err
	}
	if _, err := parseRevision(obj.GetResourceVersion()); err != nil {
		return changed{}, err
	}
	if err := c.mayCreate(); err != nil {
		return changed{}, err
	}
	if err := c.mayBegin(c.name); err != nil {
		return changed{}, err
	}
	wipe(obj)
	r := review{operation: admission.Create, obj: obj, name: c.name, options: createOptionsOf(ch.options), dryRun: dryRun(ch.options.DryRun)}
	if err := c.admit(c.ctx, r); err != nil {
		return changed{}, err
	}
	uniqueOwners(c.ctx, obj, true)
	obj.SetResourceVersion("")
	entry, err := c.insertOnce(obj, r)
	if err != nil {
		return changed{}, err
	}
	if entry == nil {
		if obj, err = c.restored(obj); err != nil {
			return changed{}, err
		}
	}
	return changed{entry: entry, obj: obj, created: true}, nil
}

// noUID refuses a change of a certain object to be the creation of another.
func (c *call) noUID(obj api.Object) error {
	uid := obj.GetUID()
	if uid == "" {
		return nil
	}
	return apierrors.NewConflict(c.res.GroupResource(), c.name,
		fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", uid))
}

// mayCreate asks whether a user who may update may create as well.
func (c *call) mayCreate() error {
	user, _ := apirequest.UserFrom(c.ctx)
	attributes := authorizer.AttributesRecord{
		User:            user,
		Verb:            "create",
		Namespace:       c.info.Namespace,
		APIGroup:        c.res.Group,
		APIVersion:      c.res.Version,
		Resource:        c.res.Plural,
		Subresource:     c.info.Subresource,
		Name:            c.name,
		ResourceRequest: true,
		Path:            c.req.URL.Path,
	}
	decision, reason, err := c.cfg.Authorizer.Authorize(c.ctx, attributes)
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	return Forbidden(attributes, reason)
}
