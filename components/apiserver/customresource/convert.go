package customresource

import (
	"fmt"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/util/webhook"
)

// converter converts a custom resource to another version of its definition. It may modify and
// return its argument.
type converter func(obj *unstructured.Unstructured, to schema.GroupVersion) (*unstructured.Unstructured, error)

// convertNone is the converter for the conversion strategy None: it only sets apiVersion, in obj itself.
func convertNone(obj *unstructured.Unstructured, to schema.GroupVersion) (*unstructured.Unstructured, error) {
	obj.SetAPIVersion(to.String())
	return obj, nil
}

// webhooks creates converters that call conversion webhooks. The apiextensions library's factory, which caches the
// HTTP clients of all webhooks, is created at first use.
//
// https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definition-versioning/#webhook-conversion
type webhooks struct {
	factory func() (*conversion.CRConverterFactory, error)
}

// newWebhooks returns the factory of converters. resolver resolves Services in the webhook configurations to
// addresses. wrap adds credentials to webhook calls; nil adds none.
func newWebhooks(resolver webhook.ServiceResolver, wrap webhook.AuthenticationInfoResolverWrapper) *webhooks {
	if wrap == nil {
		wrap = func(r webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver { return r }
	}
	return &webhooks{sync.OnceValues(func() (*conversion.CRConverterFactory, error) {
		return conversion.NewCRConverterFactory(resolver, wrap)
	})}
}

// converter returns the converter that calls the conversion webhook of crd. It returns an error if the webhook's
// configuration is invalid.
func (w *webhooks) converter(crd *apiextensionsv1.CustomResourceDefinition) (converter, error) {
	factory, err := w.factory()
	if err != nil {
		return nil, fmt.Errorf("conversion webhook of %s: %w", crd.Name, err)
	}
	_, convert, err := factory.NewConverter(crd)
	if err != nil {
		return nil, fmt.Errorf("conversion webhook of %s: %w", crd.Name, err)
	}
	return func(obj *unstructured.Unstructured, to schema.GroupVersion) (*unstructured.Unstructured, error) {
		out, err := convert.ConvertToVersion(obj, to)
		if err != nil {
			return nil, err
		}
		u, ok := out.(*unstructured.Unstructured)
		if !ok {
			return nil, fmt.Errorf("conversion webhook of %s returned a %T", crd.Name, out)
		}
		return u, nil
	}, nil
}
