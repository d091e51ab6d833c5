package rest

import (
	"context"
	"errors"
	"fmt"
	rdebug "runtime/debug"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"hyperkube/components/apiserver/negotiate"
	"hyperkube/components/apiserver/request"
	"hyperkube/internal/store"
)

// deleteCollection handles a DELETE of all objects that the request's selectors match, or of one page of them if the
// request has a limit, and responds with the list of them. It rejects the option
// ignoreStoreReadErrorWithClusterBreakingPotential. A request that accepts only the metadata of single objects gets
// an error after the deletion.
func (c deleter) deleteCollection() error {
	format, err := c.format()
	if err != nil {
		return err
	}
	listOpts, err := request.ListOptions(c.query)
	if err != nil {
		return err
	}
	if err := request.CheckListOptions(listOpts); err != nil {
		return err
	}
	opts, err := c.deleteOptions()
	if err != nil {
		return err
	}
	c.warnDefault(opts)
	if unsafe(opts) {
		return errUnsafeCollection()
	}
	s, err := selectObjects(c.res, c.namespace, listOpts)
	if err != nil {
		return err
	}
	page, err := c.reader().page(listOpts, s)
	if err != nil {
		return err
	}
	if err := c.removeAll(page.Entries, opts); err != nil {
		return err
	}
	meta, err := metaOf(page, s)
	if err != nil {
		return err
	}
	if format.As == negotiate.Metadata {
		return c.responder().listNotObject()
	}
	return c.lister().answerList(format, page, meta)
}

// deletionConcurrency limits the number of concurrent deletions of one collection: enough for etcd to
// sync many with one write, few enough to leave capacity for other requests.
const deletionConcurrency = 32

// errPanicked stops the other goroutines of removeAll after one has panicked.
var errPanicked = errors.New("deletion panicked")

// removeAll deletes entries concurrently and in no particular order. After the first failure it
// starts no more deletions and returns the error. Objects that no longer exist are not an error. It
// panics if a deletion panics, so that the request's handler recovers from it.
func (c deleter) removeAll(entries []*store.Entry, opts *metav1.DeleteOptions) error {
	var panicked atomic.Value // contains a string
	group, ctx := errgroup.WithContext(c.ctx)
	// The stack of a goroutine must grow for writes to etcd, so each goroutine deletes many
	// objects.
	var next atomic.Int64
	for range min(deletionConcurrency, len(entries)) {
		group.Go(func() (err error) {
			defer func() {
				if v := recover(); v != nil {
					panicked.Store(fmt.Sprintf("%v, in %s", v, rdebug.Stack()))
					err = errPanicked
				}
			}()
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(entries) {
					break
				}
				if err := c.removeOne(ctx, entries[i], opts); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := group.Wait()
	if v := panicked.Load(); v != nil {
		panic(v) // so that the request's goroutine recovers from it
	}
	if err != nil {
		return err
	}
	return c.ctx.Err()
}

// removeOne deletes the object of one entry as if the client had requested it by name. It returns nil if the object
// no longer exists.
func (c deleter) removeOne(ctx context.Context, e *store.Entry, opts *metav1.DeleteOptions) error {
	obj, err := c.res.Read(e)
	if err != nil {
		return err
	}
	one := *c.call
	one.namespace = obj.GetNamespace()
	one.name = obj.GetName()
	info := *c.info
	info.Namespace, info.Name = one.namespace, one.name
	one.info = &info
	one.ctx = apirequest.WithNamespace(ctx, one.namespace)
	if _, err := one.deleter().remove(one.name, opts.DeepCopy()); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}
