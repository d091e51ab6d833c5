package rest

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"hyperkube/components/apiserver/registry"
	"hyperkube/internal/store"
)

// Undecodable objects are reported as in upstream, so that an administrator can find them and
// delete them.
//
// https://kep.k8s.io/3926

// unreadable returns upstream's error message for a value in etcd that cannot be decrypted or
// decoded.
func unreadable(e *store.CorruptError) string {
	if e.Encrypted {
		return fmt.Sprintf("data from the storage is not transformable revision=0: %v", e.Err)
	}
	return fmt.Sprintf("object not decodable revision=%d: %v", e.Revision, e.Err)
}

// storageMessage returns the message of upstream's storage for a corrupt object. key is the full
// etcd key in lists, and the key without the prefix for single objects.
func storageMessage(e *store.CorruptError, key string) string {
	const code = 7
	return fmt.Sprintf("StorageError: corrupt object, Code: %d, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: %s", code, key, unreadable(e))
}

// corruptStatus returns the error response for a request for a corrupt object, or nil if err has
// another cause.
func corruptStatus(err error) *apierrors.StatusError {
	var corrupt *store.CorruptError
	if !errors.As(err, &corrupt) {
		return nil
	}
	return apierrors.NewInternalError(errors.New(storageMessage(corrupt, corrupt.Path)))
}

// corruptUpdateError returns the error response for a change of a corrupt object, or err if it has
// another cause.
func corruptUpdateError(err error) error {
	var corrupt *store.CorruptError
	if !errors.As(err, &corrupt) {
		return err
	}
	if corrupt.Encrypted {
		return apierrors.NewInternalError(errors.New(unreadable(corrupt)))
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: unreadable(corrupt)}}
}

// maxCorrupt limits the number of corrupt objects in the error for a list.
const maxCorrupt = 100

// corruptList returns the error response for a list that failed with err because of corrupt objects among entries. It
// names up to maxCorrupt of them, so that an administrator can delete them. It returns err itself, also nil, if err
// has another cause.
func corruptList(res *registry.Resource, entries []*store.Entry, err error) error {
	if !errors.Is(err, store.ErrCorrupt) {
		return err
	}
	var causes []metav1.StatusCause
	first, n := "", 0
	for _, e := range entries {
		var corrupt *store.CorruptError
		if _, err := res.Peek(e); !errors.As(err, &corrupt) {
			continue
		}
		message := storageMessage(corrupt, corrupt.Key)
		if n++; n == 1 {
			first = message
		}
		causes = append(causes, metav1.StatusCause{Type: metav1.CauseTypeUnexpectedServerResponse, Field: corrupt.Key, Message: message})
		if n == maxCorrupt {
			causes = append(causes, metav1.StatusCause{Type: metav1.CauseTypeTooMany, Message: "too many errors, the list is truncated"})
			break
		}
	}
	if n == 0 {
		return err
	}
	gr := res.GroupResource()
	message := fmt.Sprintf("failed to read one or more %s from the storage: %s", gr, first)
	if n > 1 {
		message = fmt.Sprintf("%s (and %d more)", message, n-1)
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonStoreReadError, Message: message,
		Details: &metav1.StatusDetails{Group: gr.Group, Kind: gr.Resource, Name: "list", Causes: causes},
	}}
}

// corruptEvent returns the error that terminates a watch when err prevents encoding an event. gone is set for
// deletions, for which upstream has a special message if the object is corrupt.
func corruptEvent(err error, gone bool) error {
	var corrupt *store.CorruptError
	if !gone || !errors.As(err, &corrupt) {
		return apierrors.NewInternalError(err)
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonStoreReadError,
		Message: "saw a DELETED event, but object data is corrupt - " + unreadable(corrupt),
	}}
}

// unsafe reports whether the delete options request the deletion of an object that cannot be
// decoded (ignoreStoreReadErrorWithClusterBreakingPotential).
func unsafe(opts *metav1.DeleteOptions) bool {
	o := opts.IgnoreStoreReadErrorWithClusterBreakingPotential
	return o != nil && *o
}

// errUnsafeCollection returns the error for deletecollection with the option of unsafe, which is
// allowed only for single objects.
func errUnsafeCollection() error {
	return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "DeleteOptions"}, "", field.ErrorList{
		field.Invalid(field.NewPath("ignoreStoreReadErrorWithClusterBreakingPotential"), true, "is not allowed with DELETECOLLECTION, try again after removing the option"),
	})
}

// deleteCorrupt deletes an object that cannot be decoded, on explicit request, without admission, finalizers and
// preconditions, which would need the decoded object, and sends the response. It rejects the deletion of an object
// that can be decoded. The user needs the permission that authorizeUnsafeDelete checks.
func (c deleter) deleteCorrupt(opts *metav1.DeleteOptions) error {
	audit.AddAuditAnnotation(c.ctx, "apiserver.k8s.io/unsafe-delete-ignore-read-error", "")
	if err := c.authorizeUnsafeDelete(c.ctx, opts); err != nil {
		return err
	}
	key := c.res.Key(c.namespace, c.name)
	for range maxAttempts {
		entry, err := c.newest(key)
		if err != nil {
			return err
		}
		if entry == nil {
			return apierrors.NewNotFound(c.res.GroupResource(), c.name)
		}
		if _, err := c.res.Peek(entry); err == nil {
			return apierrors.NewConflict(c.res.GroupResource(), c.name, fmt.Errorf(
				"StorageError: invalid object, Code: 4, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: unsafe deletion is not allowed because the object is decodable from storage", c.res.Collection.FullKey(key)))
		} else if !errors.Is(err, store.ErrCorrupt) {
			return c.storeError(err, c.name)
		}
		if !dryRun(opts.DryRun) {
			_, _, err := c.res.Collection.Store().Commit(c.ctx, c.res.Collection.Delete(entry))
			if _, ok := errors.AsType[*store.ConflictError](err); ok {
				continue
			}
			if err != nil {
				return c.storeError(err, c.name)
			}
		}
		format, err := c.format()
		if err != nil {
			return err
		}
		return c.SendObject(c.w, c.req, format, http.StatusOK, &metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status:   metav1.StatusSuccess, Code: http.StatusOK,
			Details: &metav1.StatusDetails{Name: c.name, Kind: c.res.Kind},
		})
	}
	return conflict(c.res.GroupResource(), c.name)
}

// authorizeUnsafeDelete returns a Forbidden error unless the user has the verb
// unsafe-delete-ignore-read-errors for the object, in addition to delete.
func (c deleter) authorizeUnsafeDelete(ctx context.Context, opts *metav1.DeleteOptions) error {
	const verb = "unsafe-delete-ignore-read-errors"
	u, _ := apirequest.UserFrom(ctx)
	a := &authorizer.AttributesRecord{
		User: u, Verb: verb, Namespace: c.namespace, Name: c.name,
		APIGroup: c.res.Group, APIVersion: c.res.Version, Resource: c.res.Plural, ResourceRequest: true,
	}
	decision, reason, err := c.cfg.Authorizer.Authorize(ctx, a)
	switch {
	case err != nil:
		err = fmt.Errorf("error while checking permission for %q, %w", verb, err)
	case decision == authorizer.DecisionAllow:
		return nil
	default:
		err = fmt.Errorf("not permitted to do %q, reason: %s", verb, reason)
	}
	r := review{operation: admission.Delete, name: c.name, options: opts}
	return admission.NewForbidden(c.admitter().attributes(r), err)
}
