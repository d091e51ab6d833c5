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

// byGroup converts the types of one group with a separate schema, which is in another library. It
// is loaded at first use.
type byGroup struct {
	managedfields.TypeConverter
	group     string
	converter func() managedfields.TypeConverter
}

// withLibraries adds the groups that k8s.io/api does not contain.
func withLibraries(others managedfields.TypeConverter) managedfields.TypeConverter {
	others = withGroup(others, apiregistrationv1.GroupName, apiregistrationv1.AddToScheme, aggregationtypes.NewTypeConverter)
	return withGroup(others, apiextensionsv1.GroupName, apiextensionsv1.AddToScheme, extensiontypes.NewTypeConverter)
}

func withGroup(others managedfields.TypeConverter, group string, addTo func(*runtime.Scheme) error, converter func(*runtime.Scheme) managedfields.TypeConverter) byGroup {
	return byGroup{others, group, sync.OnceValue(func() managedfields.TypeConverter {
		s := runtime.NewScheme()
		// Adding types to a new scheme does not fail.
		_ = addTo(s)
		return converter(s)
	})}
}

// ObjectToTyped implements managedfields.TypeConverter with the schema of the object's group.
func (g byGroup) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	if obj.GetObjectKind().GroupVersionKind().Group == g.group {
		return g.converter().ObjectToTyped(obj, opts...)
	}
	return g.TypeConverter.ObjectToTyped(obj, opts...)
}
