package cluster

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"hyperkube/components/cluster/command"
	"hyperkube/internal/base/version"
)

// newVersion returns the command `version`, which prints the version of this program.
func newVersion() *cobra.Command {
	var form command.Output
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			info := version.Get()
			return form.Write(cmd.OutOrStdout(), info, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "hyperkube %s (%s, %s)\n", info.GitVersion, info.GoVersion, info.Platform)
				return err
			})
		},
	}
	form.Flag(cmd)
	return cmd
}
