package rest

import (
	"context"
	"fmt"
	"net/http"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"hyperkube/components/apiserver/audit"
	"hyperkube/components/apiserver/fieldmanager"
	"hyperkube/components/apiserver/negotiate"
	"hyperkube/components/apiserver/registry"
	"hyperkube/components/apiserver/request"
	"hyperkube/components/apiserver/wire"
	"hyperkube/internal/api"
)

// scaleKind is the kind of the scale subresource of all resources.
var scaleKind = autoscalingv1.SchemeGroupVersion.WithKind("Scale")

// scaleResource describes the kind Scale for the field manager and for tables. It is not a resource
// of the registry.
var scaleResource = (api.Kind[*autoscalingv1.Scale]{
	Names:   api.Names{Kind: "Scale", Plural: "scale"},
	Group:   autoscalingv1.GroupName,
	Version: "v1",
	Scope:   api.Namespaced,
	New:     func() *autoscalingv1.Scale { return &autoscalingv1.Scale{} },
	Default: func(*autoscalingv1.Scale) {},
	Columns: []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Description: metav1.ObjectMeta{}.SwaggerDoc()["name"]},
		api.Column("Desired", "integer", autoscalingv1.ScaleSpec{}.SwaggerDoc()["replicas"]),
		api.Column("Available", "integer", autoscalingv1.ScaleStatus{}.SwaggerDoc()["replicas"]),
		{Name: "Age", Type: "string", Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"]},
	},
	Row: func(s *autoscalingv1.Scale) []any {
		return []any{s.Name, int64(s.Spec.Replicas), int64(s.Status.Replicas), api.Age(s.CreationTimestamp)}
	},
}).Resource()

// customScaleColumns are the table columns for scales of custom resources.
var customScaleColumns = []metav1.TableColumnDefinition{
	api.NameColumn,
	api.Column("Desired", "integer", "Number of desired replicas"),
	api.Column("Available", "integer", "Number of actual replicas"),
	{Name: "Age", Type: "date", Description: api.AgeColumn.Description},
}

// customScaleRow returns the cells of customScaleColumns for a Scale. In upstream, the cells of
// custom resources are read from the JSON, which omits zero replicas, so that cell is empty.
func customScaleRow(obj api.Object) []any {
	cells := scaleResource.Row(obj)
	if s, ok := obj.(*autoscalingv1.Scale); ok && s.Spec.Replicas == 0 {
		cells[1] = nil
	}
	return cells
}

// scaler handles requests for the scale subresource of a resource.
type scaler struct{ *call }

// scale handles a GET, PUT or PATCH of the scale subresource, which reads and changes the number of replicas of an
// object.
func (c scaler) scale() error {
	format, err := c.negotiator.Response(c.req, negotiate.Endpoint{Protobuf: true, Metadata: true, Routed: c.res.Custom == nil})
	if err != nil {
		return err
	}
	switch c.info.Verb {
	case "get":
		entry, err := c.res.Collection.Get(c.ctx, c.res.Key(c.namespace, c.name), -1)
		if err != nil {
			return c.storeError(err, c.name)
		}
		obj, err := c.res.Read(entry)
		if err != nil {
			return err
		}
		if err := c.scalable(obj); err != nil {
			return err
		}
		if c.res.Scale.Check != nil {
			if err := c.res.Scale.Check(obj); err != nil {
				return apierrors.NewInternalError(err)
			}
		}
		s, _, err := c.scaleOf(obj)
		if err != nil {
			return err
		}
		return c.sendScale(format, s)
	case "update":
		return c.updateScale(format)
	case "patch":
		return c.patchScale(format)
	}
	return c.notAllowed()
}

// sendScale sends a Scale, as an object, partial metadata or a table. It omits the managed fields, which belong to
// the scaled object.
func (c scaler) sendScale(format negotiate.Format, s *autoscalingv1.Scale) error {
	s.ManagedFields = nil // they belong to the scaled object
	if format.As == negotiate.Object {
		return c.SendObject(c.w, c.req, format, http.StatusOK, s)
	}
	as := *c.call
	res := scaleResource
	if c.res.Custom != nil {
		own := *scaleResource
		own.Columns, own.Row = customScaleColumns, customScaleRow
		res = &own
	}
	as.res = &registry.Resource{Resource: res, Object: wire.NewKind(scaleKind)}
	return as.responder().sendAPIObject(format, http.StatusOK, s)
}

// scalable returns an error if obj, a custom resource, has values at the paths of its definition that cannot be
// represented as a Scale. It returns nil for built-in resources.
func (c scaler) scalable(obj api.Object) error {
	if c.res.Scale.Unreadable == nil {
		return nil
	}
	return c.res.Scale.Unreadable(obj)
}

// scaleOf returns the Scale of an object. Its managed fields are the managers of the replicas; the
// returned handler maps changed ones back to the object.
func (c scaler) scaleOf(obj api.Object) (*autoscalingv1.Scale, *managedfields.ScaleHandler, error) {
	spec, status, selector := c.res.Scale.Get(obj)
	parts := make([]any, len(c.res.Scale.SpecReplicasPath))
	for i, p := range c.res.Scale.SpecReplicasPath {
		parts[i] = p
	}
	path, err := fieldpath.MakePath(parts...)
	if err != nil {
		return nil, nil, fmt.Errorf("replicas of %s: %w", c.res.Kind, err)
	}
	paths := managedfields.ResourcePathMappings{c.res.GroupVersion().String(): path}
	for version, other := range c.res.Scale.OtherPaths {
		if _, ok := paths[version]; !ok {
			paths[version] = fieldPath(other)
		}
	}
	handler := managedfields.NewScaleHandler(obj.GetManagedFields(), c.res.GroupVersion(), paths)
	entries, err := handler.ToSubresource()
	if err != nil {
		return nil, nil, fmt.Errorf("managed fields of the scale of %s: %w", obj.GetName(), err)
	}
	s := &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{
			Name: obj.GetName(), Namespace: obj.GetNamespace(), UID: obj.GetUID(),
			ResourceVersion: obj.GetResourceVersion(), CreationTimestamp: obj.GetCreationTimestamp(),
			ManagedFields: entries,
		},
		Spec:   autoscalingv1.ScaleSpec{Replicas: spec},
		Status: autoscalingv1.ScaleStatus{Replicas: status, Selector: selector},
	}
	s.SetGroupVersionKind(scaleKind)
	return s, handler, nil
}

// fieldPath returns the path of nested fields for the field manager. It is nil for nil: a version
// without scale.
func fieldPath(names []string) fieldpath.Path {
	var path fieldpath.Path
	for i := range names {
		path = append(path, fieldpath.PathElement{FieldName: &names[i]})
	}
	return path
}

// updateScale handles a PUT of the scale subresource: it sets the replicas of the object to those in the body.
func (c scaler) updateScale(format negotiate.Format) error {
	opts, err := request.UpdateOptions(c.query)
	if err != nil {
		return err
	}
	body, err := c.bodyDecoder().readBody()
	if err != nil {
		return err
	}
	wish := &autoscalingv1.Scale{}
	if err := c.bodyDecoder().decode(body, wish, scaleKind, fieldValidation(opts.FieldValidation)); err != nil {
		return err
	}
	audit.Requested(c.ctx, wish, scaleKind.GroupVersion())
	if err := c.checkNamespace(wish); err != nil {
		return err
	}
	if err := c.checkName(wish); err != nil {
		return err
	}
	if err := c.checkPathName(); err != nil {
		return err
	}
	uniqueOwners(c.ctx, wish, false)
	fields, err := c.cfg.Fields.For(scaleResource, "scale")
	if err != nil {
		return err
	}
	manager := fieldmanager.Name(opts.FieldManager, c.req.UserAgent())
	return c.changeScale(format, opts, wish.UID, func(current *autoscalingv1.Scale) (*autoscalingv1.Scale, error) {
		return asScale(fields.UpdateNoErrors(current, wish.DeepCopy(), manager))
	})
}

// patchScale handles a PATCH of the scale subresource, of any patch type.
func (c scaler) patchScale(format negotiate.Format) error {
	kindOf, err := c.changer().patchType()
	if err != nil {
		return err
	}
	p, err := c.changer().newPatcher(kindOf)
	if err != nil {
		return err
	}
	if p.fields, err = c.cfg.Fields.For(scaleResource, "scale"); err != nil {
		return err
	}
	p.kind = scaleKind
	p.empty = func() api.Object { return &autoscalingv1.Scale{} }
	p.defaults = func(api.Object) {}
	return c.changeScale(format, updateOptionsOf(p.options), "", func(current *autoscalingv1.Scale) (*autoscalingv1.Scale, error) {
		after, err := asScale(p.apply(current))
		if err != nil {
			return nil, err
		}
		if err := c.checkNamespace(after); err != nil {
			return nil, err
		}
		uniqueOwners(c.ctx, after, true)
		return after, c.checkName(after)
	})
}

// asScale returns obj as a Scale, or an error if it has another type. It returns the first of errs that is not nil,
// so that the results of a call can be passed directly.
func asScale(obj any, errs ...error) (*autoscalingv1.Scale, error) {
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	s, ok := obj.(*autoscalingv1.Scale)
	if !ok {
		return nil, fmt.Errorf("scale: got a %T", obj)
	}
	return s, nil
}

// changeScale calls f with the Scale of the object, stores the replicas, resource version and managed fields of the
// Scale that f returns in the object, and sends the response. f is called again after a conflict. uid, unless empty,
// must be the UID of the object. Admission reviews the Scale, not the object.
func (c scaler) changeScale(format negotiate.Format, opts *metav1.UpdateOptions, uid types.UID, f func(*autoscalingv1.Scale) (*autoscalingv1.Scale, error)) error {
	way := c.res.Update
	out, err := c.changer().change(change{
		way:           &way,
		options:       opts,
		uid:           uid,
		skipAdmission: true,
		make: func(ctx context.Context, current api.Object) (api.Object, error) {
			if err := c.scalable(current); err != nil {
				return nil, err
			}
			before, handler, err := c.scaleOf(current)
			if err != nil {
				return nil, err
			}
			after, err := f(before.DeepCopy())
			if err != nil {
				return nil, err
			}
			r := review{operation: "UPDATE", kind: scaleKind, obj: after, old: before, name: c.name, options: opts, dryRun: dryRun(opts.DryRun)}
			if err := c.admitter().runMutating(ctx, r); err != nil {
				return nil, err
			}
			if !c.res.Scale.Custom {
				if err := validateScale(after); err != nil {
					return nil, err
				}
			}
			if after.UID != "" && after.UID != current.GetUID() {
				return nil, apierrors.NewConflict(schema.GroupResource{Group: c.res.Group, Resource: c.res.Plural + "/scale"}, c.name,
					fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", after.UID, current.GetUID()))
			}
			obj := current.DeepCopyObject().(api.Object)
			c.res.Scale.Set(obj, after.Spec.Replicas)
			if after.ResourceVersion != "" {
				obj.SetResourceVersion(after.ResourceVersion)
			}
			entries, err := handler.ToParent(after.ManagedFields)
			if err != nil {
				return nil, fmt.Errorf("managed fields of %s: %w", c.name, err)
			}
			obj.SetManagedFields(entries)
			return obj, c.confirmScale(ctx, r, obj, current)
		},
	})
	if err != nil {
		return err
	}
	obj := out.obj
	if out.entry != nil {
		if obj, err = c.res.Read(out.entry); err != nil {
			return err
		}
	}
	s, _, err := c.scaleOf(obj)
	if err != nil {
		return err
	}
	return c.sendScale(format, s)
}

// confirmScale calls validating admission with the Scales of the new object obj and of the current
// one.
func (c scaler) confirmScale(ctx context.Context, r review, obj, current api.Object) error {
	after, _, err := c.scaleOf(obj)
	if err != nil {
		return err
	}
	before, _, err := c.scaleOf(current)
	if err != nil {
		return err
	}
	after.ManagedFields, before.ManagedFields = nil, nil
	r.obj, r.old = after, before
	return c.admitter().runValidating(ctx, r)
}

// validateScale returns an Invalid error if the number of replicas is negative.
func validateScale(s *autoscalingv1.Scale) error {
	var errs field.ErrorList
	if s.Spec.Replicas < 0 {
		errs = append(errs, field.Invalid(field.NewPath("spec", "replicas"), s.Spec.Replicas, "must be greater than or equal to 0"))
	}
	if len(errs) == 0 {
		return nil
	}
	return newInvalid(scaleKind.GroupKind(), s.Name, errs)
}
