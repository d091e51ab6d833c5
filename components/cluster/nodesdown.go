package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sync/errgroup"

	"hyperkube/components/cluster/localnodes"
	"hyperkube/internal/hostchange"
	"hyperkube/internal/layout"
)

// stopFurther ends the processes of all further nodes; pods go on.
func stopFurther(ctx context.Context, out io.Writer, l layout.Node) error {
	return eachFurther(l, func(i int) error {
		n := l.Numbered(i)
		pid, err := holder(n.PIDFile(mainProcess))
		if err != nil || pid == 0 {
			return err
		}
		if err := stopMain(ctx, io.Discard, n); err != nil {
			return err
		}
		fmt.Fprintf(out, "further node %d has stopped\n", i)
		return nil
	})
}

// downFurtherAll takes all further nodes away from the machine; their data
// stays.
func downFurtherAll(ctx context.Context, out io.Writer, l layout.Node) error {
	return eachFurther(l, func(i int) error { return downFurther(ctx, out, l, i) })
}

// eachFurther calls f for all further nodes at once.
func eachFurther(l layout.Node, f func(i int) error) error {
	numbers, err := furtherNumbers(l)
	if err != nil {
		return err
	}
	errs := make([]error, len(numbers))
	var group errgroup.Group
	for at, i := range numbers {
		group.Go(func() error {
			if err := f(i); err != nil {
				errs[at] = fmt.Errorf("further node %d: %w", i, err)
			}
			return nil
		})
	}
	_ = group.Wait() // errs has them
	return errors.Join(errs...)
}

// downFurther stops the i-th further node with its pods, and takes back what it
// changed, in its own network namespace: what there is of that name in the
// machine's is the first node's.
func downFurther(ctx context.Context, out io.Writer, l layout.Node, i int) error {
	n := l.Numbered(i)
	if err := stopMain(ctx, io.Discard, n); err != nil {
		return err
	}
	var errs []error
	if err := stopRuntime(ctx, out, n, nil); err != nil {
		// What holds a pod may be broken: the journals know its cgroup.
		errs = append(errs, err)
	}
	undo := func() error {
		var errs []error
		for _, process := range journals {
			errs = append(errs, hostchange.Undo(ctx, n.Journal(process)))
		}
		return errors.Join(errs...)
	}
	err := localnodes.Inside(localnodes.Namespace(l, i), undo)
	if errors.Is(err, os.ErrNotExist) {
		// It went with a reboot.
		err = localnodes.Nowhere(undo)
	}
	if err := errors.Join(append(errs, err)...); err != nil {
		return err
	}
	if err := localnodes.Remove(l, i); err != nil {
		return err
	}
	if err := hostchange.RemoveTree(n.Run); err != nil {
		return fmt.Errorf("removing %s: %w", n.Run, err)
	}
	_ = os.Remove(n.Run + ".lock") // only there if it was started
	return nil
}
