package encryption

import (
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
)

// Validate returns an error if the EncryptionConfiguration file that cfg names cannot be read or is invalid. Unlike
// Load, it does not connect to key management services.
func Validate(cfg Config) error {
	data, err := os.ReadFile(cfg.Path)
	if err != nil {
		return fmt.Errorf("reading encryption configuration: %w", err)
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	obj, err := runtime.Decode(serializer.NewCodecFactory(scheme).UniversalDecoder(), data)
	if err != nil {
		return fmt.Errorf("reading encryption configuration %s: %w", cfg.Path, err)
	}
	config, ok := obj.(*apiserver.EncryptionConfiguration)
	if !ok {
		return fmt.Errorf("reading encryption configuration %s: expected EncryptionConfiguration, got %T", cfg.Path, obj)
	}
	if err := validation.ValidateEncryptionConfiguration(config, cfg.Reload).ToAggregate(); err != nil {
		return fmt.Errorf("encryption configuration %s: %w", cfg.Path, err)
	}
	return nil
}
