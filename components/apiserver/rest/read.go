package rest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/apiserver/request"
	"hyperkube/internal/store"
)

// reader handles gets, and reads the objects of gets and lists from the store.
type reader struct{ *call }

// get handles a GET of one object. Without the parameter resourceVersion, the response includes all writes before the
// request. With 0, it is the cached object, however old. With another version, it is at least that new; if that
// version does not exist after revisionTimeout, the response is a Timeout error.
func (c reader) get() error {
	format, err := c.format()
	if err != nil {
		return err
	}
	revision, err := request.ResourceVersion(c.query.Get("resourceVersion"))
	if err != nil {
		return err
	}
	ctx := c.ctx
	if revision > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, revisionTimeout)
		defer cancel()
	}
	if c.res.Computed() != nil {
		entry, err := c.computed(ctx, c.name)
		if err != nil {
			return err
		}
		return c.responder().sendEntry(format, http.StatusOK, entry[0])
	}
	entry, err := c.res.Collection.Get(ctx, c.res.Key(c.namespace, c.name), revision)
	if err = tooNewOnTimeout(ctx, err); errors.Is(err, store.ErrTooNew) && revision > 0 {
		return c.tooNew(revision)
	}
	if err != nil {
		return c.storeError(err, c.name)
	}
	return c.responder().sendEntry(format, http.StatusOK, entry)
}

// selectedPage reads the objects that a list request selects: stored ones, or all for a computed resource. It waits
// for a CPU slot if evaluating the selectors takes long.
func (c reader) selectedPage(opts *internalversion.ListOptions, s selected) (*store.Page, error) {
	done, err := c.waitToSelect(opts)
	if err != nil {
		return nil, err
	}
	defer done()
	if c.res.Computed() != nil {
		return c.computedPage(s)
	}
	return c.page(opts, s)
}

// waitToSelect waits for a CPU slot if evaluating the selectors for all objects takes long. The
// caller must call done afterwards, also if no slot was needed.
func (c reader) waitToSelect(opts *internalversion.ListOptions) (done func(), err error) {
	const long = 100_000 // evaluated requirements, about five milliseconds
	requirements, _ := opts.LabelSelector.Requirements()
	n, _, _ := c.res.Collection.Stats()
	if n*(len(requirements)+len(opts.FieldSelector.Requirements())) < long {
		return func() {}, nil
	}
	return c.cpuSlots.acquire(c.ctx)
}

// page reads a page of the objects that s selects, at the resource version and from the continue token of opts. It
// returns the error for the client, such as Expired for a version that is compacted.
//
// https://kubernetes.io/docs/reference/using-api/api-concepts/#semantics-for-get-and-list
func (c reader) page(opts *internalversion.ListOptions, s selected) (*store.Page, error) {
	lo := store.ListOptions{Prefix: s.listPrefix(), Match: s.listMatch(), Index: s.index, Value: s.value, Limit: int(opts.Limit)}
	if opts.Limit < 0 {
		lo.Limit = 0
	}
	revision, err := request.ResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, err
	}
	if opts.Continue != "" {
		if lo.From, lo.Revision, err = request.DecodeContinue(opts.Continue, s.prefix); err != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid continue token: %v", err))
		}
		if revision > 0 {
			return nil, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
		}
		lo.Exact = lo.Revision > 0
		if revision == 0 {
			lo.Limit = 0 // see below
		}
	} else {
		lo.Revision = revision
		switch {
		case revision == 0:
			// A list of any version ignores the limit.
			lo.Limit = 0
		case revision > 0:
			lo.Exact = opts.ResourceVersionMatch == metav1.ResourceVersionMatchExact ||
				opts.ResourceVersionMatch == "" && opts.Limit > 0
		}
	}
	page, err := c.listSoon(c.ctx, lo)
	switch {
	case errors.Is(err, store.ErrTooOld) && opts.Continue != "":
		return nil, c.continueExpired(lo.From, s.prefix)
	case errors.Is(err, store.ErrTooNew):
		return nil, c.tooNew(lo.Revision)
	case err != nil:
		return nil, c.storeError(err, "")
	}
	return page, nil
}

// listSoon lists like Collection.List, but returns store.ErrTooNew if the requested revision is not reached within
// revisionTimeout.
func (c reader) listSoon(ctx context.Context, lo store.ListOptions) (*store.Page, error) {
	if lo.Revision <= 0 {
		return c.res.Collection.List(ctx, lo)
	}
	soon, cancel := context.WithTimeout(ctx, revisionTimeout)
	defer cancel()
	page, err := c.res.Collection.List(soon, lo)
	return page, tooNewOnTimeout(soon, err)
}

// revisionTimeout is the maximum time that a read waits for a resource version that does not exist
// yet.
const revisionTimeout = 3 * time.Second

// tooNewOnTimeout returns an error that wraps store.ErrTooNew if err is set and the deadline of soon has passed, and
// err otherwise.
func tooNewOnTimeout(soon context.Context, err error) error {
	if err != nil && errors.Is(soon.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", store.ErrTooNew, err)
	}
	return err
}

// continueExpired returns the Expired error for a continue token whose revision is compacted. It
// contains a new token, with which the client gets the remaining list, from key on, at the latest
// version.
func (c reader) continueExpired(key, prefix string) error {
	token, err := request.EncodeContinue(key, prefix, -1)
	if err != nil {
		return apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result. You must start a new list without the continue parameter.")
	}
	expired := apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.")
	expired.ErrStatus.ListMeta.Continue = token
	return expired
}

// tooNew returns the Timeout error for a read at the resource version wanted, which does not exist yet. It requests
// the current version from etcd, which is part of the error, or 0 if etcd does not respond.
func (c reader) tooNew(wanted int64) error {
	// The request's deadline may have passed.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), revisionTimeout)
	defer cancel()
	current, err := c.res.Collection.Store().CurrentRevision(ctx)
	if err != nil {
		current = 0
	}
	return tooNew(wanted, current)
}
