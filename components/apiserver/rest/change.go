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
	// way defines which fields may change.
	way *api.Update
	// create means that a missing object is created.
	create bool
	// uid, if set, is a precondition.
	uid types.UID
	// version, if set, is a precondition on the resource version.
	version string
	// make returns the desired object based on current, which it must not modify. current is nil if
	// the object does not exist. make also updates the managed fields. It is called in every
	// attempt.
	make func(ctx context.Context, current api.Object) (api.Object, error)
	// skipAdmission changes are made by the server, without admission.
	skipAdmission bool
	options       *metav1.UpdateOptions
}

// changed is the result of a change. entry is nil if nothing was stored: on a dry run, or if the
// object was deleted.
type changed struct {
	entry   *store.Entry
	obj     api.Object
	created bool
}

// changer handles updates and patches of one object.
type changer struct{ *call }

// change makes a change, and retries it after conflicts.
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

// newest reads the latest version from etcd. It returns nil if the object does not exist.
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

// otherUID returns the error for a UID precondition that is not met. is may be empty if there is no
// object.
func (c changer) otherUID(key string, ch change, is types.UID) error {
	return c.preconditionFailed(key, ch, fmt.Sprintf("UID in precondition: %v, UID in object meta: %v", ch.uid, is))
}

// preconditionFailed returns the error of upstream's storage for a precondition that is not met.
func (c changer) preconditionFailed(key string, ch change, what string) error {
	full := c.res.Collection.FullKey(key)
	if dryRun(ch.options.DryRun) {
		full = c.res.Collection.PathOf(key)
	}
	return apierrors.NewConflict(c.res.GroupResource(), c.name,
		fmt.Errorf("StorageError: invalid object, Code: 4, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: "+
			"Precondition failed: %s", full, what))
}

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

// checkVersion compares the resource version in the client's object with the current one.
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

// deletionCompletes reports whether this update removes the last obstacle to a deletion in progress.
func deletionCompletes(res *api.Resource, obj, old api.Object) bool {
	if len(obj.GetFinalizers()) > 0 || old.GetDeletionTimestamp() == nil || res.Retain != nil && res.Retain(obj) {
		return false
	}
	grace := old.GetDeletionGracePeriodSeconds()
	return grace == nil || *grace == 0
}

// tryCreate handles an update of an object that does not exist.
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

// rejectUID rejects the creation of an object with a UID, because the client wanted to update an
// existing one.
func (c changer) rejectUID(obj api.Object) error {
	uid := obj.GetUID()
	if uid == "" {
		return nil
	}
	return apierrors.NewConflict(c.res.GroupResource(), c.name,
		fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", uid))
}

// mayCreate checks whether a user who may update may also create.
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
