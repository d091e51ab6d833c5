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

// source is one of the files of a log.
type source struct {
	f *os.File
	r io.Reader // what is in it
	// name is that of a compressed file; the others are renamed while they are
	// open.
	name string
}

// after returns the file that was written after s, nil when s is still written to
// or its successor is not there yet. For who is slower than the writer that is an
// old file, which may be compressed already.
func (s *source) after(path string) *source {
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
			continue // without a name of its own, it is not known which is next
		}
		for _, name := range []string{path + "." + stamp, path + "." + stamp + gz} {
			// What has just been compressed, or removed, is not there.
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

// open opens one of a log's files.
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
		return nil, fmt.Errorf("reading a compressed log: %w", err)
	}
	return &source{f: f, r: z, name: name}, nil
}

// stamp is what the name of a file that was rotated has behind path's; empty: it is
// not known.
func (s *source) stamp(path string) string {
	name := s.name
	if name == "" {
		// The kernel knows what it is called by now, or was when it was removed.
		link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", s.f.Fd()))
		if err != nil {
			return ""
		}
		name = strings.TrimSuffix(link, " (deleted)")
	}
	stamp, _ := strings.CutPrefix(strings.TrimSuffix(filepath.Base(name), gz), filepath.Base(path))
	return strings.TrimPrefix(stamp, ".")
}

// stamps are those of the old files of the log at path, the oldest first.
func stamps(path string) []string {
	all, _ := filepath.Glob(path + ".*") // fails for bad patterns alone
	var out []string
	for _, name := range all {
		if !strings.HasSuffix(name, temp) {
			out = append(out, strings.TrimSuffix(strings.TrimPrefix(name, path+"."), gz))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
