package store

import (
	"context"
	"fmt"
)

// pastView is a snapshot of an older revision.
type pastView struct {
	*view
	// until is the revision of the next change: the view stands for
	// revisions in [view.revision, until).
	until int64
}

// maxPast is how many older snapshots a collection keeps.
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
	if opts.Exact && opts.Revision > 0 && opts.Revision < c.store.forgotten.Load() {
		return nil, ErrTooOld
	}
	if err := c.reach(ctx, opts.Revision); err != nil {
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
		c.keep(v)
	}
	return page, nil
}

// page selects from a snapshot, by an index unless that is negative, and tells how
// many entries it looked at.
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

// keep remembers a snapshot for the next page.
func (c *Collection) keep(v *view) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keepLocked(v)
}

func (c *Collection) keepLocked(v *view) {
	if v.revision < c.ring.start || v.revision >= c.revision {
		return // out of reach by now, of another history, or the ring can tell when it is wanted
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

// viewAt returns what the collection was at a revision before the current
// one, by taking back the events since; nil when the ring does not reach so
// far back.
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

// prunePast lets go of snapshots that the ring no longer reaches, so that they
// do not hold on to old entries for ever.
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
		// One more tells whether there is a next page.
		piece = min(piece, int64(opts.Limit)+1)
	}
	for ; ; piece = min(2*piece, readPiece) { // not many are what Match wants
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

// prefixEnd is the first key after all those that begin with prefix.
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
