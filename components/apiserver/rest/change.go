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

	"hyperkube/components/apiserver/request"
	"hyperkube/internal/api"
	"hyperkube/internal/store"
)

// change describes an update of one object by PUT, by a patch, or by the server for a subresource.
type change struct {
	// way contains the preparation and validation of the update, which define the fields that may
	// change: those of the object itself or of a subresource such as status.
	way *api.Update
	// create means that a missing object is created.
	create bool
	// uid, if set, must be the UID of the current object. Otherwise the update fails with a
	// conflict.
	uid types.UID
	// version, if set, must be the resource version of the current object. Otherwise the update
	// fails with a conflict.
	version string
	// make returns the desired object based on current, which it must not modify. current is nil if
	// the object does not exist. make also updates the managed fields. It is called in every
	// attempt.
	make func(ctx context.Context, current api.Object) (api.Object, error)
	// skipAdmission is set if the server makes the change for an action or a Scale, for which
	// admission is called separately.
	skipAdmission bool
	// options are the options of the request. They contain whether it is a dry run.
	options *metav1.UpdateOptions
}

// changed is the result of a change. entry is the stored object; it is nil if nothing was stored,
// on a dry run or if the update completed the deletion of the object, and obj is then the result.
// created means that the object did not exist before.
type changed struct {
	entry   *store.Entry
	obj     api.Object
	created bool
}

// changer handles updates (PUT) and patches (PATCH) of one object, for the request in call.
type changer struct{ *call }

// change executes an update based on the cached object, or on the newest version on a dry run. After a conflict it
// repeats the update with the newest version, up to maxAttempts times. If an attempt based on the cache fails for
// another reason, it is repeated once with the newest version. An attempt that may have been written is not repeated.
func (c changer) change(ch change) (changed, error) {
	key := c.res.Key(c.namespace, c.name)
	var current *store.Entry
	if !dryRun(ch.options.DryRun) {
		// A dry run has no commit that would detect an outdated cache.
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
			// The write may have succeeded. A retry would then report a conflict.
			return changed{}, c.storeError(err, c.name)
		case !fresh:
			// The cache may have been outdated.
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

// newest returns the entry of key that includes all writes committed before the call, or nil if the
// object does not exist.
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

// revisionOf returns the etcd revision of an entry, or 0 for nil.
func revisionOf(e *store.Entry) int64 {
	if e == nil {
		return 0
	}
	return e.Revision()
}

// otherUID returns the conflict error for an object with another UID than the update requires. key is the object's
// key in etcd, ch the update, and is the actual UID, empty if there is no object.
func (c changer) otherUID(key string, ch change, is types.UID) error {
	return c.preconditionFailed(key, ch, fmt.Sprintf("UID in precondition: %v, UID in object meta: %v", ch.uid, is))
}

// preconditionFailed returns a conflict error with the message of upstream's storage for a
// precondition that is not met. what describes the expected and the actual value.
func (c changer) preconditionFailed(key string, ch change, what string) error {
	full := c.res.Collection.FullKey(key)
	if dryRun(ch.options.DryRun) {
		full = c.res.Collection.PathOf(key)
	}
	return apierrors.NewConflict(c.res.GroupResource(), c.name,
		fmt.Errorf("StorageError: invalid object, Code: 4, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: "+
			"Precondition failed: %s", full, what))
}

// try is one attempt of a change, based on entry, or on no object if entry is nil. It makes the new
// object, calls admission, validates and stores it. If the update removes the last finalizer of an
// object that is being deleted, it deletes the object instead.
func (c changer) try(ch change, key string, entry *store.Entry) (_ changed, err error) {
	if entry == nil {
		if ch.create && ch.uid != "" {
			return changed{}, c.otherUID(key, ch, "")
		}
		return c.tryCreate(ch)
	}
	current, err := c.res.Read(entry)
	if err != nil {
		return changed{}, corruptUpdateError(err)
	}
	if ch.uid != "" && ch.uid != current.GetUID() {
		return changed{}, c.otherUID(key, ch, current.GetUID())
	}
	if is := current.GetResourceVersion(); ch.version != "" && ch.version != is {
		return changed{}, c.preconditionFailed(key, ch, fmt.Sprintf("ResourceVersion in precondition: %v, ResourceVersion in object meta: %v", ch.version, is))
	}
	obj, err := ch.make(c.ctx, current)
	if err != nil {
		return changed{}, err
	}
	r := review{operation: admission.Update, obj: obj, old: current, name: c.name, options: ch.options, dryRun: dryRun(ch.options.DryRun)}
	if !ch.skipAdmission {
		if err := c.admitter().runMutating(c.ctx, r); err != nil {
			return changed{}, err
		}
	}
	uniqueOwners(c.ctx, obj, true)
	if err := c.checkVersion(obj, entry.Revision()); err != nil {
		return changed{}, err
	}
	// An unconditional update applies to the current version.
	obj.SetResourceVersion(current.GetResourceVersion())
	if err := prepareChange(c.ctx, c.res, ch.way, obj, current); err != nil {
		return changed{}, err
	}
	last := deletionCompletes(c.res.Resource, obj, current)
	var w pendingWrite
	if !last {
		// Admission must see values that hooks allocate. They only take effect with the commit.
		if w, err = c.committer().prepareWrite(obj, current); err != nil {
			return changed{}, err
		}
	}
	ctx, undo := request.Undoable(c.ctx)
	defer func() {
		if err != nil && !uncertain(err) {
			undo()
		}
	}()
	if !ch.skipAdmission {
		obj.SetResourceVersion(current.GetResourceVersion())
		if err := c.admitter().runValidating(ctx, r); err != nil {
			return changed{}, err
		}
	}
	if last {
		return c.committer().tryRemove(r, entry, obj, current)
	}
	return c.committer().tryStore(r, entry, w, obj, current)
}

// checkVersion returns a conflict if obj, sent by the client, has a resource version other than revision, the current
// one. Without a version, it sets revision in obj, or returns an Invalid error if the resource does not allow
// unconditional updates.
func (c changer) checkVersion(obj api.Object, revision int64) error {
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
	// Validation requires a resource version.
	obj.SetResourceVersion(strconv.FormatInt(revision, 10))
	return nil
}

// deletionCompletes reports whether an update from old to obj completes the deletion of the object:
// it is being deleted, its grace period is over, and neither finalizers nor Resource.Retain keep
// it.
func deletionCompletes(res *api.Resource, obj, old api.Object) bool {
	if len(obj.GetFinalizers()) > 0 || old.GetDeletionTimestamp() == nil || res.Retain != nil && res.Retain(obj) {
		return false
	}
	grace := old.GetDeletionGracePeriodSeconds()
	return grace == nil || *grace == 0
}

// tryCreate is try for an object that does not exist. If ch.create is set, it creates the object, which the user must
// be authorized to do. Otherwise it returns a NotFound error.
func (c changer) tryCreate(ch change) (changed, error) {
	if !ch.create {
		return changed{}, apierrors.NewNotFound(c.res.GroupResource(), c.name)
	}
	obj, err := ch.make(c.ctx, nil)
	if err != nil {
		return changed{}, err
	}
	if err := c.rejectUID(obj); err != nil {
		return changed{}, err
	}
	if _, err := parseRevision(obj.GetResourceVersion()); err != nil {
		return changed{}, err
	}
	if err := c.mayCreate(); err != nil {
		return changed{}, err
	}
	if err := c.checkTerminating(c.name); err != nil {
		return changed{}, err
	}
	wipe(obj)
	r := review{operation: admission.Create, obj: obj, name: c.name, options: createOptionsOf(ch.options), dryRun: dryRun(ch.options.DryRun)}
	if err := c.admitter().runMutating(c.ctx, r); err != nil {
		return changed{}, err
	}
	uniqueOwners(c.ctx, obj, true)
	obj.SetResourceVersion("")
	entry, err := c.creator().insertOnce(obj, r)
	if err != nil {
		return changed{}, err
	}
	if entry == nil {
		if obj, err = c.committer().asStored(obj); err != nil {
			return changed{}, err
		}
	}
	return changed{entry: entry, obj: obj, created: true}, nil
}

// rejectUID returns a conflict if obj, which would be created, contains a UID. The client then
// wanted to update an existing object, which does not exist anymore.
func (c changer) rejectUID(obj api.Object) error {
	uid := obj.GetUID()
	if uid == "" {
		return nil
	}
	return apierrors.NewConflict(c.res.GroupResource(), c.name,
		fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", uid))
}

// mayCreate returns nil if the user of the update request is also authorized to create the object. Otherwise it
// returns a Forbidden error, or an internal error if the authorizer fails.
func (c changer) mayCreate() error {
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
