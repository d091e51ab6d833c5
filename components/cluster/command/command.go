// Package command is what the commands of a cluster have in common: the flag --root,
// who may run them, their exit codes, and the form of their answers.
package command

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"hyperkube/internal/layout"
)

// RootFlag adds the flag that moves everything below another directory.
func RootFlag(flags *pflag.FlagSet, root *string) {
	flags.StringVar(root, "root", "", "Keep everything below this directory instead of in the usual places.")
}

// Layout is where everything is below root, or in the usual places when that is empty.
func Layout(root string) layout.Node {
	if root == "" {
		return layout.Default()
	}
	return layout.Under(root)
}

// OnHost is a command of root's over the cluster below --root.
func OnHost(use, short string, run func(ctx context.Context, out io.Writer, l layout.Node) error) *cobra.Command {
	var root string
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := NeedRoot(); err != nil {
				return err
			}
			return run(cmd.Context(), cmd.OutOrStdout(), Layout(root))
		},
	}
	RootFlag(cmd.Flags(), &root)
	return cmd
}

// NeedRoot is an error unless root runs this.
func NeedRoot() error {
	if os.Geteuid() != 0 {
		return PreflightError(errors.New("this must run as root: use sudo"))
	}
	return nil
}
