package tracing

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	tracingapi "k8s.io/component-base/tracing/api/v1"

	"hyperkube/internal/base/strictyaml"
)

// Kind is the kind of the document that configures traces.
const Kind = "TracingConfiguration"

// Versions returns the API versions that a document may have, the preferred one first. The fields of all are the same.
func Versions() []string {
	return []string{"apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1", "apiserver.config.k8s.io/v1alpha1"}
}

// FileFlag is the name of the flag with the path of a file with a TracingConfiguration.
const FileFlag = "tracing-config-file"

// AddFileFlag adds the flag FileFlag to set, which stores the path in path.
func AddFileFlag(set *pflag.FlagSet, path *string) {
	set.StringVar(path, FileFlag, "", "File with the TracingConfiguration. If empty, no traces are exported.")
}

// ReadFile reads the TracingConfiguration in the file of the flag. It returns nil if path is empty. Unknown fields and
// invalid values are errors.
func ReadFile(path string) (*tracingapi.TracingConfiguration, error) {
	if path == "" {
		return nil, nil
	}
	cfg, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", FileFlag, err)
	}
	return cfg, nil
}

// readFile reads and validates the file at path.
func readFile(path string) (*tracingapi.TracingConfiguration, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration of traces: %w", err)
	}
	docs, err := strictyaml.Parse(path, data)
	if err != nil {
		return nil, err
	}
	if len(docs) != 1 {
		return nil, fmt.Errorf("%s: expected one document of kind %s, found %d", path, Kind, len(docs))
	}
	doc := docs[0]
	if kind, version := doc.Text("kind"), doc.Text("apiVersion"); kind != Kind || !slices.Contains(Versions(), version) {
		return nil, fmt.Errorf("%s: kind %q of apiVersion %q is not supported: expected %s of %s", doc.Position(), kind, version, Kind, strings.Join(Versions(), ", "))
	}
	cfg, errs := strictyaml.Decode[apiserverv1.TracingConfiguration](doc)
	if err := strictyaml.Join(errs); err != nil {
		return nil, err
	}
	if err := Validate(&cfg.TracingConfiguration); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &cfg.TracingConfiguration, nil
}

// Validate returns an error for invalid values of cfg, which may be nil.
func Validate(cfg *tracingapi.TracingConfiguration) error {
	return tracingapi.ValidateTracingConfiguration(cfg, nil, field.NewPath("tracing")).ToAggregate()
}
