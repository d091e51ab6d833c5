package former

import (
	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"

	"hyperkube/internal/api"
)

// apiextensionsVersions returns the reader of CustomResourceDefinitions in v1beta1, where schema,
// columns and subresources could be specified once for all versions. It uses the conversion
// functions of the apiextensions library.
func apiextensionsVersions() []version {
	return []version{
		{"CustomResourceDefinition", apiextensionsv1.SchemeGroupVersion, apiextensionsv1beta1.SchemeGroupVersion, func(decode func(into runtime.Object) error, into api.Object) error {
			old, between := &apiextensionsv1beta1.CustomResourceDefinition{}, &internal.CustomResourceDefinition{}
			if err := decode(old); err != nil {
				return err
			}
			apiextensionsv1beta1.SetObjectDefaults_CustomResourceDefinition(old)
			if err := apiextensionsv1beta1.Convert_v1beta1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(old, between, nil); err != nil {
				return err
			}
			return apiextensionsv1.Convert_apiextensions_CustomResourceDefinition_To_v1_CustomResourceDefinition(between, into.(*apiextensionsv1.CustomResourceDefinition), nil)
		}},
	}
}
