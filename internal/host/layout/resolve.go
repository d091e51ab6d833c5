package layout

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Resolve returns path as an absolute path with all symlinks resolved, as it appears in the mount
// table: for example, /var/lib may be a symlink to another disk. Trailing path elements that do not
// exist are kept.
func Resolve(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("resolving %s: %w", path, err)
	}
	rest := ""
	for at := abs; ; at = filepath.Dir(at) {
		real, err := filepath.EvalSymlinks(at)
		if err == nil {
			return filepath.Join(real, rest), nil
		}
		if !errors.Is(err, fs.ErrNotExist) || at == filepath.Dir(at) {
			return "", fmt.Errorf("resolving symlinks of %s: %w", path, err)
		}
		rest = filepath.Join(filepath.Base(at), rest)
	}
}

// Exists reports whether a file or directory exists at path and can be accessed. It returns false
// for a symlink without a target.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
