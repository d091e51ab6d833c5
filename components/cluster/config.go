package cluster

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/controlplane"
	"hyperkube/components/cluster/up"
)

// configShort is the short help of the command `config`.
const configShort = "Print, validate, compare and migrate configuration files of up, init and join"

// newConfig returns the command `config`, whose subcommands print, validate, compare and migrate configuration files.
func newConfig() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: configShort, Args: cobra.NoArgs}
	printing := up.NewConfigPrint()
	printing.AddCommand(controlplane.NewConfigDefaults()...)
	cmd.AddCommand(printing, newConfigValidate(), up.NewConfigDiff())
	cmd.AddCommand(controlplane.NewConfig()...)
	return cmd
}

// newConfigValidate returns the command `config validate`.
func newConfigValidate() *cobra.Command {
	var root, file string
	cmd := &cobra.Command{
		Use: "validate", Short: "Read a configuration file of up, init or join and report errors", Args: cobra.NoArgs,
		Long: "Read a configuration file and report errors. Without --config, the files that up reads by default are validated.\n" +
			"A file with a document of kubeadm, but without an UpConfiguration, is validated as a file of init or join.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := validateConfig(root, file); err != nil {
				return command.ConfigError(err)
			}
			fmt.Fprintln(cmd.OutOrStdout(), "ok")
			return nil
		},
	}
	command.RootFlag(cmd.Flags(), &root)
	cmd.Flags().StringVar(&file, "config", "", "Path to a configuration file. Defaults to /etc/hyperkube/config.yaml.")
	return cmd
}

// validateConfig validates a configuration file of `up`, `init` or `join`, which it distinguishes by the documents in
// the file. If file is "", it validates the default files of `up` below root.
func validateConfig(root, file string) error {
	if file == "" {
		return up.ValidateConfig(command.Layout(root), "")
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	if !up.IsConfig(data) {
		if isKubeadm, err := controlplane.ValidateConfig(data); isKubeadm && err == nil || err != nil {
			return prefixError("--config "+file, err)
		}
	}
	return up.ValidateConfig(command.Layout(root), file)
}

// prefixError returns err with a prefix; nil if err is nil.
func prefixError(prefix string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", prefix, err)
}
