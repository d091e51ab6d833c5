package follow

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"hyperkube/components/logging/record"
)

// logFile is a log file in a listing of a directory.
type logFile struct {
	path       string
	generation uint64 // number of restarts of the container
	rotated    string // sorts the rotated files of a generation; empty for the file that is written to
	compressed bool
}

// order compares files by age. The file that is written to is the newest of its generation.
func (f logFile) order(g logFile) int {
	if c := cmp.Compare(f.generation, g.generation); c != 0 {
		return c
	}
	if (f.rotated == "") != (g.rotated == "") {
		if f.rotated == "" {
			return 1
		}
		return -1
	}
	return cmp.Compare(f.rotated, g.rotated)
}

// containerFile matches the names of log files of containers: RESTARTS.log, rotated and compressed files.
var containerFile = regexp.MustCompile(`^(\d+)\.log(?:\.(\d{8}-\d{6}))?(\.gz)?$`)

// containerFiles returns the log files of a container, oldest first.
func containerFiles(dir string) ([]logFile, error) {
	return list(dir, func(name string) (logFile, bool) {
		m := containerFile.FindStringSubmatch(name)
		if m == nil || m[2] == "" && m[3] != "" {
			return logFile{}, false
		}
		generation, err := strconv.ParseUint(m[1], 10, 64)
		return logFile{generation: generation, rotated: m[2], compressed: m[3] != ""}, err == nil
	})
}

// rotatedTime matches the suffix of rotated files of the processes of hyperkube, see package logfile.
var rotatedTime = regexp.MustCompile(`^\.\d{8}-\d{6}\.\d{6}$`)

// nodeFiles returns the log files with the base name in a directory, oldest first: NAME.log, NAME.log.TIME as package logfile names rotated files, and
// rotated files as logrotate names them: NAME.log.1 is newer than NAME.log.2, and NAME.log-DATE.
func nodeFiles(dir, base string) ([]logFile, error) {
	return list(dir, func(name string) (logFile, bool) {
		rest, ok := strings.CutPrefix(name, base+".log")
		if !ok {
			return logFile{}, false
		}
		rest, compressed := strings.CutSuffix(rest, ".gz")
		switch {
		case rest == "" && !compressed:
			return logFile{}, true
		case rotatedTime.MatchString(rest):
			return logFile{rotated: rest, compressed: compressed}, true
		case strings.HasPrefix(rest, "."):
			n, err := strconv.ParseUint(rest[1:], 10, 32)
			return logFile{rotated: fmt.Sprintf("%010d", 1<<32-1-n), compressed: compressed}, err == nil
		case strings.HasPrefix(rest, "-"):
			return logFile{rotated: rest, compressed: compressed}, true
		}
		return logFile{}, false
	})
}

// list returns the files of dir that parse accepts, oldest first. If a file exists with and without compression, it returns the one without.
func list(dir string, parse func(name string) (logFile, bool)) ([]logFile, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []logFile
	for _, e := range entries {
		if f, ok := parse(e.Name()); ok && !e.IsDir() {
			f.path = filepath.Join(dir, e.Name())
			out = append(out, f)
		}
	}
	slices.SortFunc(out, func(a, b logFile) int {
		return cmp.Or(a.order(b), cmp.Compare(len(a.path), len(b.path)))
	})
	return slices.CompactFunc(out, func(a, b logFile) bool { return a.order(b) == 0 }), nil
}

// fingerprintLen is the number of bytes at the beginning of a file that identify it. They contain the time of the first record.
const fingerprintLen = 256

// fingerprint returns the identity of a file that begins with the bytes in head.
func fingerprint(generation uint64, head []byte) record.FileID {
	head = head[:min(len(head), fingerprintLen)]
	if len(head) == 0 {
		return record.FileID{Generation: generation}
	}
	h := fnv.New64a()
	_, _ = h.Write(head) // a hash returns no errors
	return record.FileID{Generation: generation, Hash: h.Sum64(), HashLen: uint32(len(head))}
}

// is reports whether a file that begins with the bytes in head, at least fingerprintLen unless it is shorter, is the file id.
func is(id record.FileID, generation uint64, head []byte) bool {
	return id.Generation == generation && id.HashLen > 0 && len(head) >= int(id.HashLen) && fingerprint(generation, head[:id.HashLen]) == id
}

// openFile is a log file that is open for reading.
type openFile struct {
	logFile
	file   *os.File
	id     record.FileID
	head   []byte       // the first bytes, at most fingerprintLen
	offset int64        // of the next line, in the uncompressed file
	gz     *gzip.Reader // if the file is compressed
	rest   []byte       // uncompressed bytes from offset on that are no complete line
	inode  inode
}

// inode identifies a file as long as it is open.
type inode struct{ dev, ino uint64 }

// inodeOf returns the inode of an open file.
func inodeOf(f *os.File) (inode, int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return inode{}, 0, fmt.Errorf("inspecting log: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return inode{}, 0, fmt.Errorf("%s is not a regular file", f.Name())
	}
	return inode{uint64(st.Dev), st.Ino}, st.Size, nil //nolint:unconvert // the type depends on the architecture
}

// open opens a log file.
func open(l logFile) (*openFile, error) {
	f, err := os.OpenFile(l.path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	o := &openFile{logFile: l, file: f}
	if o.inode, _, err = inodeOf(f); err != nil {
		f.Close()
		return nil, err
	}
	if l.compressed {
		if o.gz, err = gzip.NewReader(f); err != nil {
			f.Close()
			return nil, fmt.Errorf("reading compressed log: %w", err)
		}
	}
	if err := o.readHead(); err != nil {
		f.Close()
		return nil, err
	}
	return o, nil
}

func (o *openFile) close() { o.file.Close() }

// readHead reads the first bytes of the file, as far as they exist, and updates the identity.
func (o *openFile) readHead() error {
	head := make([]byte, fingerprintLen)
	var n int
	var err error
	if o.gz != nil {
		n, err = io.ReadFull(o.gz, head)
		o.rest = append([]byte(nil), head[:n]...)
	} else {
		n, err = o.file.ReadAt(head, 0)
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("reading the beginning of a log: %w", err)
	}
	o.head = head[:n]
	o.id = fingerprint(o.generation, o.head)
	return nil
}

// seek sets the offset of a file whose next line has been read up to offset.
func (o *openFile) seek(offset int64) error {
	if o.gz == nil {
		o.offset = offset
		return nil
	}
	skip := offset - int64(len(o.rest))
	if skip < 0 {
		o.rest = o.rest[offset:]
	} else {
		o.rest = nil
		if _, err := io.CopyN(io.Discard, o.gz, skip); err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("reading compressed log: %w", err)
		}
	}
	o.offset = offset
	return nil
}

// read returns the next complete lines, at most as many as fit into buf, and their offset. A line that is longer than buf is returned in parts. At
// the end of the file, data is empty. With last, it also returns an incomplete line at the end. data is valid until the next call.
func (o *openFile) read(buf []byte, last bool) (data []byte, at int64, err error) {
	if o.gz == nil && len(o.head) < fingerprintLen {
		// The file has grown since.
		if err := o.readHead(); err != nil {
			return nil, 0, err
		}
	}
	var n int
	if o.gz != nil {
		n = copy(buf, o.rest)
		var m int
		m, err = io.ReadFull(o.gz, buf[n:])
		n += m
	} else {
		n, err = o.file.ReadAt(buf, o.offset)
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, 0, fmt.Errorf("reading log: %w", err)
	}
	end := 1 + bytes.LastIndexByte(buf[:n], '\n')
	if end == 0 && n == len(buf) || last && n < len(buf) {
		end = n
	}
	if o.gz != nil {
		o.rest = append(o.rest[:0], buf[end:n]...)
	}
	at = o.offset
	o.offset += int64(end)
	return buf[:end], at, nil
}
