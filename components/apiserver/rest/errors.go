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

	"hyperkube/components/apiserver/negotiate"
	"hyperkube/components/apiserver/registry"
	"hyperkube/internal/store"
)

// statusOf returns err as a client sees it.
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

// Error answers with a Status that tells err.
func (h *Handler) Error(w http.ResponseWriter, req *http.Request, err error) {
	status := statusOf(err)
	if status.Details != nil && status.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(status.Details.RetryAfterSeconds)))
	}
	if status.Code >= http.StatusInternalServerError {
		h.cfg.Log.DebugContext(req.Context(), "request failed", "method", req.Method, "path", req.URL.Path, "error", err)
	}
	format, ferr := h.negotiator.Response(req, negotiate.Endpoint{Protobuf: true})
	if ferr != nil {
		format = negotiate.Format{Pretty: true} // for whoever looks at it
	}
	if err := h.SendObject(w, req, format, int(status.Code), status); err != nil {
		h.cfg.Log.DebugContext(req.Context(), "sending a status failed", "error", err)
	}
}

// storeError makes a Status error of what the store says of an object.
func (c *call) storeError(err error, name string) error {
	return StoreError(c.res, name, err)
}

// StoreError makes a Status error of what the store says of a resource's
// object. Status errors come back as they are.
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
		// Without a word of trying again, which clients of Kubernetes would do
		// by themselves, and be told that the object exists already.
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

// errStopped: the server stops, or what was served is served anew.
var errStopped = apierrors.NewServiceUnavailable("the server is shutting down")

// optimisticLock is what a client is told whose copy of an object is old.
const optimisticLock = "the object has been modified; please apply your changes to the latest version and try again"

func conflict(gr schema.GroupResource, name string) error {
	return apierrors.NewConflict(gr, name, errors.New(optimisticLock))
}

// tooNew is the answer to a resourceVersion that has not been reached.
func tooNew(wanted, current int64) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", wanted, current), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type:    metav1.CauseTypeResourceVersionTooLarge,
		Message: "Too large resource version",
	}}
	return err
}
