package etcd

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// readConfigFile reads a configuration file of etcd: a YAML document whose keys are names of flags. The TLS files are
// in the sections client-transport-security and peer-transport-security. Keys without a value keep the default. It
// returns an error for a key that is not a flag of the command, unless its value is false or empty, so that no
// setting is silently ignored. See https://etcd.io/docs/v3.6/op-guide/configuration/#configuration-file.
func readConfigFile(file string) (*options, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration file: %w", err)
	}
	return parseConfigFile(file, data)
}

// parseConfigFile parses data, the content of an etcd configuration file, as described for readConfigFile. file is
// its path, which is only used in errors.
func parseConfigFile(file string, data []byte) (*options, error) {
	// As floats, large numbers would lose digits.
	var settings map[string]any
	if err := yaml.UnmarshalStrict(data, &settings, func(d *json.Decoder) *json.Decoder { d.UseNumber(); return d }); err != nil {
		return nil, fmt.Errorf("reading the configuration file %s: %w", file, err)
	}
	var o options
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.addFlags(flags)
	set := func(key string, value any) error {
		if flags.Lookup(key) == nil {
			if value == "" || value == false {
				return nil // the default of etcd
			}
			return fmt.Errorf("configuration file %s: setting %q is not supported", file, key)
		}
		if err := flags.Set(key, fmt.Sprint(value)); err != nil {
			return fmt.Errorf("configuration file %s: %w", file, err)
		}
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		value := settings[key]
		prefix, section := sections[key]
		if value == nil {
			continue // an empty value selects the default
		}
		if !section {
			if err := set(key, value); err != nil {
				return nil, err
			}
			continue
		}
		files, ok := value.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("configuration file %s: %s is not a section", file, key)
		}
		for _, name := range slices.Sorted(maps.Keys(files)) {
			if files[name] == nil {
				continue
			}
			if err := set(prefix+strings.TrimPrefix(name, prefix), files[name]); err != nil {
				return nil, err
			}
		}
	}
	return &o, nil
}

// sections maps the name of each section of a configuration file to the prefix of the flags that
// its keys stand for.
var sections = map[string]string{"client-transport-security": "", "peer-transport-security": "peer-"}
