package store

import (
	"context"
	"fmt"
)

// pastView is a snapshot at an older revision.
type pastView struct {
	*view
	// until is the revision of the next change. The view is valid for revisions in [view.revision,
	// until).
	until int64
}

// maxPast is the maximum number of older snapshots that a collection keeps.
const maxPast = 4

// List returns a consistent page.
func (c *Collection) List(ctx context.Context, opts ListOptions) (*Page, error) {
	page, err := c.list(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", c.cfg.Resource, err)
	}
	return page, nil
}

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
			return c.listEtcd(ctx, opts)
		}
		revision = opts.Revision
	} else if opts.Exact && opts.Revision > 0 {
		revision = opts.Revision
	}
	page, looked := v.page(opts, c.indexNamed(opts.Index))
	page.Revision = revision
	c.cacheLists.add(looked, len(page.Entries), opts.Match != nil)
	if page.Next != "" {
		c.keepSnapshot(v)
	}
	return page, nil
}

// page selects entries from a snapshot, with an index if index is not negative. looked is the
// number of entries that were checked.
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

// keepSnapshot stores a snapshot for the next page.
func (c *Collection) keepSnapshot(v *view) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keepLocked(v)
}

func (c *Collection) keepLocked(v *view) {
	if v.revision < c.ring.start || v.revision >= c.revision {
		return // too old, of another history, or can be restored from the ring later
	}
	for i, p := range c.past {
		if p.revision == v.revision {
			c.past = append(append(c.past[:i:i], c.past[i+1:]...), p)
			return
		}
	}
	if len(c.past) == maxPast {
		c.past = c.past[1:]
	}
	until := c.ring.at(c.ring.after(v.revision)).Revision
	c.past = append(c.past, pastView{v, until})
}

// viewAt returns the state of the collection at a revision before the current one, by reverting the
// events since. It returns nil if the ring does not reach back to the revision.
func (c *Collection) viewAt(revision int64) *view {
	c.mu.Lock()
	defer c.mu.Unlock()
	if revision < c.ring.start {
		return nil
	}
	if revision >= c.revision {
		return c.viewLocked()
	}
	for _, p := range c.past {
		if p.revision <= revision && revision < p.until {
			return p.view
		}
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
	c.keepLocked(v)
	return v
}

// prunePast drops snapshots that are older than the ring, so that they do not keep old entries
// alive.
func (c *Collection) prunePast() {
	kept := c.past[:0]
	for _, p := range c.past {
		if p.revision >= c.ring.start {
			kept = append(kept, p)
		}
	}
	clear(c.past[len(kept):])
	c.past = kept
}

// listEtcd reads a page at an exact revision from etcd.
func (c *Collection) listEtcd(ctx context.Context, opts ListOptions) (*Page, error) {
	page := &Page{Revision: opts.Revision, Remaining: -1}
	looked := 0
	defer func() { c.etcdLists.add(looked, len(page.Entries), opts.Match != nil) }()
	from := c.prefix + max(opts.From, opts.Prefix)
	end := rangeEnd(c.prefix)
	if opts.Prefix != "" {
		end = prefixEnd(c.prefix + opts.Prefix)
	}
	piece := int64(readPiece)
	if opts.Limit > 0 {
		// Read one more entry to detect whether there is a next page.
		piece = min(piece, int64(opts.Limit)+1)
	}
	for ; ; piece = min(2*piece, readPiece) { // read larger pieces if few entries match
		resp, err := c.store.getRange(ctx, c, from, end, opts.Revision, piece)
		if err != nil {
			return nil, etcdError(err)
		}
		for i, kv := range resp.Kvs {
			if c.store.route(kv.Key) != c {
				continue
			}
			e := c.newEntry(string(kv.Key[len(c.prefix):]), kv.ModRevision, kv.Value)
			looked++
			if opts.Limit > 0 && len(page.Entries) == opts.Limit {
				page.Next = e.key
				if opts.Match == nil {
					page.Remaining = resp.Count - int64(i)
				}
				return page, nil
			}
			if opts.Match == nil || opts.Match(e) {
				page.Entries = append(page.Entries, e)
			}
		}
		if !resp.More || len(resp.Kvs) == 0 {
			if opts.Match == nil {
				page.Remaining = 0
			}
			return page, nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// prefixEnd returns the first key after all keys with the prefix.
func prefixEnd(prefix string) string {
	end := []byte(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i] < 0xff {
			end[i]++
			return string(end[:i+1])
		}
	}
	return "\x00"
}
