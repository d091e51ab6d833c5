package sink

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"hyperkube/components/logging/store"
)

// fileSender appends records to a file, one JSON object per line.
type fileSender struct {
	path  string
	limit int64
	file  *os.File
	size  int64
}

// newFile opens the file and removes an incomplete line at its end, which a killed process has left.
func newFile(path string, limit int64) (*fileSender, error) {
	if limit == 0 {
		limit = 100 << 20
	}
	f := &fileSender{path: path, limit: limit}
	if err := f.open(); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *fileSender) open() error {
	file, err := os.OpenFile(f.path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("opening file: %w", err)
	}
	size, err := completeSize(file)
	if err == nil {
		err = file.Truncate(size)
	}
	if err != nil {
		file.Close()
		return fmt.Errorf("opening file: %w", err)
	}
	f.file, f.size = file, size
	return nil
}

// completeSize returns the size of a file up to its last newline.
func completeSize(file *os.File) (int64, error) {
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}
	buf := make([]byte, 64<<10)
	for size > 0 {
		start := max(0, size-int64(len(buf)))
		n, err := file.ReadAt(buf[:size-start], start)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		if i := bytes.LastIndexByte(buf[:n], '\n'); i >= 0 {
			return start + int64(i) + 1, nil
		}
		size = start
	}
	return 0, nil
}

func (f *fileSender) close() {
	if f.file != nil {
		f.file.Close()
	}
	f.file, f.size = nil, 0
}

// send implements sender. The records are on the disk when it returns.
func (f *fileSender) send(_ context.Context, entries []store.Entry) (int, error) {
	if f.size >= f.limit {
		if err := os.Rename(f.path, f.path+".1"); err != nil {
			return 0, fmt.Errorf("rotating file: %w", err)
		}
		f.close()
	}
	if f.file == nil {
		if err := f.open(); err != nil {
			return 0, err
		}
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	for _, e := range entries {
		if err := enc.Encode(NewDocument(e)); err != nil {
			return 0, fmt.Errorf("encoding record: %w", err)
		}
	}
	_, err := f.file.WriteAt(buf.Bytes(), f.size)
	if err == nil {
		err = f.file.Sync()
	}
	if err != nil {
		return 0, errors.Join(fmt.Errorf("writing file: %w", err), f.file.Truncate(f.size))
	}
	f.size += int64(buf.Len())
	return 0, nil
}
