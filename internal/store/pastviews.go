package store

// pastView is a snapshot at an older revision.
type pastView struct {
	*view
	// until is the revision of the next change. The view is valid for revisions in [view.revision,
	// until).
	until int64
}

// maxPast is the maximum number of older snapshots that a collection keeps.
const maxPast = 4

// pastViews are the snapshots of a collection for reads at exact revisions, least recently used first.
type pastViews []pastView

// keep stores a snapshot for the next page. r is the collection's ring, and revision that of its last
// change.
func (p *pastViews) keep(v *view, r *ring, revision int64) {
	if v.revision < r.start || v.revision >= revision {
		return // too old, of another history, or can be restored from the ring later
	}
	for i, have := range *p {
		if have.revision == v.revision {
			*p = append(append((*p)[:i:i], (*p)[i+1:]...), have)
			return
		}
	}
	if len(*p) == maxPast {
		*p = (*p)[1:]
	}
	*p = append(*p, pastView{v, r.at(r.after(v.revision)).Revision})
}

// at returns the snapshot that is valid at a revision, or nil.
func (p pastViews) at(revision int64) *view {
	for _, have := range p {
		if have.revision <= revision && revision < have.until {
			return have.view
		}
	}
	return nil
}

// prune drops snapshots from before start, where the ring starts, so that they do not keep old entries
// alive.
func (p *pastViews) prune(start int64) {
	kept := (*p)[:0]
	for _, have := range *p {
		if have.revision >= start {
			kept = append(kept, have)
		}
	}
	clear((*p)[len(kept):])
	*p = kept
}
