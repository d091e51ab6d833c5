package store

import (
	"context"
	"fmt"
)

// List returns a page of entries that is consistent at one revision. It is served from the cache, or from etcd if
// opts requests an exact revision that the cache cannot restore. It returns ErrTooOld if that revision is compacted,
// ErrTooNew if a revision is not reached within three seconds, ErrUnavailable if etcd does not respond, and
// ErrStopped if the store stops or the collection is dropped.
func (c *Collection) List(ctx context.Context, opts ListOptions) (*Page, error) {
	page, err := c.list(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", c.cfg.Resource, err)
	}
	return page, nil
}

// list is the implementation of List. Its errors do not contain the resource, which List adds.
func (c *Collection) list(ctx context.Context, opts ListOptions) (*Page, error) {
	if opts.Exact && opts.Revision > 0 && opts.Revision < c.store.compacted.Load() {
		return nil, ErrTooOld
	}
	if err := c.waitForRevision(ctx, opts.Revision); err != nil {
		return nil, err
	}
	v, revision := c.snapshot()
	if opts.Exact && opts.Revision > 0 && opts.Revision < v.revision {
		v = c.viewAt(opts.Revision)
		if v == nil {
			return etcdReader{c}.page(ctx, opts)
		}
		revision = opts.Revision
	} else if opts.Exact && opts.Revision > 0 {
		revision = opts.Revision
	}
	page, looked := v.page(opts, c.cfg.indexNamed(opts.Index))
	page.Revision = revision
	c.cacheLists.add(looked, len(page.Entries), opts.Match != nil)
	if page.Next != "" {
		c.mu.Lock()
		c.past.keep(v, &c.ring, c.revision)
		c.mu.Unlock()
	}
	return page, nil
}

// page selects entries from the snapshot v. index is the number of the index by which they are found, or negative for
// none. looked is the number of entries that were checked. It does not set the revision of the page.
func (v *view) page(opts ListOptions, index int) (page *Page, looked int) {
	page = &Page{}
	size := opts.Limit
	if size == 0 && opts.Prefix == "" && opts.Match == nil {
		size = v.entries.Len()
	}
	page.Entries = make([]*Entry, 0, min(size, v.entries.Len()))
	var rest int64
	v.ascend(opts.Prefix, opts.From, index, opts.Value, func(e *Entry) bool {
		looked++
		if opts.Limit > 0 && len(page.Entries) == opts.Limit {
			if page.Next == "" {
				page.Next = e.key
			}
			rest++
			return opts.Match == nil
		}
		if opts.Match == nil || opts.Match(e) {
			page.Entries = append(page.Entries, e)
		}
		return true
	})
	page.Remaining = rest
	if opts.Match != nil {
		page.Remaining = -1
	}
	return page, looked
}

// viewAt returns the state of the collection at an earlier revision. It copies the current entries
// and reverts the recorded events since. It returns nil if the recorded events do not reach back to
// the revision.
func (c *Collection) viewAt(revision int64) *view {
	c.mu.Lock()
	defer c.mu.Unlock()
	if revision < c.ring.start {
		return nil
	}
	if revision >= c.revision {
		return c.viewLocked()
	}
	if v := c.past.at(revision); v != nil {
		return v
	}
	then := c.viewLocked().clone()
	from := c.ring.after(revision)
	for n := c.ring.next; n > from; n-- {
		if ev := c.ring.at(n - 1); ev.Previous != nil {
			then.put(ev.Previous)
		} else {
			then.remove(ev.Current.key)
		}
	}
	at := c.ring.start
	if from > c.ring.first {
		at = c.ring.at(from - 1).Revision
	}
	v := &view{contents: then, revision: at}
	c.past.keep(v, &c.ring, c.revision)
	return v
}
