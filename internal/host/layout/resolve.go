package layout

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Resolve returns path with all symlinks resolved, as it appears in the mount table. Trailing path
// elements that do not exist are kept. For example, /var/lib may be a symlink to another disk.
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

// Exists reports whether path exists and can be accessed.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
