package logs

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hyperkube/internal/testing/testdisk"
)

// TestFullDisk fills the disk of a container's log. The container goes on, clients that are attached
// receive everything, the error is logged once with the path, and after space is free the log
// continues with a complete line.
func TestFullDisk(t *testing.T) {
	for name, spoolOnDisk := range map[string]bool{"log": false, "log and spool": true} {
		t.Run(name, func(t *testing.T) {
			disk := testdisk.New(t)
			path := filepath.Join(disk.Path, "0.log")
			var logged bytes.Buffer
			log, err := Open(path, slog.New(slog.NewTextHandler(&logged, nil)))
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			dir := t.TempDir()
			fifo := filepath.Join(dir, "stdout")
			if err := unix.Mkfifo(fifo, 0o600); err != nil {
				t.Fatal(err)
			}
			r, err := openFIFO(fifo)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			w, err := os.OpenFile(fifo, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			if spoolOnDisk {
				dir = disk.Path
			}
			spool, err := OpenSpool(filepath.Join(dir, "stdout.spool"), log)
			if err != nil {
				t.Fatal(err)
			}
			var hub Hub
			attached := hub.Subscribe()
			done := make(chan struct{})
			go func() {
				defer close(done)
				spool.Copy(r, Stdout, log, &hub)
			}()
			// write writes lines and waits until they have been copied.
			total := 0
			write := func(count int) {
				t.Helper()
				var lines strings.Builder
				for range count {
					total++
					fmt.Fprintf(&lines, "line %d %s\n", total, strings.Repeat("x", total%300))
				}
				if _, err := io.WriteString(w, lines.String()); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(attached, make([]byte, lines.Len())); err != nil {
					t.Fatal(err)
				}
			}
			write(10)
			for blocks := range 4 {
				disk.Leave(testdisk.Space{Blocks: blocks})
				write(1)
				write(500)
				write(500)
				disk.Free()
				write(10)
			}
			w.Close()
			<-done
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			entry := regexp.MustCompile(`^\S+ stdout F line \d+ x*\n$`)
			last := ""
			for line := range strings.Lines(string(data)) {
				if !entry.MatchString(line) {
					t.Errorf("the log contains %q", line)
				}
				last = line
			}
			if !strings.Contains(last, fmt.Sprintf(" line %d ", total)) {
				t.Errorf("the last line is %q, want line %d", last, total)
			}
			if text := logged.String(); !strings.Contains(text, "no space left on device") || !strings.Contains(text, path) || strings.Count(text, "\n") > 8 {
				t.Errorf("logged: %s", text)
			}
		})
	}
}
