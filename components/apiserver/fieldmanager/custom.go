package fieldmanager

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"hyperkube/internal/api"
)

// newCustom returns the field manager of a custom resource at a subresource. It uses the schemas of the resource's
// definition and returns an error if they are invalid. reset contains, by version, the filters of the fields that
// writes may own.
func newCustom(res *api.Resource, subresource string, reset map[fieldpath.APIVersion]fieldpath.Filter) (*Manager, error) {
	types, err := res.Custom.Types()
	if err != nil {
		return nil, err
	}
	kind := customKind{kindOf{Resource: res}}
	return managedfields.NewDefaultCRDFieldManager(ordered{types}, kind, kind, creator{res}, res.GVK(), res.GroupVersion(), subresource, reset)
}

// customKind converts custom resources between the versions of their definition. The managedfields library calls it to
// compare managed fields of other versions.
type customKind struct{ kindOf }

// ConvertToVersion implements runtime.ObjectConvertor. It keeps fields that the schema of the new
// version does not have. It returns objects of the desired version unchanged.
func (k customKind) ConvertToVersion(in runtime.Object, gv runtime.GroupVersioner) (runtime.Object, error) {
	obj, ok := in.(api.Object)
	if !ok {
		return nil, fmt.Errorf("converting a %s: it is a %T", k.Kind, in)
	}
	from := obj.GetObjectKind().GroupVersionKind()
	to, ok := gv.KindForGroupVersionKinds([]schema.GroupVersionKind{from})
	if !ok {
		return nil, fmt.Errorf("%v is unstructured and is not suitable for converting to %q", from, gv)
	}
	if to.GroupVersion() == from.GroupVersion() {
		return obj, nil
	}
	if to.Group != k.Group {
		return nil, runtime.NewNotRegisteredErrForKind("API server", to)
	}
	return k.Custom.ConvertLossless(obj, to.Version)
}
