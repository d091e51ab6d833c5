package teardown

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/controlplane"
	"hyperkube/components/cluster/node"
	"hyperkube/components/cluster/pidlock"
	"hyperkube/internal/credentials/kubeconfig"
	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/layout"
)

// newPhaseCommand returns the command `reset phase`, which runs a single phase of reset. The phases are those of
// kubeadm.
func newPhaseCommand() *cobra.Command {
	all := &cobra.Command{Use: "phase", Short: "Run a single phase of the reset workflow", Args: cobra.NoArgs}
	check := command.NewHostCommand("preflight", "Run reset pre-flight checks", func(_ context.Context, _ io.Writer, _ layout.Node) error {
		return command.RequireRoot()
	})
	addIgnoreFlag(check)
	all.AddCommand(
		check,
		command.NewHostCommand("remove-etcd-member", "Remove this machine's member from the etcd cluster", func(ctx context.Context, out io.Writer, l layout.Node) error {
			controlplane.LeaveEtcd(ctx, out, l)
			return nil
		}),
		command.NewHostCommand("cleanup-node", "Run all of reset except for removing the etcd member", func(ctx context.Context, out io.Writer, l layout.Node) error {
			t, err := pidlock.AcquireLifecycle(ctx, l, true)
			if err != nil {
				return err
			}
			err = cleanup(ctx, out, l, nil)
			t.Remove()
			removeEmptyParents(l)
			return err
		}),
	)
	return all
}

// printDryRun prints what reset would stop, revert and delete on this machine, without changing anything.
func printDryRun(out io.Writer, l layout.Node) error {
	printf := func(format string, args ...any) { fmt.Fprintf(out, "[dryrun] "+format+"\n", args...) }
	main, err := pidlock.Holder(l.PIDFile(layout.MainProcess))
	if err != nil {
		return err
	}
	if main != 0 {
		printf("Would stop process %d of this node", main)
	}
	numbers, err := AdditionalNodeNumbers(l)
	if err != nil {
		return err
	}
	for _, i := range numbers {
		printf("Would stop the additional node %d and its pods", i)
	}
	runtime, err := node.RuntimePID(l)
	if err != nil {
		return err
	}
	if runtime != 0 {
		printf("Would stop all pods and the container runtime, process %d", runtime)
	}
	if runtime != 0 && controlplane.MayHavePeers(l) {
		printf("Would remove this machine's member from the etcd cluster")
	}
	for _, process := range append([]string{"nodes"}, journals...) {
		changes, err := hostjournal.Read(l.Journal(process))
		if err != nil {
			return err
		}
		for _, c := range changes {
			printf("Would revert: %s %s", c.Kind, c.Name)
		}
	}
	paths := []string{l.Run}
	if clusterconfig.HasJoined(l) {
		for _, name := range etcFiles {
			paths = append(paths, filepath.Join(l.Etc, name))
		}
	}
	for _, path := range append(paths, dataDirs(l)...) {
		if _, err := os.Lstat(path); err == nil {
			printf("Would delete %s", path)
		}
	}
	target, err := kubeconfig.UserTarget(os.Getenv)
	if err != nil {
		return err
	}
	printf("Would remove the context %s from %s", kubeconfig.DefaultName, target.Path)
	printf("Nothing was changed")
	return nil
}
