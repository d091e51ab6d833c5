package pipe

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

// TestReader reads from a pipe that stays open. After the deadline, the reader returns what the pipe contains, but not
// what is written later.
func TestReader(t *testing.T) {
	file, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	defer w.Close()
	write := func(text string) {
		t.Helper()
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	r := NewReader(file)
	buf := make([]byte, 4)
	write("before")
	if n, err := r.Read(buf); err != nil || string(buf[:n]) != "befo" {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	write(strings.Repeat("x", 10))
	if err := file.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for {
		n, err := r.Read(buf)
		got.Write(buf[:n])
		if err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error(err)
			}
			break
		}
		if got.Len() == n { // after the first read
			write("later")
		}
	}
	if got.String() != "re"+strings.Repeat("x", 10) {
		t.Errorf("after the deadline: %q", got.String())
	}
}

// TestEnd checks that the end of the stream and a closed file are reported as by the file itself.
func TestEnd(t *testing.T) {
	file, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	if _, err := NewReader(file).Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	file.Close()
	if _, err := NewReader(file).Read(make([]byte, 1)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}
