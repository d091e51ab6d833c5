package rest

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"hyperkube/internal/store"
)

// computed returns the objects of a resource that is computed for each request instead of stored, such as
// componentstatuses: all if name is empty, or only the one with the name. It returns a NotFound error if there is no
// object with the name.
func (c reader) computed(ctx context.Context, name string) ([]*store.Entry, error) {
	objects, err := c.res.Computed()(ctx)
	if err != nil {
		return nil, err
	}
	var out []*store.Entry
	for _, obj := range objects {
		if name != "" && obj.GetName() != name {
			continue
		}
		entry, err := c.res.Collection.Unstored(c.res.Key(obj.GetNamespace(), obj.GetName()), obj)
		if err != nil {
			return nil, err
		}
		out = append(out, entry)
	}
	if name != "" && len(out) == 0 {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: c.res.Group, Resource: c.res.Singular}, name)
	}
	return out, nil
}

// computedPage returns all objects of a computed resource that the request's selectors match. It ignores a limit.
func (c reader) computedPage(s selected) (*store.Page, error) {
	all, err := c.computed(c.ctx, "")
	if err != nil {
		return nil, err
	}
	page := &store.Page{Remaining: -1}
	match := s.listMatch()
	for _, e := range all {
		if match == nil || match(e) {
			page.Entries = append(page.Entries, e)
		}
	}
	return page, nil
}
