package collect

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"hyperkube/components/logging/settings"
	"hyperkube/components/logging/sink"
	"hyperkube/components/logging/store"
)

// childEnv is the environment variable with the directory of a test, for the processes that it kills. killsEnv is the number of kills of TestKill, 5 by
// default.
const (
	childEnv = "HYPERKUBE_TEST_LOG_AGENT"
	killsEnv = "HYPERKUBE_TEST_KILLS"
)

// child collects logs and sends them to a sink until it is killed.
func child(dir string) {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	s, err := store.Open(store.Config{Dir: filepath.Join(dir, "store"), Log: slog.New(slog.DiscardHandler)})
	fail(err)
	c, err := New(Config{
		Node: "n", PodLogs: filepath.Join(dir, "pods"), Store: s, Settings: func() *settings.Settings { return none },
		FlushInterval: 100 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
	})
	fail(err)
	w, err := sink.New(sink.Config{
		Settings: settings.Sink{Name: "test", Type: settings.Loki, URL: os.Getenv(childEnv + "_URL")}, Dir: dir, Store: s,
		FirstRetry: 10 * time.Millisecond, LastRetry: 100 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
	})
	fail(err)
	fmt.Println("ready")
	go func() { fail(w.Run(context.Background())) }()
	fail(c.Run(context.Background()))
}

var none = &settings.Settings{}

// server is a sink that counts the numbers it receives. It loses every tenth acknowledgement.
type server struct {
	mu       sync.Mutex
	count    map[int]int
	requests int
	changed  chan struct{}
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	z, err := gzip.NewReader(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	body, err := io.ReadAll(z)
	if err != nil {
		return // the client was killed
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, part := range bytes.Split(body, []byte(`"number `))[1:] {
		n, err := strconv.Atoi(string(part[:8]))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		s.count[n]++
	}
	s.requests++
	if s.requests%10 == 0 {
		w.WriteHeader(http.StatusBadGateway)
	}
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// writer writes numbered lines in the format of the CRI at a rate, and rotates the file like the kubelet.
type writer struct {
	dir    string
	file   *os.File
	size   int64
	number int
	stamp  int
}

func (w *writer) open() error {
	f, err := os.OpenFile(filepath.Join(w.dir, "0.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	w.file, w.size = f, 0
	return err
}

// write writes about size bytes.
func (w *writer) write(size int) error {
	var b bytes.Buffer
	for b.Len() < size {
		fmt.Fprintf(&b, "%s stdout F number %08d %s\n", time.Now().UTC().Format(time.RFC3339Nano), w.number, strings.Repeat("x", 50))
		w.number++
	}
	n, err := w.file.Write(b.Bytes())
	w.size += int64(n)
	return err
}

// rotate renames the file, and compresses the ones that were rotated before. It keeps all, so that nothing is lost while the agent does not run.
func (w *writer) rotate() error {
	path := filepath.Join(w.dir, "0.log")
	old, err := filepath.Glob(path + ".*[0-9]")
	if err != nil {
		return err
	}
	for _, name := range old {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		var b bytes.Buffer
		z, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
		if err != nil {
			return err
		}
		_, err = z.Write(data)
		if err := errors.Join(err, z.Close(), os.WriteFile(name+".tmp", b.Bytes(), 0o640), os.Rename(name+".tmp", name+".gz"), os.Remove(name)); err != nil {
			return err
		}
	}
	w.stamp++
	err = os.Rename(path, fmt.Sprintf("%s.20261128-%06d", path, w.stamp))
	return errors.Join(err, w.file.Close(), w.open())
}

// run writes 5 MB per second until ctx is done.
func (w *writer) run(ctx context.Context) error {
	const rate, interval = 5_000_000, 20 * time.Millisecond
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	began, written := time.Now(), 0
	for {
		select {
		case <-ctx.Done():
			return w.file.Close()
		case <-ticker.C:
		}
		due := int(time.Since(began).Seconds()*rate) - written
		if err := w.write(due); err != nil {
			return err
		}
		written += due
		if w.size > 8<<20 {
			if err := w.rotate(); err != nil {
				return err
			}
		}
	}
}

// TestKill kills the process that collects and sends logs repeatedly, while a container writes 5 MB/s of numbered lines and its log is rotated. The store
// has every line exactly once, and the sink at least once.
func TestKill(t *testing.T) {
	kills := 5
	if text := os.Getenv(killsEnv); text != "" {
		var err error
		if kills, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	w := &writer{dir: filepath.Join(dir, "pods/ns_pod_uid/c")}
	if err := errors.Join(os.MkdirAll(w.dir, 0o755), w.open()); err != nil {
		t.Fatal(err)
	}
	received := &server{count: map[int]int{}, changed: make(chan struct{}, 1)}
	web := httptest.NewServer(received)
	defer web.Close()
	start := func() *exec.Cmd {
		t.Helper()
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+dir, childEnv+"_URL="+web.URL)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
			t.Fatalf("%q, %v", line, err)
		}
		return cmd
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	written := make(chan error, 1)
	go func() { written <- w.run(ctx) }()
	for i := range kills {
		cmd := start()
		// The process is killed at a different point of its work each time.
		time.Sleep(time.Duration(100+i*37%400) * time.Millisecond)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
	}
	cancel()
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	cmd := start()
	timeout := time.After(2 * time.Minute)
	for complete := false; !complete; {
		select {
		case <-received.changed:
		case <-timeout:
			complete = true // fails below
		}
		received.mu.Lock()
		complete = complete || len(received.count) == w.number
		received.mu.Unlock()
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	received.mu.Lock()
	defer received.mu.Unlock()
	missing, repeated := 0, 0
	for n := range w.number {
		if received.count[n] == 0 {
			missing++
		}
		repeated += max(0, received.count[n]-1)
	}
	t.Logf("%d kills, %d lines: the sink has received %d lines again (%.2f %%)", kills, w.number, repeated, 100*float64(repeated)/float64(w.number))
	if missing > 0 {
		t.Errorf("the sink has not received %d of %d lines", missing, w.number)
	}
	s, err := store.Open(store.Config{Dir: filepath.Join(dir, "store"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	next := 0
	if _, err := s.Search(t.Context(), store.Query{}, func(e store.Entry) bool {
		if want := fmt.Sprintf("number %08d ", next); !strings.HasPrefix(string(e.Text), want) {
			t.Errorf("%.20q in the store, want %q", e.Text, want)
			return false
		}
		next++
		return true
	}); err != nil || next != w.number {
		t.Errorf("%d of %d lines are in the store, %v", next, w.number, err)
	}
}
