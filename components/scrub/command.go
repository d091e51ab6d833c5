// Package scrub removes what is in a volume. It runs in a pod on the volume's
// node, for the controllers that recycle and delete volumes.
package scrub

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
)

// NewCommand makes the command.
func NewCommand() *cobra.Command {
	return &cobra.Command{
		Use: "scrub DIRECTORY [ENTRY]", Short: "Remove what is in a directory, or one entry of it",
		Args: cobra.RangeArgs(1, 2),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 2 {
				return entry(args[0], args[1])
			}
			return all(args[0])
		},
	}
}

// entry removes one entry. No link leads out of the directory: os.Root sees to
// it.
func entry(dir, name string) error {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("opening the directory: %w", err)
	}
	defer func() { _ = root.Close() }() // nothing was written to it
	return remove(root, name)
}

// all removes every entry, and leaves the directory.
func all(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("opening the directory: %w", err)
	}
	defer func() { _ = root.Close() }() // nothing was written to it
	f, err := root.Open(".")
	if err != nil {
		return fmt.Errorf("reading the directory: %w", err)
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("reading the directory: %w", err)
	}
	var errs []error
	for _, name := range names {
		errs = append(errs, remove(root, name))
	}
	return errors.Join(errs...)
}

func remove(root *os.Root, name string) error {
	if name == "" || name == "." {
		return errors.New("no entry named")
	}
	if err := root.RemoveAll(name); err != nil {
		return fmt.Errorf("removing: %w", err)
	}
	return nil
}
