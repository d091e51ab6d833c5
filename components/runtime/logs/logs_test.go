package logs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 5, time.UTC)

func TestSplitter(t *testing.T) {
	stamp := noon.Format(time.RFC3339Nano) + " stdout "
	long := strings.Repeat("x", maxLine)
	for name, c := range map[string]struct {
		chunks []string
		want   []string
	}{
		"lines":             {[]string{"a\nb\n"}, []string{"F a", "F b"}},
		"in pieces":         {[]string{"a", "b", "\n"}, []string{"F ab"}},
		"empty line":        {[]string{"\n"}, []string{"F "}},
		"no end":            {[]string{"a\nb"}, []string{"F a", "P b"}},
		"as long as can be": {[]string{long + "\n"}, []string{"F " + long}},
		"too long":          {[]string{long + "y\n"}, []string{"P " + long, "F y"}},
		"long in pieces":    {[]string{long, "y\n"}, []string{"P " + long, "F y"}},
		"much too long":     {[]string{"a" + long + long + "\nb\n"}, []string{"P a" + long[1:], "P " + long, "F x", "F b"}},
	} {
		s := newSplitter(Stdout)
		var got bytes.Buffer
		for _, chunk := range c.chunks {
			got.Write(s.Add(noon, []byte(chunk)))
		}
		got.Write(s.Flush(noon))
		want := stamp + strings.Join(c.want, "\n"+stamp) + "\n"
		if got.String() != want {
			t.Errorf("%s: got %.200q, want %.200q", name, got.String(), want)
		}
	}
}

func FuzzSplitter(f *testing.F) {
	f.Add([]byte("a\nb"), uint16(1))
	f.Add(bytes.Repeat([]byte("x"), maxLine+1), uint16(maxLine))
	f.Fuzz(func(t *testing.T, data []byte, size uint16) {
		s := newSplitter(Stderr)
		var back bytes.Buffer
		read := func(entries []byte) {
			for line := range bytes.Lines(entries) {
				words := bytes.SplitN(line, []byte(" "), 4)
				if len(words) != 4 || string(words[1]) != "stderr" {
					t.Fatalf("bad entry %q", line)
				}
				back.Write(bytes.TrimSuffix(words[3], []byte("\n")))
				if string(words[2]) == "F" {
					back.WriteByte('\n')
				}
			}
		}
		for rest := data; len(rest) > 0; {
			n := min(len(rest), int(size)+1)
			read(s.Add(noon, rest[:n]))
			rest = rest[n:]
		}
		read(s.Flush(noon))
		// Split lines are joined again, and no newlines are added.
		if got, want := back.Bytes(), data; !bytes.Equal(got, want) {
			t.Fatalf("got %.100q, want %.100q", got, want)
		}
	})
}

func FuzzPath(f *testing.F) {
	for _, s := range []string{"a/0.log", "../../etc/passwd", "/x", "a/../../b", "", ".", "\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		got := Path("/var/log/pods/p", name)
		if got != "" && !strings.HasPrefix(got, "/var/log/pods/p/") {
			t.Fatalf("%q leads to %q", name, got)
		}
	})
}

func TestCopyAndRotate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pod", "c", "0.log")
	log, err := Open(file, slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	r, w := io.Pipe()
	var hub Hub
	sub := hub.Subscribe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		Copy(r, Stdout, log, &hub)
	}()
	fmt.Fprintln(w, "one")
	buf := make([]byte, 10)
	if n, err := sub.Read(buf); err != nil || string(buf[:n]) != "one\n" {
		t.Errorf("attached: %q, %v", buf[:n], err)
	}
	if err := os.Rename(file, file+".1"); err != nil {
		t.Fatal(err)
	}
	if err := log.Reopen(); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(w, "two")
	w.Close()
	<-done
	if rest, err := io.ReadAll(sub); err != nil || string(rest) != "two\n" {
		t.Errorf("attached: %q, %v", rest, err)
	}
	if rest, err := io.ReadAll(hub.Subscribe()); err != nil || len(rest) != 0 {
		t.Errorf("attached too late: %q, %v", rest, err)
	}
	for name, want := range map[string]string{file + ".1": "one\n", file: "two\n"} {
		data, err := os.ReadFile(name)
		if err != nil || !strings.HasSuffix(string(data), " stdout F "+want) || strings.Count(string(data), "\n") != 1 {
			t.Errorf("%s is %q, %v", name, data, err)
		}
	}
}

func TestSlowReaderIsCutOff(t *testing.T) {
	var hub Hub
	sub := hub.Subscribe()
	for range maxUnread/(64<<10) + 1 {
		hub.write(make([]byte, 64<<10))
	}
	n, err := io.Copy(io.Discard, sub)
	if n != maxUnread || !errors.Is(err, ErrTooSlow) {
		t.Errorf("read %d bytes, %v", n, err)
	}
}

// TestReopenAfterClose checks that the log of an exited container is not opened again, because
// nothing would close it.
func TestReopenAfterClose(t *testing.T) {
	l, err := Open(filepath.Join(t.TempDir(), "0.log"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := l.Reopen(); !errors.Is(err, os.ErrClosed) || l.file != nil {
		t.Errorf("%v, %v", err, l.file)
	}
}
