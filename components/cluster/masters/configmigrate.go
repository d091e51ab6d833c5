package masters

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
	"hyperkube/internal/atomicfile"
	"hyperkube/internal/version"
)

// newConfigMigrate makes the command `config migrate`.
func newConfigMigrate() *cobra.Command {
	var from, to string
	cmd := &cobra.Command{
		Use: "migrate", Short: "Make of a configuration file of kubeadm one that init and join take", Args: cobra.NoArgs,
		Long: "Make of a configuration file of kubeadm, of v1beta3 or v1beta4, one that init and join take.\n" +
			"What means nothing here is left out, and named on standard error.",
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
	cmd.Flags().StringVar(&from, "old-config", "", "Path of the file to be read.")
	cmd.Flags().StringVar(&to, "new-config", "", "Path of the file to be written; empty is standard output.")
	return cmd
}

// oldVersion is the version of kubeadm's configuration that migrate reads besides ours.
const oldVersion = "kubeadm.k8s.io/v1beta3"

// migrate makes of a file one that init and join take, and tells what it leaves out.
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
		made, said, err := migrateOne(fields)
		if err != nil {
			return nil, nil, err
		}
		notes = append(notes, said...)
		if made != nil {
			documents = append(documents, made)
		}
	}
	if len(documents) == 0 {
		return nil, nil, fmt.Errorf("there is nothing of kubeadm.k8s.io in it that means anything here")
	}
	var out bytes.Buffer
	if err := printDocuments(&out, documents); err != nil {
		return nil, nil, err
	}
	return out.Bytes(), notes, nil
}

// migrateOne makes of a document one of ours; nil if it means nothing here.
func migrateOne(fields map[string]any) (made any, notes []string, err error) {
	kind, _ := fields["kind"].(string)
	of, _ := fields["apiVersion"].(string)
	if kind != "InitConfiguration" && kind != "ClusterConfiguration" && kind != "JoinConfiguration" || !strings.HasPrefix(of, "kubeadm.k8s.io/") {
		return nil, []string{fmt.Sprintf("%s of %s is left out: it means nothing here", kind, of)}, nil
	}
	switch of {
	case kubeadmVersion:
	case oldVersion:
		if err := renameOld(fields); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", kind, err)
		}
		fields["apiVersion"] = kubeadmVersion
	default:
		return nil, nil, fmt.Errorf("%s of %s cannot be read: want %s or %s", kind, of, kubeadmVersion, oldVersion)
	}
	leave := func(format string, args ...any) {
		notes = append(notes, kind+": "+fmt.Sprintf(format, args...))
	}
	if registration, ok := fields["nodeRegistration"].(map[string]any); ok && registration["kubeletExtraArgs"] != nil {
		delete(registration, "kubeletExtraArgs")
		leave("nodeRegistration.kubeletExtraArgs is left out: `hyperkube node` has flags of its own")
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
		leave("%s is left out: it means nothing here", strings.Trim(strings.TrimPrefix(err.Error(), "unknown field "), `"`))
	}
	switch c := made.(type) {
	case *initConfiguration:
		if len(c.BootstrapTokens) > 1 {
			c.BootstrapTokens = c.BootstrapTokens[:1]
			leave("bootstrapTokens but the first are left out: make them with `hyperkube token create`")
		}
	case *clusterConfiguration:
		if checkVersion(c.KubernetesVersion) != nil {
			leave("kubernetesVersion was %s and is %s, that of this program", c.KubernetesVersion, version.Get().GitVersion)
			c.KubernetesVersion = version.Get().GitVersion
		}
	}
	return made, notes, nil
}

// renameOld makes of the fields of v1beta3 those of v1beta4: arguments are a list, and the
// times of waiting are together.
//
// https://kubernetes.io/docs/reference/config-api/kubeadm-config.v1beta4/
func renameOld(fields map[string]any) error {
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
				return fmt.Errorf("%s: %s: want a text", place.name, name)
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
