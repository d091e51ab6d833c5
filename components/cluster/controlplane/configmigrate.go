package controlplane

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/kubeadmapi"
	"hyperkube/internal/base/version"
	"hyperkube/internal/host/atomicfile"
)

// newConfigMigrate returns the command `config migrate`, which converts a kubeadm configuration file to one that init
// and join accept.
func newConfigMigrate() *cobra.Command {
	var from, to string
	cmd := &cobra.Command{
		Use: "migrate", Short: "Convert a kubeadm configuration file to one that init and join accept", Args: cobra.NoArgs,
		Long: "Convert a kubeadm configuration file of v1beta3 or v1beta4 to one that init and join accept.\n" +
			"Unsupported settings are left out and printed to standard error.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if from == "" {
				return command.ConfigError(errors.New("--old-config is required"))
			}
			data, err := os.ReadFile(from)
			if err != nil {
				return command.ConfigError(fmt.Errorf("--old-config: %w", err))
			}
			text, notes, err := migrate(data)
			if err != nil {
				return command.ConfigError(fmt.Errorf("--old-config %s: %w", from, err))
			}
			for _, note := range notes {
				fmt.Fprintln(cmd.ErrOrStderr(), note)
			}
			if to == "" {
				_, err := cmd.OutOrStdout().Write(text)
				return err
			}
			if err := atomicfile.Write(atomicfile.File{Path: to, Data: text, Mode: 0o600}); err != nil {
				return fmt.Errorf("--new-config: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&from, "old-config", "", "Path to the kubeadm configuration file to convert.")
	cmd.Flags().StringVar(&to, "new-config", "", "Path to the resulting configuration file. If empty, it is printed to standard output.")
	return cmd
}

// oldVersion is the older version of the kubeadm configuration API that migrate also reads.
const oldVersion = "kubeadm.k8s.io/v1beta3"

// migrate converts data, the content of a kubeadm configuration file, to a file that init and join accept. The notes
// name the settings that are left out because they are not supported. It returns an error if no document is
// supported.
func migrate(data []byte) (text []byte, notes []string, err error) {
	var documents []any
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		doc, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, nil, fmt.Errorf("reading YAML: %w", err)
		}
		var fields map[string]any
		if err := yaml.Unmarshal(doc, &fields); err != nil {
			return nil, nil, fmt.Errorf("reading YAML: %w", err)
		}
		if len(fields) == 0 {
			continue
		}
		made, skipped, err := migrateDocument(fields)
		if err != nil {
			return nil, nil, err
		}
		notes = append(notes, skipped...)
		if made != nil {
			documents = append(documents, made)
		}
	}
	if len(documents) == 0 {
		return nil, nil, fmt.Errorf("no supported document of kubeadm.k8s.io found")
	}
	var out bytes.Buffer
	if err := printDocuments(&out, documents); err != nil {
		return nil, nil, err
	}
	return out.Bytes(), notes, nil
}

// migrateDocument converts one document. It returns nil if the kind is not supported.
func migrateDocument(fields map[string]any) (made any, notes []string, err error) {
	kind, _ := fields["kind"].(string)
	apiVersion, _ := fields["apiVersion"].(string)
	if kind != "InitConfiguration" && kind != "ClusterConfiguration" && kind != "JoinConfiguration" || !strings.HasPrefix(apiVersion, "kubeadm.k8s.io/") {
		return nil, []string{fmt.Sprintf("%s of %s is left out: not supported", kind, apiVersion)}, nil
	}
	switch apiVersion {
	case kubeadmapi.Version:
	case oldVersion:
		if err := convertV1beta3(fields); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", kind, err)
		}
		fields["apiVersion"] = kubeadmapi.Version
	default:
		return nil, nil, fmt.Errorf("%s of %s is not supported: expected %s or %s", kind, apiVersion, kubeadmapi.Version, oldVersion)
	}
	skip := func(format string, args ...any) {
		notes = append(notes, kind+": "+fmt.Sprintf(format, args...))
	}
	if registration, ok := fields["nodeRegistration"].(map[string]any); ok && registration["kubeletExtraArgs"] != nil {
		list, _ := registration["kubeletExtraArgs"].([]any)
		kept := slices.DeleteFunc(slices.Clone(list), func(item any) bool {
			arg, _ := item.(map[string]any)
			return arg["name"] != "cloud-provider"
		})
		if registration["kubeletExtraArgs"] = kept; len(kept) == 0 {
			delete(registration, "kubeletExtraArgs")
		}
		if len(kept) < len(list) {
			skip("nodeRegistration.kubeletExtraArgs: arguments other than cloud-provider are left out: configure the kubelet with the flags of `hyperkube node`")
		}
	}
	switch kind {
	case "InitConfiguration":
		made = &initConfiguration{}
	case "ClusterConfiguration":
		made = &clusterConfiguration{}
	case "JoinConfiguration":
		made = &joinConfiguration{}
	}
	encoded, err := yaml.Marshal(fields)
	if err == nil {
		encoded, err = yaml.YAMLToJSON(encoded)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", kind, err)
	}
	unknown, err := json.UnmarshalStrict(encoded, made)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", kind, err)
	}
	for _, err := range unknown {
		skip("%s is left out: not supported", strings.Trim(strings.TrimPrefix(err.Error(), "unknown field "), `"`))
	}
	switch c := made.(type) {
	case *initConfiguration:
		if len(c.BootstrapTokens) > 1 {
			c.BootstrapTokens = c.BootstrapTokens[:1]
			skip("all bootstrapTokens except the first are left out: create them with `hyperkube token create`")
		}
	case *clusterConfiguration:
		if kubeadmapi.CheckVersion(c.KubernetesVersion) != nil {
			skip("kubernetesVersion is changed from %s to %s, the version of this program", c.KubernetesVersion, version.Get().GitVersion)
			c.KubernetesVersion = version.Get().GitVersion
		}
	}
	return made, notes, nil
}

// convertV1beta3 converts the fields of v1beta3 to v1beta4: extra arguments become lists, and timeouts
// move to one structure.
//
// https://kubernetes.io/docs/reference/config-api/kubeadm-config.v1beta4/
func convertV1beta3(fields map[string]any) error {
	etcd, _ := fields["etcd"].(map[string]any)
	for _, place := range []struct {
		in   any
		name string
	}{
		{fields["apiServer"], "extraArgs"}, {fields["controllerManager"], "extraArgs"}, {fields["scheduler"], "extraArgs"}, {etcd["local"], "extraArgs"},
		{fields["nodeRegistration"], "kubeletExtraArgs"},
	} {
		in, _ := place.in.(map[string]any)
		args, ok := in[place.name].(map[string]any)
		if !ok {
			continue
		}
		var list []any
		for name, value := range args {
			text, ok := value.(string)
			if !ok {
				return fmt.Errorf("%s: %s: expected a string", place.name, name)
			}
			list = append(list, map[string]any{"name": name, "value": text})
		}
		slices.SortFunc(list, func(a, b any) int {
			return strings.Compare(a.(map[string]any)["name"].(string), b.(map[string]any)["name"].(string))
		})
		in[place.name] = list
	}
	if discovery, ok := fields["discovery"].(map[string]any); ok && discovery["timeout"] != nil {
		fields["timeouts"] = map[string]any{"discovery": discovery["timeout"]}
		delete(discovery, "timeout")
	}
	return nil
}
