package logs

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hyperkube/internal/testing/testisolate"
	"hyperkube/internal/testing/testwait"
)

// asCopier in the environment makes the test's program copy the streams in that directory.
const asCopier = "HYPERKUBE_TEST_AS_COPIER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(asCopier); dir != "" {
		if err := copyStreams(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testisolate.Main(m, testisolate.Mounts)
}

// copyStreams copies both streams of a directory to the log until they end.
func copyStreams(dir string) error {
	log, err := Open(filepath.Join(dir, "log"), slog.Default())
	if err != nil {
		return err
	}
	var copies sync.WaitGroup
	var hubs [2]Hub
	streams := []Stream{Stdout, Stderr}
	var spools [2]*Spool
	for i, stream := range streams {
		if spools[i], err = OpenSpool(filepath.Join(dir, string(stream)+".spool"), log); err != nil {
			return err
		}
	}
	for i, stream := range streams {
		f, err := openFIFO(filepath.Join(dir, string(stream)))
		if err != nil {
			return err
		}
		copies.Go(func() { spools[i].Copy(f, stream, log, &hubs[i]) })
	}
	copies.Wait()
	return nil
}

func openFIFO(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// TestSpoolKilled kills the process that copies two streams to a log repeatedly. The log has every byte of both,
// once and in order, and no torn entry.
func TestSpoolKilled(t *testing.T) {
	dir := t.TempDir()
	logFile := filepath.Join(dir, "log")
	want := map[string]*bytes.Buffer{}
	var writers sync.WaitGroup
	stop := make(chan struct{})
	for _, stream := range []string{"stdout", "stderr"} {
		path := filepath.Join(dir, stream)
		if err := unix.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
		// It outlives every copier.
		keep, err := openFIFO(path)
		if err != nil {
			t.Fatal(err)
		}
		defer keep.Close()
		w, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		written := &bytes.Buffer{}
		want[stream] = written
		writers.Go(func() {
			defer w.Close()
			random := rand.New(rand.NewPCG(1, uint64(len(stream))))
			for i := 0; ; i++ {
				text := fmt.Sprintln("line", i)
				switch random.IntN(8) {
				case 0:
					text = "the same\nthe same\nthe same\n"
				case 1:
					text = fmt.Sprint("part ", i, " ")
				case 2:
					text = strings.Repeat("long ", random.IntN(10000))
				}
				select {
				case <-stop:
					text = "the end" // of a line that has none
				default:
				}
				written.WriteString(text)
				if _, err := io.WriteString(w, text); err != nil {
					t.Error(err)
					return
				}
				if text == "the end" {
					return
				}
			}
		})
	}
	copier := func() *exec.Cmd {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), asCopier+"="+dir)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	size := func() int64 {
		info, err := os.Stat(logFile)
		if err != nil {
			return 0
		}
		return info.Size()
	}
	random := rand.New(rand.NewPCG(2, 2))
	for range 40 {
		until := size() + random.Int64N(100<<10)
		cmd := copier()
		testwait.Until(t, "the log to grow", func() bool { return size() > until })
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
	}
	close(stop)
	if err := copier().Wait(); err != nil {
		t.Fatal(err)
	}
	writers.Wait()
	data, err := os.ReadFile(logFile)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]*bytes.Buffer{"stdout": {}, "stderr": {}}
	for line := range strings.Lines(string(data)) {
		words := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		if len(words) != 4 || got[words[1]] == nil || words[2] != "F" && words[2] != "P" {
			t.Fatalf("bad entry %.100q", line)
		}
		if _, err := time.Parse(time.RFC3339Nano, words[0]); err != nil {
			t.Fatalf("bad entry %.100q", line)
		}
		got[words[1]].WriteString(words[3])
		if words[2] == "F" {
			got[words[1]].WriteByte('\n')
		}
	}
	for stream, b := range got {
		if w := want[stream].Bytes(); !bytes.Equal(b.Bytes(), w) {
			at := 0
			for at < min(len(w), b.Len()) && w[at] == b.Bytes()[at] {
				at++
			}
			t.Errorf("%s has %d bytes, want %d, and differs at %d: %.60q, want %.60q", stream, b.Len(), len(w), at, b.Bytes()[at:], w[at:])
		}
		info, err := os.Stat(filepath.Join(dir, stream+".spool"))
		if err != nil {
			t.Fatal(err)
		}
		if used := info.Sys().(*syscall.Stat_t).Blocks * 512; used > 256<<10 {
			t.Errorf("the spool of %s uses %d bytes", stream, used)
		}
	}
}

// TestSpoolMark verifies how a successor continues, by what the log has of the entries that the mark announces.
func TestSpoolMark(t *testing.T) {
	for name, c := range map[string]struct {
		log          string // after the entry "before\n"
		logged, size int64
	}{
		"not appended":           {"", 2, 7},
		"torn":                   {"ent", 2, 7},
		"appended":               {"entry\n", 6, 13},
		"appended, then another": {"entry\nother\n", 6, 19},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "log")
			if err := os.WriteFile(file, []byte("before\n"+c.log), 0o600); err != nil {
				t.Fatal(err)
			}
			log, err := Open(file, slog.Default())
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			path := filepath.Join(dir, "spool")
			s, err := OpenSpool(path, log)
			if err != nil {
				t.Fatal(err)
			}
			var st unix.Stat_t
			if err := unix.Stat(file, &st); err != nil {
				t.Fatal(err)
			}
			if err := s.note(mark{Before: 2, After: 6, Inode: st.Ino, Size: 7, Length: 6}); err != nil {
				t.Fatal(err)
			}
			if _, err := s.file.WriteAt([]byte("ab6789"), spoolContent+2); err != nil {
				t.Fatal(err)
			}
			s.file.Close()
			if s, err = OpenSpool(path, log); err != nil {
				t.Fatal(err)
			}
			s.file.Close()
			if s.logged != c.logged || s.end != 8 {
				t.Errorf("it continues at %d of %d, want %d of 8", s.logged, s.end, c.logged)
			}
			if info, err := os.Stat(file); err != nil || info.Size() != c.size {
				t.Errorf("the log is %v, %v", info.Size(), err)
			}
			// The other stream writes, and the successor is killed.
			log.write([]byte("entries of the other stream\n"))
			if s, err = OpenSpool(path, log); err != nil {
				t.Fatal(err)
			}
			s.file.Close()
			if s.logged != c.logged {
				t.Errorf("later it continues at %d, want %d", s.logged, c.logged)
			}
		})
	}
}

// newFIFO creates a FIFO in dir and returns both ends. The reading end is closed when the test ends.
func newFIFO(t *testing.T, dir string) (r, w *os.File) {
	t.Helper()
	path := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := openFIFO(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	w, err = os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return r, w
}

// TestSpoolFull verifies that a container's output gets into its log when the spool cannot be written.
func TestSpoolFull(t *testing.T) {
	dir := t.TempDir()
	log, err := Open(filepath.Join(dir, "log"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	fifo, w := newFIFO(t, dir)
	if _, err := io.WriteString(w, "one\ntwo"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	full, err := os.Open(os.DevNull) // not open for writing
	if err != nil {
		t.Fatal(err)
	}
	(&Spool{file: full}).Copy(fifo, Stdout, log, &Hub{})
	data, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil || strings.Count(string(data), "\n") != 2 || !strings.Contains(string(data), " stdout F one\n") || !strings.HasSuffix(string(data), " stdout P two\n") {
		t.Errorf("the log is %q, %v", data, err)
	}
}

// TestSpoolDeadline checks that output which is in the FIFO when the read deadline expires is logged, although another
// process keeps the FIFO open and Copy has not read before.
func TestSpoolDeadline(t *testing.T) {
	dir := t.TempDir()
	fifo, w := newFIFO(t, dir)
	defer w.Close()
	if _, err := io.WriteString(w, "the last\nlines"); err != nil {
		t.Fatal(err)
	}
	log, err := Open(filepath.Join(dir, "log"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	s, err := OpenSpool(filepath.Join(dir, "spool"), log)
	if err != nil {
		t.Fatal(err)
	}
	if err := fifo.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	s.Copy(fifo, Stdout, log, &Hub{})
	data, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil || !strings.Contains(string(data), " stdout F the last\n") || !strings.HasSuffix(string(data), " stdout P lines\n") {
		t.Errorf("the log is %q, %v", data, err)
	}
}
