package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"hyperkube/components/runtime/runtimeclient"
	"hyperkube/internal/hostchange"
	"hyperkube/internal/kubeconfig"
	"hyperkube/internal/layout"
)

// mainProcess is the name of the process that `up` starts, or that `node` is.
const mainProcess = "hyperkube"

// journals are the processes that change the host: kubelet and proxy, in one
// process or apart, and the runtime.
var journals = []string{"node", "runtime", "cni"}

// stopTimeout bounds how long the main process may take to stop.
const stopTimeout = 30 * time.Second

// rootFlag adds the flag that moves everything below another directory.
func rootFlag(flags *pflag.FlagSet, root *string) {
	flags.StringVar(root, "root", "", "Keep everything below this directory instead of in the usual places.")
}

func layoutFor(root string) layout.Node {
	if root == "" {
		return layout.Default()
	}
	return layout.Under(root)
}

// hostCommand is a command of root's over the cluster below --root.
func hostCommand(use, short string, run func(ctx context.Context, out io.Writer, l layout.Node) error) *cobra.Command {
	var root string
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := needRoot(); err != nil {
				return err
			}
			return run(cmd.Context(), cmd.OutOrStdout(), layoutFor(root))
		},
	}
	rootFlag(cmd.Flags(), &root)
	return cmd
}

func newStop() *cobra.Command {
	return hostCommand("stop", "Stop the control plane and the kubelet; pods go on", func(ctx context.Context, out io.Writer, l layout.Node) error {
		return errors.Join(stopMain(ctx, out, l), stopFurther(ctx, out, l))
	})
}

func needRoot() error {
	if os.Geteuid() != 0 {
		return codedError{errors.New("this must run as root: use sudo"), ExitPreflight}
	}
	return nil
}

// stopMain ends the main process.
func stopMain(ctx context.Context, out io.Writer, l layout.Node) error {
	who := func() (int, error) { return holder(l.PIDFile(mainProcess)) }
	pid, err := who()
	if err != nil {
		return err
	}
	if pid == 0 {
		fmt.Fprintln(out, "hyperkube is not running")
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	if err := endProcess(ctx, pid, who); err != nil {
		return fmt.Errorf("stopping hyperkube: %w", err)
	}
	fmt.Fprintln(out, "hyperkube has stopped")
	return nil
}

func newDown() *cobra.Command {
	return hostCommand("down", "Stop everything, pods too, and take back all changes to the host", func(ctx context.Context, out io.Writer, l layout.Node) error {
		t, err := takeTurn(ctx, l, true)
		if err != nil {
			return err
		}
		defer t.remove()
		return down(ctx, out, l, nil)
	})
}

// down, which needs the turn alone, stops the main process, the pods and the runtime, in this order so that
// nobody starts what was just stopped, and takes back what they changed. leave is
// called when nothing but etcd runs any more; it may be nil.
func down(ctx context.Context, out io.Writer, l layout.Node, leave func()) error {
	if err := removeUnit(ctx, l); err != nil {
		return err
	}
	if err := stopMain(ctx, out, l); err != nil {
		return err
	}
	var errs []error
	if err := downFurtherAll(ctx, out, l); err != nil {
		errs = append(errs, err)
	}
	if err := stopRuntime(ctx, out, l, leave); err != nil {
		// What holds a pod may be broken: the journals know its cgroup.
		errs = append(errs, err)
	}
	for _, process := range append([]string{"nodes"}, journals...) {
		if err := hostchange.Undo(ctx, l.Journal(process)); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := hostchange.RemoveTree(l.Run); err != nil {
		return fmt.Errorf("removing %s: %w", l.Run, err)
	}
	fmt.Fprintln(out, "all changes to this host are taken back")
	return nil
}

func stopRuntime(ctx context.Context, out io.Writer, l layout.Node, leave func()) error {
	pid, err := runtimePID(l)
	if err != nil {
		return err
	}
	if pid == 0 {
		if leave != nil {
			leave()
		}
		return nil
	}
	cri, err := runtimeclient.Dial(l.RuntimeSocket())
	if err != nil {
		return err
	}
	defer cri.Close()
	pods, podErr := removePods(ctx, cri, leave)
	if podErr == nil && pods > 0 {
		fmt.Fprintf(out, "%d pods have stopped\n", pods)
	}
	ending, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	if err := endProcess(ending, pid, func() (int, error) { return runtimePID(l) }); err != nil {
		return errors.Join(podErr, fmt.Errorf("stopping the container runtime: %w", err))
	}
	return podErr
}

func newReset() *cobra.Command {
	return hostCommand("reset", "Like down, and delete the cluster's data", func(ctx context.Context, out io.Writer, l layout.Node) error {
		t, err := takeTurn(ctx, l, true)
		if err != nil {
			return err
		}
		err = reset(ctx, out, l)
		t.remove()
		removeEmpty(l)
		return err
	})
}

func reset(ctx context.Context, out io.Writer, l layout.Node) error {
	if err := down(ctx, out, l, func() { leaveEtcd(ctx, out, l) }); err != nil {
		return err
	}
	if err := removeEtc(l); err != nil {
		return err
	}
	target, err := kubeconfig.UserTarget(os.Getenv)
	if err != nil {
		return err
	}
	if err := target.Remove(contextName); err != nil {
		return err
	}
	for _, dir := range []string{l.Data, l.Kubelet, l.PodLogs, l.ContainerLogs} {
		if err := hostchange.RemoveTree(dir); err != nil {
			return fmt.Errorf("deleting data: %w", err)
		}
	}
	fmt.Fprintln(out, "the cluster's data is deleted")
	return nil
}

// removeEmpty removes the folders that were only there for a cluster elsewhere
// than in the usual places, the deeper first.
func removeEmpty(l layout.Node) {
	above := []string{filepath.Dir(l.Data), filepath.Dir(l.Kubelet), filepath.Dir(l.Run), filepath.Dir(l.PodLogs), filepath.Dir(filepath.Dir(l.Data)), filepath.Dir(l.Etc)}
	for _, dir := range above {
		if !slices.Contains([]string{"/var/lib", "/run", "/var/log", "/var", "/etc"}, dir) {
			_ = os.Remove(dir)
		}
	}
}
