package rest

import (
	"context"
	"net/http"
	"slices"
	"strconv"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"hyperkube/components/apiserver/audit"
	"hyperkube/components/apiserver/fieldmanager"
	"hyperkube/components/apiserver/negotiate"
	"hyperkube/components/apiserver/registry"
	"hyperkube/components/apiserver/request"
	"hyperkube/internal/api"
)

// actor handles creates of objects that are not stored, such as token reviews and pod evictions,
// and subresources that handle HTTP themselves, such as pods/exec.
type actor struct{ *call }

// action handles a POST of an object that is not stored: it decodes and validates the body, calls mutating admission,
// runs a, which calls validating admission itself, and sends the result.
func (c actor) action(a *registry.Action) error {
	format, err := c.negotiator.Response(c.req, negotiate.Endpoint{Protobuf: true, Metadata: true, Tableless: true, Routed: true})
	if err != nil {
		return err
	}
	opts, err := request.CreateOptions(c.query)
	if err != nil {
		return err
	}
	body, err := c.bodyDecoder().readBody()
	if err != nil {
		return err
	}
	obj := a.New()
	if a.FormerVersion != "" {
		c.former = schema.GroupVersionKind{Group: a.Kind.Group, Version: a.FormerVersion, Kind: a.Kind.Kind}
	}
	if err := c.bodyDecoder().decode(body, obj, a.Kind, fieldValidation(opts.FieldValidation)); err != nil {
		return err
	}
	if a.Default != nil {
		a.Default(obj)
	}
	audit.Requested(c.ctx, obj, a.Kind.GroupVersion())
	name := c.name
	if meta, ok := obj.(metav1.Object); ok {
		if a.Subresource == "" {
			wipe(meta)
		}
		switch {
		case meta.GetNamespace() == c.namespace:
		case meta.GetNamespace() == "" || c.namespace == "":
			// Cluster-scoped objects lose a namespace that the client sent.
			meta.SetNamespace(c.namespace)
		default:
			return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
		}
		if name == "" {
			name = meta.GetName()
		}
	}
	if stored, ok := obj.(api.Object); ok && a.Subresource == "" {
		c.res.Default(stored)
		if errs := c.res.Validate(c.ctx, stored); len(errs) > 0 {
			kind := a.Kind.GroupKind()
			if kind.Group == authorizationv1.GroupName {
				kind.Kind, name = "", "" // upstream's message has neither
			}
			return newInvalid(kind, name, errs)
		}
	}
	r := review{operation: admission.Create, kind: a.Kind, obj: obj, name: name, options: opts, dryRun: dryRun(opts.DryRun)}
	if err := c.admitter().runMutating(c.ctx, r); err != nil {
		return err
	}
	out, err := a.Run(c.ctx, registry.ActionCall{
		Namespace: c.namespace,
		Name:      name,
		Object:    obj,
		Resource:  c.res,
		DryRun:    r.dryRun,
		DryRuns:   opts.DryRun,
		Validate: func(ctx context.Context, obj runtime.Object) error {
			r.obj = obj
			return c.admitter().runValidating(ctx, r)
		},
		Change: c.changeFor,
		Delete: c.deleteFor,
	})
	if err != nil {
		return c.storeError(err, name)
	}
	code := http.StatusCreated
	if status, ok := out.(*metav1.Status); ok {
		if status.Code == 0 {
			status.Code = int32(code)
		}
		code = int(status.Code)
		status.Kind, status.APIVersion = "Status", "v1"
	} else if out.GetObjectKind().GroupVersionKind().Kind == "" {
		out.GetObjectKind().SetGroupVersionKind(a.Kind)
	}
	return c.responder().sendOutcome(format, code, out)
}

// changeFor implements registry.ActionCall.Change: it changes another object as part of an action, such as the pod of
// a binding. f modifies a copy of the current object and is called again after conflicts. Neither admission nor
// validation is called. It returns the new resource version, or NotFound if the resource is not served or the object
// does not exist.
func (c actor) changeFor(ctx context.Context, what registry.ServerChange, f func(obj api.Object) error) (version string, err error) {
	inner := *c.call
	inner.ctx, inner.name = ctx, what.Name
	if inner.res = c.cfg.Registry.Lookup(what.Resource); inner.res == nil {
		return "", apierrors.NewNotFound(what.Resource.GroupResource(), what.Name)
	}
	fields, err := c.cfg.Fields.For(inner.res.Resource, c.info.Subresource)
	if err != nil {
		return "", err
	}
	opts := &metav1.UpdateOptions{}
	if what.DryRun {
		opts.DryRun = []string{metav1.DryRunAll}
	}
	out, err := inner.changer().change(change{
		way: &api.Update{
			Prepare:  func(context.Context, api.Object, api.Object) {},
			Validate: func(context.Context, api.Object, api.Object) field.ErrorList { return nil },
		},
		skipAdmission: true,
		uid:           what.UID,
		version:       what.ResourceVersion,
		options:       opts,
		make: func(_ context.Context, current api.Object) (api.Object, error) {
			obj := current.DeepCopyObject().(api.Object)
			if err := f(obj); err != nil {
				return nil, err
			}
			if what.Manager == "" {
				return obj, nil
			}
			return asObject(c.cfg.Fields.Updated(fieldmanager.By{
				Resource: inner.res.Resource, Subresource: c.info.Subresource, Fields: fields, Manager: what.Manager,
			}, current, obj))
		},
	})
	if err != nil {
		return "", err
	}
	if out.entry != nil {
		return strconv.FormatInt(out.entry.Revision(), 10), nil
	}
	return out.obj.GetResourceVersion(), nil
}

// deleteFor implements registry.ActionCall.Delete: it deletes the object named in the request, for
// example the pod of an eviction. Admission is not called for the deletion, because it has already
// reviewed the action.
func (c actor) deleteFor(ctx context.Context, opts *metav1.DeleteOptions) error {
	inner := *c.call
	inner.ctx, inner.byServer = ctx, true
	_, err := inner.deleter().remove(c.name, opts)
	return err
}

// stream checks the path, the method, the options and admission of a subresource that handles HTTP
// itself, such as pods/exec or services/proxy, and then passes the request to s.Serve.
func (c actor) stream(s *registry.Stream) error {
	switch {
	case len(c.info.Parts) > 3 && !s.Proxy:
		return errNoRoute
	case s.Proxy && c.req.Method == http.MethodOptions:
	case !s.Proxy && c.req.Method == http.MethodHead, !slices.Contains(s.Verbs, c.info.Verb):
		return c.notAllowed()
	}
	call := registry.StreamCall{Namespace: c.namespace, Name: c.name, Resource: c.res}
	for _, part := range c.info.Parts[3:] {
		call.Path += "/" + part
	}
	if len(call.Path) > 0 && c.req.URL.Path[len(c.req.URL.Path)-1] == '/' {
		call.Path += "/"
	}
	if s.Options != nil {
		opts, err := s.Options(c.query, call.Path)
		if err != nil {
			return err
		}
		call.Options = opts
	}
	if s.Admit {
		if dryRun(c.query["dryRun"]) {
			return apierrors.NewBadRequest("dryRun is not supported")
		}
		ctx := apirequest.WithNamespace(c.ctx, c.namespace)
		r := review{operation: admission.Connect, kind: s.Kind, obj: call.Options, name: c.name}
		if err := c.admitter().runMutating(ctx, r); err != nil {
			return err
		}
		if err := c.admitter().runValidating(ctx, r); err != nil {
			return err
		}
	}
	if err := s.Serve(c.w, c.req, call); err != nil {
		return c.storeError(err, c.name)
	}
	return nil
}
