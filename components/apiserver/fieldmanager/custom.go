package fieldmanager

import (
	"fmt"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensiontypes "k8s.io/apiextensions-apiserver/pkg/client/applyconfiguration"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"hyperkube/internal/api"
)

// newCustom makes the manager of a custom resource, by the schema of its
// definition.
func newCustom(res *api.Resource, subresource string, reset map[fieldpath.APIVersion]fieldpath.Filter) (*Manager, error) {
	types, err := res.Custom.Types()
	if err != nil {
		return nil, err
	}
	kind := customKind{kindOf{res}}
	return managedfields.NewDefaultCRDFieldManager(types, kind, kind, creator{res}, res.GVK(), res.GroupVersion(), subresource, reset)
}

// customKind converts between the versions of a definition.
type customKind struct{ kindOf }

// ConvertToVersion returns what has that version already.
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
	return k.Custom.Relabel(obj, to.Version)
}

// extended adds the types of apiextensions.k8s.io, whose schema is in another
// library than that of all others. It is loaded when it is first needed.
type extended struct {
	managedfields.TypeConverter
	own func() managedfields.TypeConverter
}

func withExtensions(others managedfields.TypeConverter) extended {
	return extended{others, sync.OnceValue(func() managedfields.TypeConverter {
		s := runtime.NewScheme()
		// It adds types to a new scheme: there is nothing to fail.
		_ = apiextensionsv1.AddToScheme(s)
		return extensiontypes.NewTypeConverter(s)
	})}
}

// ObjectToTyped is that of the schema of the object's kind.
func (e extended) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	if obj.GetObjectKind().GroupVersionKind().Group == apiextensionsv1.GroupName {
		return e.own().ObjectToTyped(obj, opts...)
	}
	return e.TypeConverter.ObjectToTyped(obj, opts...)
}
