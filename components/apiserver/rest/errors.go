package rest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/components/apiserver/negotiate"
	"hyperkube/components/apiserver/registry"
	"hyperkube/internal/store"
)

// statusOf returns the Status that is sent to the client for err. An error without a Status becomes one with the code
// 500, or 504 if a deadline was exceeded.
func statusOf(err error) *metav1.Status {
	if corrupt := corruptStatus(err); corrupt != nil {
		err = corrupt
	}
	var known apierrors.APIStatus
	if errors.As(err, &known) {
		s := known.Status()
		if s.Status == "" {
			s.Status = metav1.StatusFailure
		}
		switch {
		case s.Status == metav1.StatusSuccess && s.Code == 0:
			s.Code = http.StatusOK
		case s.Code == 0:
			s.Code = http.StatusInternalServerError
		}
		s.Kind, s.APIVersion = "Status", "v1"
		return &s
	}
	s := &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure,
		Code:     http.StatusInternalServerError,
		Reason:   metav1.StatusReasonUnknown,
		Message:  err.Error(),
	}
	if errors.Is(err, context.DeadlineExceeded) {
		s.Code, s.Reason = http.StatusGatewayTimeout, metav1.StatusReasonTimeout
	}
	return s
}

// Error responds to the request with a Status for err, in the format that the client accepts.
// Errors of the server (500 and higher) are also logged at the debug level.
func (h *Handler) Error(w http.ResponseWriter, req *http.Request, err error) {
	status := statusOf(err)
	if status.Details != nil && status.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(status.Details.RetryAfterSeconds)))
	}
	if status.Code >= http.StatusInternalServerError {
		h.cfg.Log.DebugContext(req.Context(), "API request failed with a server error, the client gets it as the response", "method", req.Method, "path", req.URL.Path, "err", err)
	}
	format, ferr := h.negotiator.Response(req, negotiate.Endpoint{Protobuf: true})
	if ferr != nil {
		format = negotiate.Format{Pretty: true} // readable for users
	}
	if err := h.SendObject(w, req, format, int(status.Code), status); err != nil {
		h.cfg.Log.DebugContext(req.Context(), "sending error response of API request to the client failed; the client sees a broken or incomplete response, no retry", "method", req.Method, "path", req.URL.Path, "err", err)
	}
}

// storeError does the same as StoreError for the resource of the request. name is the name of the object, or empty for
// lists.
func (c *call) storeError(err error, name string) error {
	return StoreError(c.res, name, err)
}

// StoreError converts an error of the store to the Status error for the client. name is the name of the object, or
// empty for lists. It returns Status errors, and errors that it does not know, unchanged. The error of a write whose
// outcome is unknown does not suggest a retry.
func StoreError(res *registry.Resource, name string, err error) error {
	var known apierrors.APIStatus
	if errors.As(err, &known) {
		return err
	}
	gr := res.GroupResource()
	var unsettled *store.UnsettledError
	switch {
	case errors.Is(err, store.ErrNotFound):
		return apierrors.NewNotFound(gr, name)
	case errors.Is(err, store.ErrExists):
		return apierrors.NewAlreadyExists(gr, name)
	case errors.Is(err, store.ErrConflict):
		return conflict(gr, name)
	case errors.Is(err, store.ErrTooOld):
		return apierrors.NewResourceExpired("The resourceVersion for the provided list is too old.")
	case errors.Is(err, store.ErrTooLarge):
		return apierrors.NewRequestEntityTooLargeError("etcdserver: request is too large")
	case errors.Is(err, context.DeadlineExceeded):
		return apierrors.NewTimeoutError("request did not complete within requested timeout - context deadline exceeded", 0)
	case errors.Is(err, store.ErrNoSpace):
		return errors.New("etcdserver: mvcc: database space exceeded")
	case errors.As(err, &unsettled):
		// The error must not suggest a retry. Clients would retry automatically and then get the
		// error that the object already exists.
		return errors.New(unsettled.Error())
	case errors.Is(err, store.ErrUnavailable):
		return apierrors.NewServerTimeout(gr, "", 1)
	case errors.Is(err, store.ErrStopped):
		return errStopped
	case errors.Is(err, context.Canceled):
		return apierrors.NewTimeoutError("the request was cancelled", 0)
	}
	return err
}

// errStopped is the error 503 for requests that failed because the server is stopping, or because
// the custom resource definition was changed or deleted. ServeHTTP repeats the request in the
// latter case.
var errStopped = apierrors.NewServiceUnavailable("the server is shutting down")

// optimisticLock is the message for an update that is based on an outdated version.
const optimisticLock = "the object has been modified; please apply your changes to the latest version and try again"

// conflict returns the Conflict error for an update that is based on an outdated version.
func conflict(gr schema.GroupResource, name string) error {
	return apierrors.NewConflict(gr, name, errors.New(optimisticLock))
}

// tooNew returns the Timeout error for a read at the resource version wanted, which does not exist
// yet. current is the latest version.
func tooNew(wanted, current int64) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", wanted, current), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type:    metav1.CauseTypeResourceVersionTooLarge,
		Message: "Too large resource version",
	}}
	return err
}

// maxInvalid limits the number of validation errors in a response. The validation library needs quadratic time to join
// them, which is minutes for an object with 100,000 invalid fields.
const maxInvalid = 1000

// newInvalid returns the error 422 for an object that failed validation with errs. It contains at
// most maxInvalid errors, and a cause of the type FieldValueTooMany if there were more.
func newInvalid(kind schema.GroupKind, name string, errs field.ErrorList) *apierrors.StatusError {
	if len(errs) <= maxInvalid {
		return apierrors.NewInvalid(kind, name, errs)
	}
	err := apierrors.NewInvalid(kind, name, errs[:maxInvalid])
	more := fmt.Sprintf("too many errors, the list is truncated: %d more", len(errs)-maxInvalid)
	err.ErrStatus.Message += " (" + more + ")"
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: metav1.CauseTypeTooMany, Message: more})
	return err
}
