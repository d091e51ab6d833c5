package iscsi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Names within a pod's place for a volume: what is kept of the disk, and where it
// is mounted.
const (
	dataFile   = "disk.json"
	mountPoint = "mount"
)

// readDisk returns what is kept; fs.ErrNotExist if nothing is.
func readDisk(dir string) (*disk, error) {
	path := filepath.Join(dir, dataFile)
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var d disk
	if err := json.Unmarshal(raw, &d); err != nil {
		return nil, fmt.Errorf("decoding %s: %w", path, err)
	}
	if d.Target == "" || len(d.Portals) == 0 {
		return nil, fmt.Errorf("decoding %s: it names no disk", path)
	}
	return &d, nil
}

// use is one pod's use of a disk; dir is the pod's place for it.
type use struct {
	*disk
	dir string
}

// uses returns what pods of this node use. With an error there may be more.
func (p *Plugin) uses() ([]use, error) {
	var out []use
	var damaged []error
	for _, kind := range []string{"volumes", "volumeDevices"} {
		files, err := filepath.Glob(filepath.Join(p.cfg.Root, "pods", "*", kind, pluginName, "*", dataFile))
		if err != nil {
			return nil, fmt.Errorf("looking for volumes in use: %w", err)
		}
		for _, f := range files {
			d, err := readDisk(filepath.Dir(f))
			switch {
			case errors.Is(err, fs.ErrNotExist):
			case err != nil:
				damaged = append(damaged, err)
			default:
				out = append(out, use{d, filepath.Dir(f)})
			}
		}
	}
	return out, errors.Join(damaged...)
}
