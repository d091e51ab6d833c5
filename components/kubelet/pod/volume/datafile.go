package volume

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"hyperkube/internal/host/atomicfile"
)

// SaveData writes what, the data that is needed to tear down a volume, as JSON to the file in the directory
// dir, which it creates. The write is atomic and synced to disk: a volume without this file would never be
// torn down. It must be called before the volume is mounted. It does not write if the content is unchanged.
func SaveData(dir, file string, what any) error {
	raw, err := json.Marshal(what)
	if err != nil {
		return fmt.Errorf("encoding a volume's data: %w", err)
	}
	path := filepath.Join(dir, file)
	if have, err := os.ReadFile(path); err == nil && string(have) == string(raw) {
		return nil
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("creating a volume's directory: %w", err)
	}
	if err := atomicfile.Write(atomicfile.File{Path: path, Data: raw, Mode: 0o600}); err != nil {
		return fmt.Errorf("writing a volume's data: %w", err)
	}
	return nil
}

// RemoveData removes what SaveData has written to dir after the teardown of the volume: the file, remains of
// interrupted writes, the empty directory mountPoint in dir unless it is "", and dir itself. It returns an
// error if anything else is in dir. Files that do not exist are not an error.
func RemoveData(dir, file, mountPoint string) error {
	half, err := filepath.Glob(filepath.Join(dir, "."+file+"*"))
	if err != nil {
		return fmt.Errorf("removing a volume's data: %w", err)
	}
	if mountPoint != "" {
		// The file is removed after it, so that a volume that may still be mounted there remains
		// known.
		half = append(half, filepath.Join(dir, mountPoint))
	}
	for _, path := range append(half, filepath.Join(dir, file), dir) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing a volume's data: %w", err)
		}
	}
	return nil
}
