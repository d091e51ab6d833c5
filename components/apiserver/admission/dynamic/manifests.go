package dynamic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/admission/initializer"
	policyconfig "k8s.io/apiserver/pkg/admission/plugin/policy/config"
	policyloader "k8s.io/apiserver/pkg/admission/plugin/policy/manifest/loader"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	webhookconfig "k8s.io/apiserver/pkg/admission/plugin/webhook/config"
	webhookloader "k8s.io/apiserver/pkg/admission/plugin/webhook/manifest/loader"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"

	"hyperkube/internal/api"
	"hyperkube/internal/api/admissionregistration"
)

// manifests loads webhook configurations and admission policies from files in a directory of this machine, in
// addition to those of the API. They are in effect from the first request on, and clients cannot delete them through
// the API, which also reserves their names. The admission plugins watch the directories themselves.
//
// https://kep.k8s.io/5793
type manifests struct {
	file func(plugin string) io.Reader
	// find returns the resource with the plural name in the group admissionregistration.k8s.io, or
	// nil if it is not served.
	find    func(plural string) *api.Resource
	decoder runtime.Decoder
}

// newManifests returns a manifests that reads the plugins' configurations with file and finds resources with find.
// Unknown fields in manifests are errors.
func newManifests(file func(plugin string) io.Reader, find func(plural string) *api.Resource) (*manifests, error) {
	scheme := runtime.NewScheme()
	if err := admissionv1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	scheme.AddUnversionedTypes(metav1.SchemeGroupVersion, &metav1.List{}, &metav1.Status{})
	return &manifests{file, find, serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()}, nil
}

// directory returns the manifest directory in the configuration of a plugin, or "" if there is
// none. It returns an error if the configuration or a manifest is invalid: the plugins load the
// manifests later, but the server should fail at startup.
func (m *manifests) directory(plugin string) (string, error) {
	file := m.file(plugin)
	if file == nil {
		return "", nil
	}
	var dir, what string
	var load func(dir string) error
	loaders := m.loaders()
	switch plugin {
	case mutatingwebhook.PluginName, validatingwebhook.PluginName:
		c, err := webhookconfig.LoadConfig(file)
		if err != nil {
			return "", err
		}
		dir, what = c.StaticManifestsDir, "webhook"
		load = func(dir string) error { _, _, err := loaders.LoadValidatingWebhookManifests(dir); return err }
		if plugin == mutatingwebhook.PluginName {
			load = func(dir string) error { _, _, err := loaders.LoadMutatingWebhookManifests(dir); return err }
		}
	case mutatingpolicy.PluginName:
		c, err := policyconfig.LoadMutatingConfig(file)
		if err != nil {
			return "", err
		}
		dir, what = c.StaticManifestsDir, "policy"
		load = func(dir string) error { _, _, _, err := loaders.LoadMutatingPolicyManifests(dir); return err }
	case validatingpolicy.PluginName:
		c, err := policyconfig.LoadValidatingConfig(file)
		if err != nil {
			return "", err
		}
		dir, what = c.StaticManifestsDir, "policy"
		load = func(dir string) error { _, _, _, err := loaders.LoadValidatingPolicyManifests(dir); return err }
	}
	if dir == "" {
		return "", nil
	}
	if err := load(dir); err != nil {
		return "", fmt.Errorf("failed to load static %s manifests from %q: %w", what, dir, err)
	}
	return dir, nil
}

// loaders returns the functions with which the plugins load manifests from a directory.
func (m *manifests) loaders() *initializer.ManifestLoaders {
	return &initializer.ManifestLoaders{
		LoadValidatingWebhookManifests: func(dir string) ([]*admissionv1.ValidatingWebhookConfiguration, string, error) {
			return webhookloader.LoadManifests(dir, m.decoder, manifestItems(m, "validatingwebhookconfigurations", nil, func(l *admissionv1.ValidatingWebhookConfigurationList) []admissionv1.ValidatingWebhookConfiguration {
				return l.Items
			}))
		},
		LoadMutatingWebhookManifests: func(dir string) ([]*admissionv1.MutatingWebhookConfiguration, string, error) {
			return webhookloader.LoadManifests(dir, m.decoder, manifestItems(m, "mutatingwebhookconfigurations", nil, func(l *admissionv1.MutatingWebhookConfigurationList) []admissionv1.MutatingWebhookConfiguration {
				return l.Items
			}))
		},
		LoadValidatingPolicyManifests: func(dir string) ([]*admissionv1.ValidatingAdmissionPolicy, []*admissionv1.ValidatingAdmissionPolicyBinding, string, error) {
			return policyloader.LoadPolicyManifests(dir, m.decoder,
				manifestItems(m, "validatingadmissionpolicies", policyloader.ErrUnrecognizedType, func(l *admissionv1.ValidatingAdmissionPolicyList) []admissionv1.ValidatingAdmissionPolicy {
					return l.Items
				}),
				manifestItems(m, "validatingadmissionpolicybindings", policyloader.ErrUnrecognizedType, func(l *admissionv1.ValidatingAdmissionPolicyBindingList) []admissionv1.ValidatingAdmissionPolicyBinding {
					return l.Items
				}),
				func(b *admissionv1.ValidatingAdmissionPolicyBinding) string { return b.Spec.PolicyName })
		},
		LoadMutatingPolicyManifests: func(dir string) ([]*admissionv1.MutatingAdmissionPolicy, []*admissionv1.MutatingAdmissionPolicyBinding, string, error) {
			return policyloader.LoadPolicyManifests(dir, m.decoder,
				manifestItems(m, "mutatingadmissionpolicies", policyloader.ErrUnrecognizedType, func(l *admissionv1.MutatingAdmissionPolicyList) []admissionv1.MutatingAdmissionPolicy { return l.Items }),
				manifestItems(m, "mutatingadmissionpolicybindings", policyloader.ErrUnrecognizedType, func(l *admissionv1.MutatingAdmissionPolicyBindingList) []admissionv1.MutatingAdmissionPolicyBinding {
					return l.Items
				}),
				func(b *admissionv1.MutatingAdmissionPolicyBinding) string { return b.Spec.PolicyName })
		},
	}
}

// manifestItems returns a function that extracts the objects of one kind from a decoded manifest, which is an object
// or a list, and defaults and validates them as the API does. plural is the resource of the kind, items returns the
// items of a list. For a manifest of another kind the function returns the error other, or a generic error if other
// is nil.
func manifestItems[T, L any, P interface {
	*T
	api.Object
}, PL interface {
	*L
	runtime.Object
}](m *manifests, plural string, other error, items func(PL) []T) func(runtime.Object) ([]P, error) {
	return func(obj runtime.Object) ([]P, error) {
		var out []P
		switch x := obj.(type) {
		case P:
			out = []P{x}
		case PL:
			all := items(x)
			for i := range all {
				out = append(out, &all[i])
			}
		default:
			if other == nil {
				other = fmt.Errorf("unsupported resource type %T", obj)
			}
			return nil, other
		}
		for _, one := range out {
			if err := m.defaultAndValidate(plural, one); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
}

// defaultAndValidate sets the defaults of an object from a manifest and validates it, except that its name may have
// the reserved suffix of static manifests. plural is the resource of its kind. It returns an error if that is not
// served.
func (m *manifests) defaultAndValidate(plural string, obj api.Object) error {
	res := m.find(plural)
	if res == nil {
		return errors.New("resource " + plural + " is not served")
	}
	res.Default(obj)
	// The API rejects names with the suffix of static manifests.
	named := obj.DeepCopyObject().(api.Object)
	named.SetName(strings.TrimSuffix(named.GetName(), admissionregistration.StaticSuffix))
	if errs := res.Validate(context.Background(), named); len(errs) > 0 {
		return fmt.Errorf("%s %q: %w", res.Kind, obj.GetName(), errs.ToAggregate())
	}
	return nil
}
