package iscsi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// dataFile and mountPoint are names in a pod's directory of a volume: of the file that describes the disk for the
// teardown, and of the directory where the disk is mounted.
const (
	dataFile   = "disk.json"
	mountPoint = "mount"
)

// readDisk returns the disk that is saved in dir, a pod's directory of a volume. It returns fs.ErrNotExist if
// there is none, and another error if the file is damaged.
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
		return nil, fmt.Errorf("decoding %s: target or portal is missing", path)
	}
	return &d, nil
}

// use is the use of a disk by one pod; dir is the pod's directory of the volume.
type use struct {
	*disk
	dir string
}

// uses returns the disks that pods of this node use, read from the saved files. If files are damaged, it
// returns the uses of the other files and an error.
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
