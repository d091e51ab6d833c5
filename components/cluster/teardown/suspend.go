package teardown

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/node"
	"hyperkube/components/cluster/pidlock"
	"hyperkube/components/cluster/podsunit"
	"hyperkube/components/kubelet/node/shutdown"
	"hyperkube/internal/host/layout"
)

// suspendTimeout limits how long the pods may take to stop at the shutdown of the machine. It is longer than the grace
// periods of the kubelet. With StopTimeout, it is shorter than the timeout of the unit.
const suspendTimeout = 50 * time.Second

// suspendPhase is the part of the stop job that runs when the machine shuts down.
type suspendPhase string

const (
	suspendAll suspendPhase = "all"
	// suspendOnlyPods and suspendProcesses are for OpenRC, whose supervisor restarts a main process that exits before the
	// supervisor stops it. So pods stop before it, and the runtime after it.
	suspendOnlyPods  suspendPhase = "pods"
	suspendProcesses suspendPhase = "processes"
)

// run stops all pods of this machine in order, then the main processes and the runtimes. It is the stop job of the
// systemd unit that contains the pods: the next start of the cluster runs the pods again. The main processes stop after
// the pods of all nodes, because pods use the API until they have stopped. It does not stop services, because
// those wait for the stop job. It returns an error if the phase is unknown, or a pod or process could not be stopped.
func (p suspendPhase) run(ctx context.Context, out io.Writer, l layout.Node) error {
	if p != suspendAll && p != suspendOnlyPods && p != suspendProcesses {
		return command.ConfigError(fmt.Errorf("unknown value %q of --suspend-pods", string(p)))
	}
	additional, err := AdditionalNodeNumbers(l)
	if err != nil {
		return err
	}
	var nodes []layout.Node
	for _, i := range additional {
		nodes = append(nodes, l.Numbered(i))
	}
	nodes = append(nodes, l)
	results := make([]error, len(nodes))
	if p != suspendProcesses {
		waiting, cancel := context.WithTimeout(ctx, suspendTimeout)
		defer cancel()
		var wg sync.WaitGroup
		for i, n := range nodes {
			wg.Go(func() { results[i] = shutdown.Suspend(waiting, podsunit.StopSocket(n)) })
		}
		wg.Wait()
	}
	if p == suspendOnlyPods {
		return errors.Join(results...)
	}
	var errs []error
	for i, n := range nodes {
		errs = append(errs, stopProcesses(ctx, out, n, results[i]))
	}
	return errors.Join(errs...)
}

// stopProcesses stops the main process and the runtime of a node. If its kubelet has failed to suspend the pods, it also
// stops and removes them.
func stopProcesses(ctx context.Context, out io.Writer, l layout.Node, suspendErr error) error {
	if err := StopMain(ctx, io.Discard, l); err != nil {
		return errors.Join(suspendErr, err)
	}
	if suspendErr != nil {
		if pid, err := node.RuntimePID(l); err != nil || pid == 0 {
			return err // there are no pods, for example during `down`
		}
		fmt.Fprintf(out, "stopping pods without their preStop hooks: %v\n", suspendErr)
		return stopRuntime(ctx, out, l, nil)
	}
	fmt.Fprintln(out, "pods stopped; they run again after the next start")
	return terminateRuntime(ctx, l)
}

// terminateRuntime stops the container runtime, if it runs. Its containers keep running. After StopTimeout, it kills
// the runtime.
func terminateRuntime(ctx context.Context, l layout.Node) error {
	pid, err := node.RuntimePID(l)
	if err != nil || pid == 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, StopTimeout)
	defer cancel()
	if err := pidlock.Terminate(ctx, pid, func() (int, error) { return node.RuntimePID(l) }); err != nil {
		return fmt.Errorf("stopping the container runtime: %w", err)
	}
	return nil
}
