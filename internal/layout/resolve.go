package layout

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Resolve returns path with the symlinks on its way followed, itself included, as
// far as it is there: what a mount table calls it. A machine may have its /var/lib
// on another disk by a symlink.
func Resolve(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("finding where %s is: %w", path, err)
	}
	rest := ""
	for at := abs; ; at = filepath.Dir(at) {
		real, err := filepath.EvalSymlinks(at)
		if err == nil {
			return filepath.Join(real, rest), nil
		}
		if !errors.Is(err, fs.ErrNotExist) || at == filepath.Dir(at) {
			return "", fmt.Errorf("following the symlinks of %s: %w", path, err)
		}
		rest = filepath.Join(filepath.Base(at), rest)
	}
}

// Exists tells whether anything is at path that can be looked at.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
