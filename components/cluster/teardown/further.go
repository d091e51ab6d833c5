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
	"hyperkube/internal/hostchange"
	"hyperkube/internal/layout"
)

// stopFurther ends the processes of all further nodes; pods go on.
func stopFurther(ctx context.Context, out io.Writer, l layout.Node) error {
	return EachFurther(l, func(i int) error {
		n := l.Numbered(i)
		pid, err := pidlock.Holder(n.PIDFile(layout.MainProcess))
		if err != nil || pid == 0 {
			return err
		}
		if err := StopMain(ctx, io.Discard, n); err != nil {
			return err
		}
		fmt.Fprintf(out, "further node %d has stopped\n", i)
		return nil
	})
}

// downFurtherAll takes all further nodes away from the machine; their data
// stays.
func downFurtherAll(ctx context.Context, out io.Writer, l layout.Node) error {
	return EachFurther(l, func(i int) error { return DownFurther(ctx, out, l, i) })
}

// EachFurther calls f for all further nodes at once.
func EachFurther(l layout.Node, f func(i int) error) error {
	numbers, err := FurtherNumbers(l)
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

// DownFurther stops the i-th further node with its pods, and takes back what it
// changed, in its own network namespace: what there is of that name in the
// machine's is the first node's.
func DownFurther(ctx context.Context, out io.Writer, l layout.Node, i int) error {
	n := l.Numbered(i)
	if err := StopMain(ctx, io.Discard, n); err != nil {
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

// FurtherNumbers are the numbers of the further nodes of which anything is on
// this machine.
func FurtherNumbers(l layout.Node) ([]int, error) {
	var found []int
	for _, dir := range []string{filepath.Dir(l.Numbered(1).Data), filepath.Dir(l.Numbered(1).Run)} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("looking for further nodes: %w", err)
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
