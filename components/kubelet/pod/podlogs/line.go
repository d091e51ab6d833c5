// Package podlogs reads, follows and rotates the log files of containers in the CRI format: one
// record per line, with time, stream and tag before the text.
package podlogs

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"time"
)

// Line is one record of a container's log file in the CRI format: the time, the stream and a line of output or a
// part of one.
type Line struct {
	Time   time.Time
	Stream string // "stdout" or "stderr"
	// Partial means that the text continues in the next record of the stream.
	Partial bool
	// Text has no trailing newline. It aliases the parsed data.
	Text []byte
}

// ErrFormat is returned by Parse for data that is not a record of the CRI format.
var ErrFormat = errors.New("malformed container log record")

// Parse parses one record of a container log in CRI's format, with or without its trailing newline. It returns
// ErrFormat if raw is not one. The text of the result aliases raw.
func Parse(raw []byte) (Line, error) {
	var l Line
	raw = bytes.TrimSuffix(raw, []byte{'\n'})
	stamp, rest, ok := bytes.Cut(raw, []byte{' '})
	if !ok {
		return l, ErrFormat
	}
	t, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil {
		return l, ErrFormat
	}
	stream, rest, ok := bytes.Cut(rest, []byte{' '})
	if !ok {
		return l, ErrFormat
	}
	switch string(stream) {
	case "stdout", "stderr":
		l.Stream = string(stream)
	default:
		return l, ErrFormat
	}
	tags, text, ok := bytes.Cut(rest, []byte{' '})
	if !ok {
		// A record without text.
		tags, text = rest, nil
	}
	first, _, _ := bytes.Cut(tags, []byte{':'})
	switch string(first) {
	case "P":
		l.Partial = true
	case "F":
	default:
		return l, ErrFormat
	}
	l.Time, l.Text = t, text
	return l, nil
}

// Tail returns the text of the last records of the log file at path, at most the last lines records and the
// last most bytes. It returns "" if the file cannot be read. It is used as the termination message of a
// container without a message.
func Tail(path string, lines int, most int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	offset, err := tailOffset(f, int64(lines))
	if err != nil {
		return ""
	}
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	// A record has about 45 bytes before its text.
	if room := most + int64(lines+1)*64; info.Size()-offset > room {
		offset = info.Size() - room
	}
	raw := make([]byte, info.Size()-offset)
	n, _ := f.ReadAt(raw, offset)
	var out strings.Builder
	for _, one := range bytes.SplitAfter(raw[:n], []byte{'\n'}) {
		l, err := Parse(one)
		if err != nil {
			continue
		}
		out.Write(l.Text)
		if !l.Partial {
			out.WriteByte('\n')
		}
	}
	text := out.String()
	if int64(len(text)) > most {
		text = text[int64(len(text))-most:]
	}
	return text
}

// tailOffset returns the offset of the last n lines of f; 0 if there are fewer or n is negative.
func tailOffset(f *os.File, n int64) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if n < 0 {
		return 0, nil
	}
	end := info.Size()
	if n == 0 {
		return end, nil
	}
	const block = 4096
	buf := make([]byte, block)
	var found int64
	for pos := end; pos > 0; {
		size := min(int64(block), pos)
		pos -= size
		if _, err := f.ReadAt(buf[:size], pos); err != nil {
			return 0, err
		}
		for i := size - 1; i >= 0; i-- {
			if buf[i] != '\n' || pos+i == end-1 {
				continue
			}
			found++
			if found == n {
				return pos + i + 1, nil
			}
		}
	}
	return 0, nil
}
