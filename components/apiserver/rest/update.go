package rest

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"hyperkube/components/apiserver/audit"
	"hyperkube/components/apiserver/fieldmanager"
	"hyperkube/components/apiserver/request"
	"hyperkube/internal/api"
)

// update handles a PUT of an object, or of a subresource such as status if subresource is set. way defines the fields
// that may change. Some resources are created if they do not exist; for others the response is 404.
func (c changer) update(subresource string, way *api.Update) error {
	format, err := c.format()
	if err != nil {
		return err
	}
	opts, err := request.UpdateOptions(c.query)
	if err != nil {
		return err
	}
	body, err := c.bodyDecoder().readBody()
	if err != nil {
		return err
	}
	strict := fieldValidation(opts.FieldValidation)
	first, err := c.decodeUpdate(body, strict)
	if apierrors.IsInvalid(err) {
		// A missing object takes precedence over a wrong kind.
		if e, nerr := c.newest(c.res.Key(c.namespace, c.name)); nerr == nil && e == nil {
			return apierrors.NewNotFound(c.res.GroupResource(), c.name)
		}
	}
	if err != nil {
		return err
	}
	audit.Requested(c.ctx, first, c.res.GroupVersion())
	f, err := c.cfg.Fields.For(c.res.Resource, subresource)
	if err != nil {
		return err
	}
	manager := fieldmanager.Name(opts.FieldManager, c.req.UserAgent())
	out, err := c.change(change{
		way:     way,
		create:  c.mayCreateBy(subresource),
		uid:     first.GetUID(),
		options: opts,
		make: func(_ context.Context, current api.Object) (api.Object, error) {
			obj := first
			first = nil
			if obj == nil {
				// The previous attempt has modified it.
				var err error
				if obj, err = c.decodeUpdate(body, "Ignore"); err != nil {
					return nil, err
				}
			}
			if subresource == "" {
				if err := c.checkSize(obj, false); err != nil {
					return nil, err
				}
			}
			live := current
			if live == nil {
				live = c.res.New()
				live.GetObjectKind().SetGroupVersionKind(c.res.GVK())
			}
			return asObject(c.cfg.Fields.Updated(fieldmanager.By{Resource: c.res.Resource, Subresource: subresource, Fields: f, Manager: manager}, live, obj))
		},
	})
	if err != nil {
		return err
	}
	return c.responder().sendChanged(format, out)
}

// mayCreateBy reports whether a PUT or an apply of the subresource creates the object if it does
// not exist. As in upstream, this includes the status, for example of Services.
func (c changer) mayCreateBy(subresource string) bool {
	return c.res.AllowCreateOnUpdate && (subresource == "" || subresource == "status")
}

// decodeUpdate decodes the object in the body of a PUT, sets its defaults, and removes duplicate owners. It returns
// an error if its name or namespace is not that in the path.
func (c changer) decodeUpdate(body []byte, strict strictness) (api.Object, error) {
	obj := c.res.New()
	if err := c.bodyDecoder().decode(body, obj, c.res.GVK(), strict); err != nil {
		return nil, err
	}
	c.res.Default(obj)
	if err := c.checkNamespace(obj); err != nil {
		return nil, err
	}
	if err := c.checkName(obj); err != nil {
		return nil, err
	}
	if err := c.checkPathName(); err != nil {
		return nil, err
	}
	uniqueOwners(c.ctx, obj, false)
	return obj, nil
}

// asObject converts obj, the result of a field manager, to an API object. It returns an error for a value of another
// type.
func asObject(obj any) (api.Object, error) {
	o, ok := obj.(api.Object)
	if !ok {
		return nil, fmt.Errorf("managed fields: %T is not an API object", obj)
	}
	return o, nil
}
