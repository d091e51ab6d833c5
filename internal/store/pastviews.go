package store

// pastView is a snapshot of a collection that is not current any more, and the revision of the change that has made
// it outdated.
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

// keep stores the snapshot v, because the client of a paginated list will request the next page at the same revision.
// r is the collection's history, and revision the revision of its last change. It does nothing if v is from before
// the history, or is still current and can be restored from the history later. The least recently used snapshot is
// dropped if there are too many. The caller holds the collection's lock.
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

// at returns the snapshot whose contents are those at revision, or nil if none is kept.
func (p pastViews) at(revision int64) *view {
	for _, have := range p {
		if have.revision <= revision && revision < have.until {
			return have.view
		}
	}
	return nil
}

// prune drops snapshots from before start, the revision at which the recorded history starts, so
// that they do not keep old entries in memory.
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
