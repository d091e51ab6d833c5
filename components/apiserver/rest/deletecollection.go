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

// deleteCollection deletes all that a list selects, and answers with them.
func (c *call) deleteCollection() error {
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
	page, err := c.page(listOpts, s)
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
		return c.onlyList()
	}
	return c.answerList(format, page, meta)
}

// deletionsAtOnce bounds how many deletions of one collection are under way at
// a time: enough for etcd to sync many with one write, few enough to leave room
// for others.
const deletionsAtOnce = 32

var errPanicked = errors.New("deletion panicked")

// removeAll deletes what a list found, several at a time and in no certain
// order. After the first failure no deletion begins; what is gone already is
// none.
func (c *call) removeAll(entries []*store.Entry, opts *metav1.DeleteOptions) error {
	var panicked atomic.Value // of string
	group, ctx := errgroup.WithContext(c.ctx)
	// A goroutine's stack grows on its way to etcd, so each does many.
	var next atomic.Int64
	for range min(deletionsAtOnce, len(entries)) {
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
		panic(v) // where the request's own recovery finds it
	}
	if err != nil {
		return err
	}
	return c.ctx.Err()
}

// removeOne deletes one of a list. What is gone already is no error.
func (c *call) removeOne(ctx context.Context, e *store.Entry, opts *metav1.DeleteOptions) error {
	obj, err := c.res.Read(e)
	if err != nil {
		return err
	}
	one := *c
	one.namespace = obj.GetNamespace()
	one.name = obj.GetName()
	info := *c.info
	info.Namespace, info.Name = one.namespace, one.name
	one.info = &info
	one.ctx = apirequest.WithNamespace(ctx, one.namespace)
	if _, err := one.remove(one.name, opts.DeepCopy()); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}
