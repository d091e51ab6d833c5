package podlogs

import (
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// source is an open file of a container's log from which Read reads: the current file or a rotated one.
type source struct {
	f *os.File
	r io.Reader // uncompressed content
	// name is the name of a compressed file. Other files can be renamed while they are open.
	name string
}

// next opens the file that was written after s. It returns nil if s is still the current file or its
// successor does not exist yet. path is that of the current file. For a slow reader the successor is a
// rotated file, which may be compressed.
func (s *source) next(path string) *source {
	now, err := os.Stat(path)
	if err != nil {
		return nil
	}
	have, err := s.f.Stat()
	if err != nil || os.SameFile(now, have) {
		return nil
	}
	own := s.stamp(path)
	for _, stamp := range stamps(path) {
		if own == "" || stamp <= own {
			continue // the successor is unknown without a timestamp of this file
		}
		for _, name := range []string{path + "." + stamp, path + "." + stamp + gz} {
			// The file may have been compressed or removed since.
			if next, err := open(name); err == nil {
				return next
			}
		}
	}
	if next, err := open(path); err == nil {
		return next
	}
	return nil
}

// open opens a file of a log, and uncompresses its content if it is compressed.
func open(name string) (*source, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	if !strings.HasSuffix(name, gz) {
		return &source{f: f, r: f}, nil
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("reading compressed log: %w", err)
	}
	return &source{f: f, r: z, name: name}, nil
}

// stamp returns the timestamp in the name of a rotated file, or "" if s is the current file or its name is
// unknown. path is that of the current file.
func (s *source) stamp(path string) string {
	name := s.name
	if name == "" {
		// The kernel reports the current name, or the last one of a removed file.
		link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", s.f.Fd()))
		if err != nil {
			return ""
		}
		name = strings.TrimSuffix(link, " (deleted)")
	}
	stamp, _ := strings.CutPrefix(strings.TrimSuffix(filepath.Base(name), gz), filepath.Base(path))
	return strings.TrimPrefix(stamp, ".")
}

// stamps returns the timestamps of the rotated files of the log at path, oldest first.
func stamps(path string) []string {
	all, _ := filepath.Glob(path + ".*") // fails only for malformed patterns
	var out []string
	for _, name := range all {
		if !strings.HasSuffix(name, temp) {
			out = append(out, strings.TrimSuffix(strings.TrimPrefix(name, path+"."), gz))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
