// Package scrub deletes the content of a volume. It runs in a pod on the volume's node, for the
// controllers that recycle and delete volumes.
package scrub

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
)

// NewCommand returns the `hyperkube scrub` command.
func NewCommand() *cobra.Command {
	return &cobra.Command{
		Use: "scrub DIRECTORY [ENTRY]", Short: "Delete the content of a directory, or one entry of it",
		Args: cobra.RangeArgs(1, 2),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 2 {
				return removeEntry(args[0], args[1])
			}
			return removeAll(args[0])
		},
	}
}

// removeEntry deletes the entry name of the directory dir, with everything below. It succeeds if
// either does not exist. os.Root prevents symlinks from leading out of the directory.
func removeEntry(dir, name string) error {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("opening directory: %w", err)
	}
	defer func() { _ = root.Close() }() // nothing was written to it
	return remove(root, name)
}

// removeAll deletes all entries of a directory but not the directory itself, which must exist. It continues
// after an error, and returns all errors.
func removeAll(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("opening directory: %w", err)
	}
	defer func() { _ = root.Close() }() // nothing was written to it
	f, err := root.Open(".")
	if err != nil {
		return fmt.Errorf("reading directory: %w", err)
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("reading directory: %w", err)
	}
	var errs []error
	for _, name := range names {
		errs = append(errs, remove(root, name))
	}
	return errors.Join(errs...)
}

// remove deletes the entry name of root, with everything below. Empty names and "." are an error,
// because they would mean root itself.
func remove(root *os.Root, name string) error {
	if name == "" || name == "." {
		return errors.New("no entry specified")
	}
	if err := root.RemoveAll(name); err != nil {
		return fmt.Errorf("deleting entry: %w", err)
	}
	return nil
}
