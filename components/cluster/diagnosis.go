package cluster

import (
	"github.com/spf13/cobra"

	"hyperkube/components/cluster/check"
)

func newCheck() *cobra.Command { return check.New(startCommand) }
