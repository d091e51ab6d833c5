package cluster

import (
	"context"

	"github.com/spf13/cobra"

	"hyperkube/components/cluster/check"
	"hyperkube/components/cluster/supportbundle"
	"hyperkube/internal/host/layout"
)

func newCheck() *cobra.Command { return check.New(startCommand) }

func newSupportBundle() *cobra.Command {
	return supportbundle.New(
		func(ctx context.Context, l layout.Node) any { return check.Run(ctx, check.Host(l, startCommand(l))) },
		func(ctx context.Context, l layout.Node) any { return status(ctx, l) },
	)
}
