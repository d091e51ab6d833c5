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

// byGroup converts the types of one group by a schema of their own, which is in
// another library than that of all others. It is loaded when it is first needed.
type byGroup struct {
	managedfields.TypeConverter
	group string
	own   func() managedfields.TypeConverter
}

// withLibraries adds the groups that k8s.io/api does not have.
func withLibraries(others managedfields.TypeConverter) managedfields.TypeConverter {
	others = withGroup(others, apiregistrationv1.GroupName, apiregistrationv1.AddToScheme, aggregationtypes.NewTypeConverter)
	return withGroup(others, apiextensionsv1.GroupName, apiextensionsv1.AddToScheme, extensiontypes.NewTypeConverter)
}

func withGroup(others managedfields.TypeConverter, group string, addTo func(*runtime.Scheme) error, converter func(*runtime.Scheme) managedfields.TypeConverter) byGroup {
	return byGroup{others, group, sync.OnceValue(func() managedfields.TypeConverter {
		s := runtime.NewScheme()
		// It adds types to a new scheme: there is nothing to fail.
		_ = addTo(s)
		return converter(s)
	})}
}

// ObjectToTyped is that of the schema of the object's kind.
func (g byGroup) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	if obj.GetObjectKind().GroupVersionKind().Group == g.group {
		return g.own().ObjectToTyped(obj, opts...)
	}
	return g.TypeConverter.ObjectToTyped(obj, opts...)
}
