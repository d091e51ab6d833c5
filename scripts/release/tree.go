package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// entry is a file, a symbolic link, or a directory of a tree.
type entry struct {
	executable bool
	source     string // file with the content; if it is empty, data is the content
	data       []byte
	link       string // target of a symbolic link; empty for others
	directory  int64  // mode of a directory; 0 for others. Parents of files need no entry.
}

// tree maps paths without a leading slash to files, links and directories.
type tree map[string]entry

// paths returns the sorted paths.
func (t tree) paths() []string { return slices.Sorted(maps.Keys(t)) }

// moved returns a copy of the tree in which all paths are below dir.
func (t tree) moved(dir string) tree {
	out := tree{}
	for name, e := range t {
		out[path.Join(dir, name)] = e
	}
	return out
}

// open returns the content of a file and its size. The caller must close the content.
func (e entry) open() (io.ReadCloser, int64, error) {
	if e.source == "" {
		return io.NopCloser(bytes.NewReader(e.data)), int64(len(e.data)), nil
	}
	f, err := os.Open(e.source)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

func (e entry) mode() int64 {
	if e.executable {
		return 0o755
	}
	return 0o644
}

// writeTar writes the tree and all parent directories as a tar archive in sorted order, owned by
// root, with the time mtime.
func (t tree) writeTar(w io.Writer, mtime time.Time) error {
	out := tar.NewWriter(w)
	written := map[string]bool{".": true}
	var directory func(dir string) error
	directory = func(dir string) error {
		if written[dir] {
			return nil
		}
		written[dir] = true
		if err := directory(path.Dir(dir)); err != nil {
			return err
		}
		return out.WriteHeader(directoryHeader(dir, 0o755, mtime))
	}
	for _, name := range t.paths() {
		if mode := t[name].directory; mode != 0 {
			written[name] = true
			if err := directory(path.Dir(name)); err != nil {
				return fmt.Errorf("writing directory of %s: %w", name, err)
			}
			if err := out.WriteHeader(directoryHeader(name, mode, mtime)); err != nil {
				return fmt.Errorf("writing %s: %w", name, err)
			}
			continue
		}
		if err := directory(path.Dir(name)); err != nil {
			return fmt.Errorf("writing directory of %s: %w", name, err)
		}
		if err := writeTarEntry(out, name, t[name], mtime); err != nil {
			return fmt.Errorf("writing %s: %w", name, err)
		}
	}
	return out.Close()
}

func directoryHeader(name string, mode int64, mtime time.Time) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode, ModTime: mtime, Uname: "root", Gname: "root"}
}

func writeTarEntry(out *tar.Writer, name string, e entry, mtime time.Time) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: e.mode(), ModTime: mtime, Uname: "root", Gname: "root"}
	if e.link != "" {
		header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, e.link, 0o777
		return out.WriteHeader(header)
	}
	content, size, err := e.open()
	if err != nil {
		return err
	}
	defer content.Close()
	header.Size = size
	if err := out.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(out, content)
	return err
}

// writeArchive writes the tree to file as a compressed tar archive with one directory, top, at its
// root.
func writeArchive(file, top string, t tree, mtime time.Time) error {
	return create(file, func(w io.Writer) error {
		zip := gzip.NewWriter(w) // without name and time
		if err := t.moved(top).writeTar(zip, mtime); err != nil {
			return err
		}
		return zip.Close()
	})
}

// create writes file with the content that write writes, and creates its directory.
func create(file string, write func(io.Writer) error) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("creating %s: %w", file, err)
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("creating %s: %w", file, err)
	}
	if err := write(f); err != nil {
		f.Close()
		return fmt.Errorf("writing %s: %w", file, err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	return nil
}

// copyFile copies a file, and sets its mode.
func copyFile(from, to string, mode os.FileMode) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("copying a file: %w", err)
	}
	if err := os.WriteFile(to, data, mode); err != nil {
		return fmt.Errorf("copying %s: %w", from, err)
	}
	// The umask does not apply to this mode.
	return os.Chmod(to, mode)
}

// sha256File returns the SHA-256 checksum of a file in hexadecimal.
func sha256File(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("computing a checksum: %w", err)
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", fmt.Errorf("computing the checksum of %s: %w", file, err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// writeChecksums writes the file SHA256SUMS of all files in dir, in the format of sha256sum.
func writeChecksums(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("listing the files of the release: %w", err)
	}
	var lines strings.Builder
	for _, f := range files {
		sum, err := sha256File(filepath.Join(dir, f.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%s  %s\n", sum, f.Name())
	}
	return create(filepath.Join(dir, "SHA256SUMS"), func(w io.Writer) error {
		_, err := io.WriteString(w, lines.String())
		return err
	})
}
