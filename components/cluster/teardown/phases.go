package teardown

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/identity"
	"hyperkube/components/cluster/masters"
	"hyperkube/components/cluster/node"
	"hyperkube/components/cluster/pidlock"
	"hyperkube/internal/hostchange"
	"hyperkube/internal/kubeconfig"
	"hyperkube/internal/layout"
)

// newPhases makes the command `reset phase`, with kubeadm's names.
func newPhases() *cobra.Command {
	all := &cobra.Command{Use: "phase", Short: "Run one part of reset alone", Args: cobra.NoArgs}
	check := command.OnHost("preflight", "Look whether reset can be run", func(_ context.Context, _ io.Writer, _ layout.Node) error {
		return command.NeedRoot()
	})
	ignoreFlag(check)
	all.AddCommand(
		check,
		command.OnHost("remove-etcd-member", "Take this machine's member out of the cluster's etcd", func(ctx context.Context, out io.Writer, l layout.Node) error {
			masters.Leave(ctx, out, l)
			return nil
		}),
		command.OnHost("cleanup-node", "Reset, but for the member of etcd, which stays one", func(ctx context.Context, out io.Writer, l layout.Node) error {
			t, err := pidlock.TakeTurn(ctx, l, true)
			if err != nil {
				return err
			}
			err = cleanup(ctx, out, l, nil)
			t.Remove()
			removeEmpty(l)
			return err
		}),
	)
	return all
}

// rehearse tells what reset would do.
func rehearse(out io.Writer, l layout.Node) error {
	say := func(format string, args ...any) { fmt.Fprintf(out, "[dryrun] "+format+"\n", args...) }
	main, err := pidlock.Holder(l.PIDFile(layout.MainProcess))
	if err != nil {
		return err
	}
	if main != 0 {
		say("Would stop the process %d of this node", main)
	}
	numbers, err := FurtherNumbers(l)
	if err != nil {
		return err
	}
	for _, i := range numbers {
		say("Would take away the further node %d with its pods", i)
	}
	runtime, err := node.RuntimePID(l)
	if err != nil {
		return err
	}
	if runtime != 0 {
		say("Would stop all pods, and the container runtime, process %d", runtime)
	}
	if runtime != 0 && masters.Shares(l) {
		say("Would take this machine's member out of the cluster's etcd")
	}
	for _, process := range append([]string{"nodes"}, journals...) {
		changes, err := hostchange.Read(l.Journal(process))
		if err != nil {
			return err
		}
		for _, c := range changes {
			say("Would take back: %s %s", c.Kind, c.Name)
		}
	}
	paths := []string{l.Run}
	if identity.HasJoined(l) {
		for _, name := range ofEtc {
			paths = append(paths, filepath.Join(l.Etc, name))
		}
	}
	for _, path := range append(paths, dataOf(l)...) {
		if _, err := os.Lstat(path); err == nil {
			say("Would delete %s", path)
		}
	}
	target, err := kubeconfig.UserTarget(os.Getenv)
	if err != nil {
		return err
	}
	say("Would remove the context %s from %s", kubeconfig.DefaultName, target.Path)
	say("Nothing was changed")
	return nil
}
