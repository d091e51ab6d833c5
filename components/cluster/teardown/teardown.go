// Package teardown stops and removes what runs on a machine: the commands stop, down and reset.
package teardown

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/controlplane"
	"hyperkube/components/cluster/node"
	"hyperkube/components/cluster/pidlock"
	"hyperkube/components/cluster/podsunit"
	"hyperkube/components/cluster/service"
	"hyperkube/components/runtime/runtimeclient"
	"hyperkube/internal/credentials/kubeconfig"
	"hyperkube/internal/host/firewalld"
	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/host/packetfilter"
)

// journals are the names of the journals of host changes, in the order in which they are reverted: those of the kubelet
// and kube-proxy, which run in one or in separate processes, of the runtime, and of tables of the packet filter.
var journals = []string{"node", "runtime", "cni", node.TablesJournal}

// units are the services, one for clusters of `up` and one for other nodes, that may run on this machine.
var units = []service.Unit{service.Cluster, service.Node}

// StopTimeout limits how long the main process may take to stop. Then it is killed.
const StopTimeout = 30 * time.Second

// NewStop returns the command `stop`, which stops the main process of the cluster. Pods keep running.
func NewStop() *cobra.Command {
	var suspend suspendPhase
	cmd := command.NewHostCommand("stop", "Stop the control plane and the kubelet; pods keep running", func(ctx context.Context, out io.Writer, l layout.Node) error {
		if suspend != "" {
			return suspend.run(ctx, out, l)
		}
		for _, unit := range units {
			if stopped, err := unit.Stop(ctx, l); err != nil {
				return err
			} else if stopped {
				fmt.Fprintf(out, "stopped the %s; it starts again at the next boot\n", unit.Describe())
				return stopAdditionalNodes(ctx, out, l)
			}
		}
		return errors.Join(StopMain(ctx, out, l), stopAdditionalNodes(ctx, out, l))
	})
	// Users do not need it: the machine's service manager runs it.
	cmd.Flags().StringVar((*string)(&suspend), "suspend-pods", "", "Also stop all pods, in order, because the machine shuts down. They run again after the next start. pods stops nothing else, processes only the rest.")
	cmd.Flags().Lookup("suspend-pods").NoOptDefVal = string(suspendAll)
	_ = cmd.Flags().MarkHidden("suspend-pods") // fails only for an unknown flag
	return cmd
}

// StopMain stops the main process of the node at l, if it runs: the process of the kubelet, the proxy and, in clusters
// of `up`, the control plane. Pods keep running. After StopTimeout, it kills the process.
func StopMain(ctx context.Context, out io.Writer, l layout.Node) error {
	holder := func() (int, error) { return pidlock.Holder(l.PIDFile(layout.MainProcess)) }
	pid, err := holder()
	if err != nil {
		return err
	}
	if pid == 0 {
		fmt.Fprintln(out, "hyperkube is not running")
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, StopTimeout)
	defer cancel()
	if err := pidlock.Terminate(ctx, pid, holder); err != nil {
		return fmt.Errorf("stopping hyperkube: %w", err)
	}
	fmt.Fprintln(out, "hyperkube stopped")
	return nil
}

// stoppingProcess is the main process after it has stopped its components; it may still have to reap its
// children. Nil means that there is none.
type stoppingProcess pidlock.Termination

// terminateMain terminates the main process and waits until it has stopped its components. The result is nil if there
// is none. The caller must call wait of the result.
func terminateMain(ctx context.Context, out io.Writer, l layout.Node) (*stoppingProcess, error) {
	ctx, cancel := context.WithTimeout(ctx, StopTimeout)
	defer cancel()
	pid, err := pidlock.Holder(l.PIDFile(layout.MainProcess))
	if err != nil {
		return nil, err
	}
	if pid == 0 {
		fmt.Fprintln(out, "hyperkube is not running")
		return nil, nil
	}
	e, err := pidlock.TerminateHolder(ctx, l.PIDFile(layout.MainProcess))
	if err != nil {
		return nil, fmt.Errorf("stopping hyperkube: %w", err)
	}
	fmt.Fprintln(out, "hyperkube stopped")
	return (*stoppingProcess)(e), nil
}

// wait blocks until the process has exited. After StopTimeout it kills the process. It returns immediately if s is
// nil.
func (s *stoppingProcess) wait(ctx context.Context) error {
	if s == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, StopTimeout)
	defer cancel()
	if err := (*pidlock.Termination)(s).Wait(ctx); err != nil {
		return fmt.Errorf("waiting for hyperkube to exit: %w", err)
	}
	return nil
}

// NewDown returns the command `down`, which stops the cluster with its pods and reverts the changes to the host. The
// data is kept.
func NewDown() *cobra.Command {
	return command.NewHostCommand("down", "Stop the cluster and its pods, and revert all changes to the host", func(ctx context.Context, out io.Writer, l layout.Node) error {
		t, err := pidlock.AcquireLifecycle(ctx, l, true)
		if err != nil {
			return err
		}
		defer t.Remove()
		return down(ctx, out, l, nil)
	})
}

// down stops the main process, the pods and the runtime, in this order so that nothing restarts
// what was stopped, and reverts their changes to the host. The caller must hold the exclusive
// lifecycle lock. leave is called when only etcd still runs; it may be nil.
func down(ctx context.Context, out io.Writer, l layout.Node, leave func()) error {
	processOut := out
	for _, unit := range units {
		if removed, err := unit.Remove(ctx, l); err != nil {
			return err
		} else if removed {
			fmt.Fprintf(out, "stopped and removed the %s\n", unit.Describe())
			processOut = io.Discard // the unit was the main process
		}
	}
	main, err := terminateMain(ctx, processOut, l)
	if err != nil {
		return err
	}
	var errs []error
	if err := downAdditionalNodes(ctx, out, l); err != nil {
		errs = append(errs, err)
	}
	if err := stopRuntime(ctx, out, l, leave); err != nil {
		// Continue: even if a pod cannot be stopped, the journals contain its cgroup.
		errs = append(errs, err)
	}
	// The main process waits for the runtime if that is its child.
	if err := main.wait(ctx); err != nil {
		errs = append(errs, err)
	}
	if err := podsunit.Remove(ctx, l); err != nil {
		errs = append(errs, err)
	}
	for _, process := range slices.Concat([]string{"nodes"}, journals, []string{podsunit.Journal}) {
		if err := hostjournal.Undo(ctx, l.Journal(process), undoFunctions()); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := hostjournal.RemoveTree(l.Run); err != nil {
		return fmt.Errorf("removing %s: %w", l.Run, err)
	}
	fmt.Fprintln(out, "reverted all changes to this host")
	return nil
}

// undoFunctions returns the functions that revert changes to the packet filter and to firewalld, whose kinds the host
// journal records but does not revert itself.
func undoFunctions() hostjournal.Functions {
	functions := packetfilter.Undo()
	maps.Copy(functions, firewalld.Undo())
	return functions
}

// stopRuntime stops and removes all pods, and then stops the container runtime. It calls leave, which may be nil,
// before it stops etcd; without a runtime, it only calls leave.
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
		fmt.Fprintf(out, "%d pods stopped\n", pods)
	}
	return errors.Join(podErr, terminateRuntime(ctx, l))
}

// NewReset returns the command `reset`, which stops the cluster like `down` and deletes its data.
func NewReset() *cobra.Command {
	var dryRun bool
	cmd := command.NewHostCommand("reset", "Stop the cluster, revert all changes to the host and delete the cluster's data", func(ctx context.Context, out io.Writer, l layout.Node) error {
		if dryRun {
			return printDryRun(out, l)
		}
		t, err := pidlock.AcquireLifecycle(ctx, l, true)
		if err != nil {
			return err
		}
		err = reset(ctx, out, l)
		t.Remove()
		removeEmptyParents(l)
		return err
	})
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "Don't apply any changes; just output what would be done.")
	cmd.Flags().BoolP("force", "f", false, "Accepted for compatibility with kubeadm. reset never prompts for confirmation.")
	addIgnoreFlag(cmd)
	cmd.AddCommand(newPhaseCommand())
	return cmd
}

// addIgnoreFlag adds kubeadm's flag --ignore-preflight-errors to cmd. It has no effect, but scripts for kubeadm use
// it.
func addIgnoreFlag(cmd *cobra.Command) {
	cmd.Flags().StringSlice("ignore-preflight-errors", nil, "Accepted for compatibility with kubeadm. The only check of reset, for root privileges, cannot be ignored.")
}

// reset stops the cluster like down, removes this machine's etcd member from the cluster, and deletes the data.
func reset(ctx context.Context, out io.Writer, l layout.Node) error {
	return cleanup(ctx, out, l, func() { controlplane.LeaveEtcd(ctx, out, l) })
}

// cleanup stops the cluster like down, and deletes the files that init and join have written, the user's kubeconfig
// context and the data of the cluster. It calls leave, which may be nil, before etcd stops.
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
	for _, dir := range dataDirs(l) {
		if err := hostjournal.RemoveTree(dir); err != nil {
			return fmt.Errorf("deleting data: %w", err)
		}
	}
	fmt.Fprintln(out, "deleted the cluster's data")
	return nil
}

// dataDirs returns the directories with the data of a cluster and its pods, which reset deletes.
func dataDirs(l layout.Node) []string {
	return []string{l.Data, l.Kubelet, l.PodLogs, l.ContainerLogs, l.AuditLogs()}
}

// removeEmptyParents removes empty parent directories of a cluster with --root, the deepest first.
func removeEmptyParents(l layout.Node) {
	above := []string{filepath.Dir(l.AuditLogs()), filepath.Dir(l.Data), filepath.Dir(l.Kubelet), filepath.Dir(l.Run), filepath.Dir(l.PodLogs), filepath.Dir(filepath.Dir(l.Data)), filepath.Dir(l.Etc)}
	for _, dir := range above {
		if !slices.Contains([]string{"/var/lib", "/run", "/var/log", "/var", "/etc"}, dir) {
			_ = os.Remove(dir)
		}
	}
}

// etcFiles are the names of the files and directories that init and join write to the directory Etc of the layout.
var etcFiles = []string{"pki", "manifests", "admin.conf", "super-admin.conf", "controller-manager.conf", "scheduler.conf", "proxy.conf", "kubelet.conf", "bootstrap-kubelet.conf", "audit-policy.yaml"}

// removeEtc deletes what init and join have written to Etc. On other machines, such files belong to
// another program.
func removeEtc(l layout.Node) error {
	if !clusterconfig.HasJoined(l) {
		return nil
	}
	var errs []error
	for _, name := range etcFiles {
		if err := os.RemoveAll(filepath.Join(l.Etc, name)); err != nil {
			errs = append(errs, fmt.Errorf("removing %s: %w", filepath.Join(l.Etc, name), err))
		}
	}
	_ = os.Remove(l.Etc) // fails if other files are left
	return errors.Join(errs...)
}
