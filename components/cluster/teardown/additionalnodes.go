package teardown

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sync/errgroup"

	"hyperkube/components/cluster/localnodes"
	"hyperkube/components/cluster/pidlock"
	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/layout"
)

// stopAdditionalNodes stops the main processes of all additional nodes that run. Their pods keep running.
func stopAdditionalNodes(ctx context.Context, out io.Writer, l layout.Node) error {
	return EachAdditionalNode(l, func(i int) error {
		n := l.Numbered(i)
		pid, err := pidlock.Holder(n.PIDFile(layout.MainProcess))
		if err != nil || pid == 0 {
			return err
		}
		if err := StopMain(ctx, io.Discard, n); err != nil {
			return err
		}
		fmt.Fprintf(out, "additional node %d stopped\n", i)
		return nil
	})
}

// downAdditionalNodes stops all additional nodes with their pods and reverts their changes to the host.
// Their data is kept.
func downAdditionalNodes(ctx context.Context, out io.Writer, l layout.Node) error {
	return EachAdditionalNode(l, func(i int) error { return DownAdditionalNode(ctx, out, l, i) })
}

// EachAdditionalNode calls f concurrently with the number of each additional node that has files on this machine. It
// returns all errors, each with the number of the node.
func EachAdditionalNode(l layout.Node, f func(i int) error) error {
	numbers, err := AdditionalNodeNumbers(l)
	if err != nil {
		return err
	}
	errs := make([]error, len(numbers))
	var group errgroup.Group
	for at, i := range numbers {
		group.Go(func() error {
			if err := f(i); err != nil {
				errs[at] = fmt.Errorf("additional node %d: %w", i, err)
			}
			return nil
		})
	}
	_ = group.Wait() // errs contains the errors
	return errors.Join(errs...)
}

// DownAdditionalNode stops the i-th additional node with its pods, reverts its changes to the host, and deletes its
// network namespace and run directory. The data is kept. It reverts the changes in the network namespace of the node,
// because the same names in the host's namespace belong to the first node.
func DownAdditionalNode(ctx context.Context, out io.Writer, l layout.Node, i int) error {
	n := l.Numbered(i)
	t, err := pidlock.AcquireLifecycle(ctx, n, true)
	if err != nil {
		return err
	}
	defer t.Remove()
	main, err := terminateMain(ctx, io.Discard, n)
	if err != nil {
		return err
	}
	var errs []error
	if err := stopRuntime(ctx, out, n, nil); err != nil {
		// Continue: even if a pod cannot be stopped, the journals contain its cgroup.
		errs = append(errs, err)
	}
	// The main process waits for the runtime if that is its child.
	if err := main.wait(ctx); err != nil {
		errs = append(errs, err)
	}
	undo := func() error {
		var errs []error
		for _, process := range journals {
			errs = append(errs, hostjournal.Undo(ctx, n.Journal(process), undoFunctions()))
		}
		return errors.Join(errs...)
	}
	err = localnodes.InNamespace(localnodes.Namespace(l, i), undo)
	if errors.Is(err, os.ErrNotExist) {
		// The namespace does not survive a reboot.
		err = localnodes.InEmptyNamespace(undo)
	}
	if err := errors.Join(append(errs, err)...); err != nil {
		return err
	}
	if err := localnodes.Remove(l, i); err != nil {
		return err
	}
	if err := hostjournal.RemoveTree(n.Run); err != nil {
		return fmt.Errorf("removing %s: %w", n.Run, err)
	}
	return nil
}

// AdditionalNodeNumbers returns the numbers of the additional nodes that have files on this machine.
func AdditionalNodeNumbers(l layout.Node) ([]int, error) {
	var found []int
	for _, dir := range []string{filepath.Dir(l.Numbered(1).Data), filepath.Dir(l.Numbered(1).Run)} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("listing additional nodes: %w", err)
		}
		for _, e := range entries {
			if i, err := strconv.Atoi(e.Name()); err == nil && i > 0 && e.IsDir() && !slices.Contains(found, i) {
				found = append(found, i)
			}
		}
	}
	slices.Sort(found)
	return found, nil
}
