package fieldmanager

import (
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensiontypes "k8s.io/apiextensions-apiserver/pkg/client/applyconfiguration"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregationtypes "k8s.io/kube-aggregator/pkg/client/applyconfiguration"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// byGroup is a TypeConverter that uses a separate schema for the types of one API group, and
// another converter for the other groups. The schema is in another library and is loaded at first
// use.
type byGroup struct {
	managedfields.TypeConverter
	group     string
	converter func() managedfields.TypeConverter
}

// withLibraries returns a converter that also supports the groups apiregistration.k8s.io and
// apiextensions.k8s.io, whose types are not in k8s.io/api.
func withLibraries(others managedfields.TypeConverter) managedfields.TypeConverter {
	others = withGroup(others, apiregistrationv1.GroupName, apiregistrationv1.AddToScheme, aggregationtypes.NewTypeConverter)
	return withGroup(others, apiextensionsv1.GroupName, apiextensionsv1.AddToScheme, extensiontypes.NewTypeConverter)
}

// withGroup returns a converter that uses converter for the types of group, and others for all
// other groups. addTo adds the types of the group to a scheme.
func withGroup(others managedfields.TypeConverter, group string, addTo func(*runtime.Scheme) error, converter func(*runtime.Scheme) managedfields.TypeConverter) byGroup {
	return byGroup{others, group, sync.OnceValue(func() managedfields.TypeConverter {
		s := runtime.NewScheme()
		// Adding types to a new scheme does not fail.
		_ = addTo(s)
		return converter(s)
	})}
}

// ObjectToTyped implements managedfields.TypeConverter. It selects the schema by the API group of
// the object's kind.
func (g byGroup) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	if obj.GetObjectKind().GroupVersionKind().Group == g.group {
		return g.converter().ObjectToTyped(obj, opts...)
	}
	return g.TypeConverter.ObjectToTyped(obj, opts...)
}
