// Package cdi resolves devices of the Container Device Interface: it reads the vendors'
// specification files and returns the container edits for device names.
//
// https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
package cdi

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// defaultDirs returns the default directories of CDI files. Later directories take precedence.
func defaultDirs() []string { return []string{"/etc/cdi", "/var/run/cdi"} }

// maxFileSize is the maximum size of a CDI file in bytes.
const maxFileSize = 4 << 20

// Edits are the changes to a container that a device requires. The JSON form is that of containerEdits in CDI files.
type Edits struct {
	Env            []string     `json:"env,omitempty"`
	DeviceNodes    []DeviceNode `json:"deviceNodes,omitempty"`
	Mounts         []Mount      `json:"mounts,omitempty"`
	Hooks          []Hook       `json:"hooks,omitempty"`
	AdditionalGIDs []uint32     `json:"additionalGids,omitempty"`
}

// DeviceNode is a device node to create in the container. Unset fields are taken from the device on
// the host.
type DeviceNode struct {
	Path        string  `json:"path"`
	HostPath    string  `json:"hostPath,omitempty"`
	Type        string  `json:"type,omitempty"`
	Major       int64   `json:"major,omitempty"`
	Minor       int64   `json:"minor,omitempty"`
	FileMode    *uint32 `json:"fileMode,omitempty"`
	Permissions string  `json:"permissions,omitempty"`
	UID         *uint32 `json:"uid,omitempty"`
	GID         *uint32 `json:"gid,omitempty"`
}

// Mount is a mount to add to the container.
type Mount struct {
	HostPath      string   `json:"hostPath"`
	ContainerPath string   `json:"containerPath"`
	Options       []string `json:"options,omitempty"`
	Type          string   `json:"type,omitempty"`
}

// Hook is a host program that runs at a point of the container's lifecycle.
type Hook struct {
	HookName string   `json:"hookName"`
	Path     string   `json:"path"`
	Args     []string `json:"args,omitempty"`
	Env      []string `json:"env,omitempty"`
	Timeout  *int     `json:"timeout,omitempty"` // seconds
}

// file is the content of a vendor's CDI file, which defines the devices of one kind.
type file struct {
	Version  string   `json:"cdiVersion"`
	Kind     string   `json:"kind"`
	Devices  []device `json:"devices"`
	Edits    Edits    `json:"containerEdits"`
	path     string
	priority int // index of its directory; greater takes precedence
}

type device struct {
	Name  string `json:"name"`
	Edits Edits  `json:"containerEdits"`
}

// Resolve returns the combined edits of the devices with these names, each of the form vendor/class=device. It
// reads the CDI files in dirs, of which later directories take precedence, or in /etc/cdi and /var/run/cdi if
// dirs is empty. It returns an error if a name does not have this form, if a device is not defined or if two
// files of the same directory define it. Invalid files are ignored if all devices are found in other files;
// otherwise they are part of the error.
func Resolve(names, dirs []string) (Edits, error) {
	var all Edits
	if len(names) == 0 {
		return all, nil
	}
	if len(dirs) == 0 {
		dirs = defaultDirs()
	}
	files, bad := load(dirs)
	var missing []string
	seen := map[*file]bool{}
	for _, name := range slices.Compact(slices.Clone(names)) {
		kind, id, ok := strings.Cut(name, "=")
		if !ok || kind == "" || id == "" || !strings.Contains(kind, "/") {
			return Edits{}, fmt.Errorf("invalid CDI device name %q", name)
		}
		f, d, err := find(files, kind, id)
		if err != nil {
			return Edits{}, err
		}
		if f == nil {
			missing = append(missing, name)
			continue
		}
		if !seen[f] {
			seen[f] = true
			all.add(f.Edits)
		}
		all.add(d.Edits)
	}
	if len(missing) > 0 {
		return Edits{}, errors.Join(fmt.Errorf("unresolvable CDI devices %s", strings.Join(missing, ", ")), bad)
	}
	return all, nil
}

// find returns the device with this kind and ID, and the file that defines it, or nil if no file does. It returns an
// error if two files with the same precedence define it.
func find(files []*file, kind, id string) (*file, *device, error) {
	var in *file
	var found *device
	for _, f := range files {
		if f.Kind != kind {
			continue
		}
		for i := range f.Devices {
			if f.Devices[i].Name != id {
				continue
			}
			switch {
			case in == nil || f.priority > in.priority:
				in, found = f, &f.Devices[i]
			case f.priority == in.priority:
				return nil, nil, fmt.Errorf("conflicting device %q (specs %q, %q)", kind+"="+id, in.path, f.path)
			}
		}
	}
	return in, found, nil
}

// add appends the edits in o to e, which becomes the union of both.
func (e *Edits) add(o Edits) {
	e.Env = append(e.Env, o.Env...)
	e.DeviceNodes = append(e.DeviceNodes, o.DeviceNodes...)
	e.Mounts = append(e.Mounts, o.Mounts...)
	e.Hooks = append(e.Hooks, o.Hooks...)
	e.AdditionalGIDs = append(e.AdditionalGIDs, o.AdditionalGIDs...)
}

// load reads all CDI files, *.json and *.yaml, in dirs; those of later directories have priority. The error
// contains files that are invalid; the result contains the others. A directory that does not exist is ignored.
func load(dirs []string) ([]*file, error) {
	var files []*file
	var bad []error
	for rank, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			if !errors.Is(err, os.ErrNotExist) {
				bad = append(bad, fmt.Errorf("reading CDI files: %w", err))
			}
			continue
		}
		for _, entry := range entries {
			if ext := filepath.Ext(entry.Name()); ext != ".json" && ext != ".yaml" {
				continue
			}
			path := filepath.Join(dir, entry.Name())
			f, err := read(path)
			if err != nil {
				bad = append(bad, err)
				continue
			}
			f.path, f.priority = path, rank
			files = append(files, f)
		}
	}
	return files, errors.Join(bad...)
}

// read reads and parses a CDI file. It returns an error if the file is not valid or larger than maxFileSize.
func read(path string) (*file, error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading CDI file: %w", err)
	}
	defer in.Close()
	data, err := io.ReadAll(io.LimitReader(in, maxFileSize+1))
	if err != nil {
		return nil, fmt.Errorf("reading CDI file: %w", err)
	}
	f, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("parsing CDI file %s: %w", path, err)
	}
	return f, nil
}

// parse parses a CDI file in JSON or YAML. It returns an error if the file is invalid, contains edits that the runtime
// does not support, or is too large.
func parse(data []byte) (*file, error) {
	if len(data) > maxFileSize {
		return nil, errors.New("file is too large")
	}
	f := &file{}
	if err := yaml.Unmarshal(data, f); err != nil {
		return nil, err
	}
	if f.Version == "" {
		return nil, errors.New("missing cdiVersion")
	}
	if vendor, class, ok := strings.Cut(f.Kind, "/"); !ok || vendor == "" || class == "" {
		return nil, fmt.Errorf("invalid kind %q", f.Kind)
	}
	if err := f.Edits.check(); err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, d := range f.Devices {
		if d.Name == "" || names[d.Name] {
			return nil, fmt.Errorf("device name %q is empty or duplicate", d.Name)
		}
		names[d.Name] = true
		if err := d.Edits.check(); err != nil {
			return nil, fmt.Errorf("device %q: %w", d.Name, err)
		}
	}
	return f, nil
}

// check returns an error if an edit is invalid or not supported.
func (e *Edits) check() error {
	for _, v := range e.Env {
		if name, _, ok := strings.Cut(v, "="); !ok || name == "" {
			return fmt.Errorf("invalid environment variable %q", v)
		}
	}
	for _, d := range e.DeviceNodes {
		if !filepath.IsAbs(d.Path) {
			return fmt.Errorf("invalid device node path %q", d.Path)
		}
		if !slices.Contains([]string{"", "b", "c", "u", "p"}, d.Type) || strings.Trim(d.Permissions, "rwm") != "" {
			return fmt.Errorf("device node %q: invalid type %q or permissions %q", d.Path, d.Type, d.Permissions)
		}
	}
	for _, m := range e.Mounts {
		if m.HostPath == "" || !filepath.IsAbs(m.ContainerPath) {
			return fmt.Errorf("invalid mount of %q at %q", m.HostPath, m.ContainerPath)
		}
	}
	for _, h := range e.Hooks {
		// poststop hooks are not supported.
		if !slices.Contains([]string{"prestart", "createRuntime", "createContainer", "startContainer", "poststart"}, h.HookName) {
			return fmt.Errorf("hook %q is not supported", h.HookName)
		}
		if !filepath.IsAbs(h.Path) {
			return fmt.Errorf("invalid hook path %q", h.Path)
		}
	}
	return nil
}
