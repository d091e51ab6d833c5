package admission

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"sigs.k8s.io/yaml"
)

// LoadConfiguration reads --admission-control-config-file, an
// AdmissionConfiguration, and the files that it names, relative to its own
// place. It returns the configurations of plugins by their names. Files that
// are the whole configuration of ImagePolicyWebhook or of PodNodeSelector, from
// before there were AdmissionConfigurations, are taken as such.
//
// https://kubernetes.io/docs/reference/config-api/apiserver-config.v1/
func LoadConfiguration(path string) (map[string][]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("unable to read admission control configuration from %q [%w]", path, err)
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	obj, err := runtime.Decode(serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder(), data)
	if err != nil {
		untyped := runtime.IsMissingVersion(err) || runtime.IsMissingKind(err) || runtime.IsNotRegisteredError(err)
		if old := beforeVersions(data); untyped && old != nil {
			return old, nil
		}
		return nil, fmt.Errorf("admission control configuration %s: %w", path, err)
	}
	cfg, ok := obj.(*apiserver.AdmissionConfiguration)
	if !ok {
		return nil, fmt.Errorf("admission control configuration %s: unexpected type: %T", path, obj)
	}
	out := map[string][]byte{}
	for _, p := range cfg.Plugins {
		if _, ok := out[p.Name]; ok {
			continue // the first counts
		}
		switch {
		case p.Configuration != nil:
			out[p.Name] = p.Configuration.Raw
		case p.Path != "":
			file := p.Path
			if !filepath.IsAbs(file) {
				file = filepath.Join(filepath.Dir(path), file)
			}
			if out[p.Name], err = os.ReadFile(file); err != nil {
				return nil, fmt.Errorf("configuration of admission plugin %s: %w", p.Name, err)
			}
		}
	}
	return out, nil
}

// beforeVersions takes a file that is the configuration of the plugins that had
// one before there were versions; nil if it is none.
func beforeVersions(data []byte) map[string][]byte {
	var content map[string]any
	if yaml.Unmarshal(data, &content) != nil {
		return nil
	}
	_, images := content["imagePolicy"]
	_, selectors := content["podNodeSelectorPluginConfig"]
	if !images && !selectors {
		return nil
	}
	return map[string][]byte{"ImagePolicyWebhook": data, "PodNodeSelector": data}
}

// decodeConfiguration reads the configuration of a plugin, which must be of
// kind Configuration in apiVersion and have no other fields than into has.
func decodeConfiguration(data []byte, apiVersion string, into any) error {
	var kind struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := yaml.Unmarshal(data, &kind); err != nil {
		return err
	}
	switch {
	case kind.Kind == "":
		return errors.New("Object 'Kind' is missing") //nolint:staticcheck // users know it so
	case kind.APIVersion == "":
		return errors.New("Object 'apiVersion' is missing") //nolint:staticcheck // users know it so
	case kind.APIVersion != apiVersion || kind.Kind != "Configuration":
		return fmt.Errorf("no kind %q is registered for version %q", kind.Kind, kind.APIVersion)
	}
	return yaml.UnmarshalStrict(data, into)
}
