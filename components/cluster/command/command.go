// Package command contains what the commands of a cluster share: the flag --root, the check for
// root privileges, exit codes and output formats.
package command

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"hyperkube/internal/host/layout"
)

// RootFlag adds the flag --root, which moves all files of the cluster below another directory.
func RootFlag(flags *pflag.FlagSet, root *string) {
	flags.StringVar(root, "root", "", "Directory for all files of the cluster, instead of the default paths.")
}

// Layout returns the paths of the files of a node below root, the value of the flag --root. If root is empty, it
// returns the default paths.
func Layout(root string) layout.Node {
	if root == "" {
		return layout.Default()
	}
	return layout.Under(root)
}

// NewHostCommand returns a command without arguments that must run as root. It adds the flag --root and calls run with
// the paths below that directory.
func NewHostCommand(use, short string, run func(ctx context.Context, out io.Writer, l layout.Node) error) *cobra.Command {
	var root string
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := RequireRoot(); err != nil {
				return err
			}
			return run(cmd.Context(), cmd.OutOrStdout(), Layout(root))
		},
	}
	RootFlag(cmd.Flags(), &root)
	return cmd
}

// RequireRoot returns an error if the process does not run as root.
func RequireRoot() error {
	if os.Geteuid() != 0 {
		return PreflightError(errors.New("this command must be run as root; use sudo"))
	}
	return nil
}
