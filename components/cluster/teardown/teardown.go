// Package teardown ends what runs on a machine and takes it away: stop, down and reset.
package teardown

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

	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/identity"
	"hyperkube/components/cluster/masters"
	"hyperkube/components/cluster/node"
	"hyperkube/components/cluster/pidlock"
	"hyperkube/components/runtime/runtimeclient"
	"hyperkube/internal/hostchange"
	"hyperkube/internal/kubeconfig"
	"hyperkube/internal/layout"
)

// journals are the processes that change the host: kubelet and proxy, in one
// process or apart, and the runtime.
var journals = []string{"node", "runtime", "cni"}

// StopTimeout bounds how long the main process may take to stop.
const StopTimeout = 30 * time.Second

// NewStop makes the command `stop`.
func NewStop() *cobra.Command {
	return command.OnHost("stop", "Stop the control plane and the kubelet; pods go on", func(ctx context.Context, out io.Writer, l layout.Node) error {
		if stopped, err := node.StopUnit(ctx, l); err != nil || stopped {
			if err == nil {
				fmt.Fprintln(out, "systemd has stopped the unit of this node")
			}
			return err
		}
		return errors.Join(StopMain(ctx, out, l), stopFurther(ctx, out, l))
	})
}

// StopMain ends the main process.
func StopMain(ctx context.Context, out io.Writer, l layout.Node) error {
	who := func() (int, error) { return pidlock.Holder(l.PIDFile(layout.MainProcess)) }
	pid, err := who()
	if err != nil {
		return err
	}
	if pid == 0 {
		fmt.Fprintln(out, "hyperkube is not running")
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, StopTimeout)
	defer cancel()
	if err := pidlock.End(ctx, pid, who); err != nil {
		return fmt.Errorf("stopping hyperkube: %w", err)
	}
	fmt.Fprintln(out, "hyperkube has stopped")
	return nil
}

// NewDown makes the command `down`.
func NewDown() *cobra.Command {
	return command.OnHost("down", "Stop everything, pods too, and take back all changes to the host", func(ctx context.Context, out io.Writer, l layout.Node) error {
		t, err := pidlock.TakeTurn(ctx, l, true)
		if err != nil {
			return err
		}
		defer t.Remove()
		return down(ctx, out, l, nil)
	})
}

// down, which needs the turn alone, stops the main process, the pods and the runtime, in this order so that
// nobody starts what was just stopped, and takes back what they changed. leave is
// called when nothing but etcd runs any more; it may be nil.
func down(ctx context.Context, out io.Writer, l layout.Node, leave func()) error {
	if err := node.RemoveUnit(ctx, l); err != nil {
		return err
	}
	if err := StopMain(ctx, out, l); err != nil {
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
	pid, err := node.RuntimePID(l)
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
	ending, cancel := context.WithTimeout(ctx, StopTimeout)
	defer cancel()
	if err := pidlock.End(ending, pid, func() (int, error) { return node.RuntimePID(l) }); err != nil {
		return errors.Join(podErr, fmt.Errorf("stopping the container runtime: %w", err))
	}
	return podErr
}

// NewReset makes the command `reset`.
func NewReset() *cobra.Command {
	var dryRun bool
	cmd := command.OnHost("reset", "Like down, and delete the cluster's data", func(ctx context.Context, out io.Writer, l layout.Node) error {
		if dryRun {
			return rehearse(out, l)
		}
		t, err := pidlock.TakeTurn(ctx, l, true)
		if err != nil {
			return err
		}
		err = reset(ctx, out, l)
		t.Remove()
		removeEmpty(l)
		return err
	})
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "Change nothing, and print what would be done.")
	cmd.Flags().BoolP("force", "f", false, "As with kubeadm, for scripts: nothing is asked for without it either.")
	ignoreFlag(cmd)
	cmd.AddCommand(newPhases())
	return cmd
}

// ignoreFlag adds kubeadm's flag, which its users' scripts give.
func ignoreFlag(cmd *cobra.Command) {
	cmd.Flags().StringSlice("ignore-preflight-errors", nil, "As with kubeadm, for scripts: all that reset checks is who runs it, which cannot be ignored.")
}

func reset(ctx context.Context, out io.Writer, l layout.Node) error {
	return cleanup(ctx, out, l, func() { masters.Leave(ctx, out, l) })
}

// cleanup is reset with whatever is to be done before etcd stops; leave may be nil.
func cleanup(ctx context.Context, out io.Writer, l layout.Node, leave func()) error {
	if err := down(ctx, out, l, leave); err != nil {
		return err
	}
	if err := removeEtc(l); err != nil {
		return err
	}
	target, err := kubeconfig.UserTarget(os.Getenv)
	if err != nil {
		return err
	}
	if err := target.Remove(kubeconfig.DefaultName); err != nil {
		return err
	}
	for _, dir := range dataOf(l) {
		if err := hostchange.RemoveTree(dir); err != nil {
			return fmt.Errorf("deleting data: %w", err)
		}
	}
	fmt.Fprintln(out, "the cluster's data is deleted")
	return nil
}

// dataOf are the folders of a cluster's data.
func dataOf(l layout.Node) []string { return []string{l.Data, l.Kubelet, l.PodLogs, l.ContainerLogs} }

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

// ofEtc is what init and join write below Etc.
var ofEtc = []string{"pki", "manifests", "admin.conf", "super-admin.conf", "controller-manager.conf", "scheduler.conf", "proxy.conf", "kubelet.conf", "bootstrap-kubelet.conf"}

// removeEtc takes away what init and join have written below Etc. Only machines
// that they have set up have anything of theirs there.
func removeEtc(l layout.Node) error {
	if !identity.HasJoined(l) {
		return nil
	}
	var errs []error
	for _, name := range ofEtc {
		if err := os.RemoveAll(filepath.Join(l.Etc, name)); err != nil {
			errs = append(errs, fmt.Errorf("removing %s: %w", filepath.Join(l.Etc, name), err))
		}
	}
	_ = os.Remove(l.Etc) // others may have something there
	return errors.Join(errs...)
}
