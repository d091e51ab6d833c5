package up

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/pmezard/go-difflib/difflib"
	"github.com/spf13/cobra"

	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/pidlock"
	"hyperkube/components/cluster/upconfig"
	"hyperkube/internal/base/strictyaml"
	"hyperkube/internal/host/layout"
)

// NewConfigPrint returns the command `config print`, which prints the effective configuration of `up` as YAML
// documents, or with --defaults a file with all keys. Only the latter works without root.
func NewConfigPrint() *cobra.Command {
	o := &upOptions{}
	flags := newCommand(o).Flags()
	var defaults bool
	cmd := &cobra.Command{
		Use: "print", Short: "Print the configuration that the next up uses, or all keys with their defaults", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if defaults {
				return upconfig.WriteDefaults(cmd.OutOrStdout(), newFlags())
			}
			if err := command.RequireRoot(); err != nil {
				return err
			}
			if _, err := o.loadSettings(flags, command.Layout(o.root)); err != nil {
				return command.ConfigError(err)
			}
			text, err := o.settings.Text(flags, false)
			if err == nil {
				_, err = io.WriteString(cmd.OutOrStdout(), text)
			}
			return err
		},
	}
	cmd.Flags().AddFlag(flags.Lookup("root"))
	cmd.Flags().AddFlag(flags.Lookup("config"))
	cmd.Flags().BoolVar(&defaults, "defaults", false, "Print a configuration file with all keys and their defaults.")
	return cmd
}

// NewConfigDiff returns the command `config diff`. It fails if no cluster is running, and with exit code 1 if the
// configurations differ.
func NewConfigDiff() *cobra.Command {
	o := &upOptions{}
	flags := newCommand(o).Flags()
	cmd := &cobra.Command{
		Use: "diff", Short: "Compare the configuration of the running cluster with the one that the next up uses", Args: cobra.NoArgs,
		Long: "Compare the configuration of the running cluster with the one that the next up uses.\n" +
			"The exit code is 0 if they are the same, and 1 if the next up replaces the running process.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := command.RequireRoot(); err != nil {
				return err
			}
			l := command.Layout(o.root)
			if _, err := o.loadSettings(flags, l); err != nil {
				return command.ConfigError(err)
			}
			if pid, err := pidlock.Holder(l.PIDFile(layout.MainProcess)); err != nil || pid == 0 {
				return errors.Join(err, errors.New("hyperkube is not running; start it with `hyperkube up`"))
			}
			running, err := upconfig.LoadRunning(l)
			if err != nil {
				return err
			}
			text, err := o.settings.Text(flags, true)
			if err != nil || text == running.Text {
				return err
			}
			if err := writeDiff(cmd.OutOrStdout(), running.Text, text); err != nil {
				return err
			}
			return command.WithCode(errors.New("the configuration has changed; run `hyperkube up` to apply it"), command.ExitGeneral)
		},
	}
	cmd.Flags().AddFlag(flags.Lookup("root"))
	cmd.Flags().AddFlag(flags.Lookup("config"))
	return cmd
}

// writeDiff writes the difference between two configurations as a unified diff. It writes nothing if they are equal.
func writeDiff(w io.Writer, running, next string) error {
	err := difflib.WriteUnifiedDiff(w, difflib.UnifiedDiff{
		A: difflib.SplitLines(running), B: difflib.SplitLines(next), FromFile: "running", ToFile: "next up", Context: 3,
	})
	if err != nil {
		return fmt.Errorf("printing diff: %w", err)
	}
	return nil
}

// ValidateConfig reports all errors in the configuration file of `up` and its drop-in files. If file is "", it reads
// the default file, which may be missing.
func ValidateConfig(l layout.Node, file string) error {
	o := &upOptions{}
	flags := newCommand(o).Flags()
	o.file = file
	return o.readSettings(flags, l)
}

// IsConfig reports whether data contains an UpConfiguration document. It returns false for invalid YAML.
func IsConfig(data []byte) bool {
	docs, err := strictyaml.Parse("", data)
	return err == nil && slices.ContainsFunc(docs, func(doc *strictyaml.Node) bool { return doc.Text("kind") == upconfig.Kind })
}

// HasConfigChanged reports whether the next `up` would replace the running process because the configuration has
// changed. The cluster must be running.
func HasConfigChanged(l layout.Node) (bool, error) {
	o := &upOptions{}
	flags := newCommand(o).Flags()
	if _, err := o.loadSettings(flags, l); err != nil {
		return false, err
	}
	changed, err := o.changedKinds(flags, l)
	return len(changed) > 0, err
}
