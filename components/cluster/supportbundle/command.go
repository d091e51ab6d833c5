package supportbundle

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"hyperkube/components/cluster/command"
	"hyperkube/internal/host/layout"
)

// New returns the command `support-bundle`. check and status return the results of the commands of these names, which
// are encoded as JSON.
func New(check, status func(ctx context.Context, l layout.Node) any) *cobra.Command {
	var root string
	cmd := &cobra.Command{
		Use:   "support-bundle FILE",
		Short: "Write logs, objects and the state of the machine to an archive for bug reports",
		Long: "Write logs, objects without Secrets, events, packet filter rules, the state of the machine, configuration files and\n" +
			"profiles to FILE, a tar archive compressed with gzip, which must not exist. It works without an API server.\n\n" +
			"Credentials are replaced by REDACTED: the values of Secrets wherever they occur, tokens, passwords and private keys.\n" +
			"Check the archive before you publish it: it contains names of hosts, users and objects, and the output of programs.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := command.RequireRoot(); err != nil {
				return err
			}
			l := command.Layout(root)
			failed, err := Write(cmd.Context(), Config{
				Layout: l,
				Check:  func(ctx context.Context) any { return check(ctx, l) },
				Status: func(ctx context.Context) any { return status(ctx, l) },
			}, args[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "wrote %s\n", args[0])
			if len(failed) > 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "not complete: %s; errors.txt in the archive contains the reasons\n", strings.Join(failed, ", "))
			}
			return nil
		},
	}
	command.RootFlag(cmd.Flags(), &root)
	return cmd
}
