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

// LoadConfiguration reads the file of --admission-control-config-file, an AdmissionConfiguration, and the files that
// it refers to, relative to its own directory. It returns the configurations by plugin name; of several for one
// plugin, the first applies. It also accepts the older format without apiVersion and kind, a file that contains only
// the configuration of ImagePolicyWebhook or PodNodeSelector.
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
		if old := decodeLegacyConfiguration(data); untyped && old != nil {
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
			continue // the first entry takes precedence
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

// decodeLegacyConfiguration returns the configurations by plugin name if data has the format without apiVersion and
// kind that precedes AdmissionConfiguration: both ImagePolicyWebhook and PodNodeSelector get the whole file and read
// their own part. Otherwise it returns nil.
func decodeLegacyConfiguration(data []byte) map[string][]byte {
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

// decodeConfiguration decodes data, the configuration of a plugin, and stores the result in the struct to which into
// points. It returns an error for another kind than Configuration, another apiVersion, and unknown fields.
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
