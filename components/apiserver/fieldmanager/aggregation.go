package fieldmanager

import (
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregationtypes "k8s.io/kube-aggregator/pkg/client/applyconfiguration"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// aggregated adds the types of apiregistration.k8s.io, whose schema is in
// another library than that of all others. It is loaded when it is first
// needed.
type aggregated struct {
	managedfields.TypeConverter
	own func() managedfields.TypeConverter
}

func withAggregation(others managedfields.TypeConverter) aggregated {
	return aggregated{others, sync.OnceValue(func() managedfields.TypeConverter {
		s := runtime.NewScheme()
		// It adds types to a new scheme: there is nothing to fail.
		_ = apiregistrationv1.AddToScheme(s)
		return aggregationtypes.NewTypeConverter(s)
	})}
}

// ObjectToTyped is that of the schema of the object's kind.
func (a aggregated) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	if obj.GetObjectKind().GroupVersionKind().Group == apiregistrationv1.GroupName {
		return a.own().ObjectToTyped(obj, opts...)
	}
	return a.TypeConverter.ObjectToTyped(obj, opts...)
}
