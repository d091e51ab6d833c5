package resource

import (
	"context"

	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
)

func deviceClass() api.Kind[*resourcev1.DeviceClass] {
	return api.Kind[*resourcev1.DeviceClass]{
		Names:        api.Names{Kind: "DeviceClass", Plural: "deviceclasses"},
		Group:        group,
		Version:      version,
		Scope:        api.Cluster,
		DeclaredName: true,
		New:          func() *resourcev1.DeviceClass { return &resourcev1.DeviceClass{} },
		NewList:      func() runtime.Object { return &resourcev1.DeviceClassList{} },

		PrepareCreate: func(_ context.Context, c *resourcev1.DeviceClass) { c.Generation = 1 },
		Validate: func(ctx context.Context, c *resourcev1.DeviceClass) field.ErrorList {
			return checkClass(ctx, c, nil)
		},
		Update: api.KindUpdate[*resourcev1.DeviceClass]{
			Prepare: func(_ context.Context, c, old *resourcev1.DeviceClass) {
				c.Generation = old.Generation
				if !apiequality.Semantic.DeepEqual(c.Spec, old.Spec) {
					c.Generation++
				}
			},
			Validate: checkClass,
		},
	}
}

func checkClass(ctx context.Context, c, old *resourcev1.DeviceClass) field.ErrorList {
	var e checker
	var was *resourcev1.DeviceClassSpec
	if old != nil {
		was = &old.Spec
	}
	spec := field.NewPath("spec")
	// Unchanged values were valid before.
	e.stored = was != nil && apiequality.Semantic.DeepEqual(c.Spec.Selectors, was.Selectors)
	e.selectors(c.Spec.Selectors, spec.Child("selectors"))
	e.stored = was != nil && apiequality.Semantic.DeepEqual(c.Spec.Config, was.Config)
	if len(c.Spec.Config) <= resourcev1.DeviceConfigMaxSize {
		for i := range c.Spec.Config {
			e.configuration(&c.Spec.Config[i].DeviceConfiguration, spec.Child("config").Index(i))
		}
	}
	e.Add(declared(ctx, resourcev1.Validate_DeviceClassSpec, spec, &c.Spec, was))
	return e.List
}
