package cluster

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"hyperkube/internal/version"
)

func newVersion() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Tell the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			info := version.Get()
			if output == "json" {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(info)
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "hyperkube %s (%s, %s)\n", info.GitVersion, info.GoVersion, info.Platform)
			return err
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "Output format: json, or text when empty.")
	return cmd
}
