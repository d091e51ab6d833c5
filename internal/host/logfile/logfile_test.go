package logfile

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// childEnv makes TestChild the process whose log is rotated, with the arguments in the variable.
const childEnv = "LOGFILE_TEST_CHILD"

// TestChild is not a test of its package: it is the process that the other tests start.
func TestChild(t *testing.T) {
	path, ok := os.LookupEnv(childEnv)
	if !ok {
		t.Skip("started by other tests")
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	w := Stderr(path, Limits{Size: 1000, Age: time.Hour, Kept: 2})
	if f, ok := w.(*File); ok {
		f.now, f.created = func() time.Time { return now }, now
	}
	for i := range 100 {
		if _, err := fmt.Fprintf(w, "line %03d with some text that fills the file\n", i); err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(2 * time.Hour)
	fmt.Fprintln(w, "after two hours")
	fmt.Println("standard output")
	panic("a crash")
}

// run runs TestChild with its output in a file, whose path is passed if it is not empty.
func run(t *testing.T, log, path string) {
	t.Helper()
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command(os.Args[0], "-test.run=^TestChild$")
	cmd.Env = append(os.Environ(), childEnv+"="+path)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err == nil {
		t.Fatal("the process did not crash")
	}
}

// files returns the contents of all files in a directory, by name.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		out[e.Name()] = string(data)
	}
	return out
}

func TestRotation(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "x.log")
	for _, name := range []string{"x.log.20250101-000000.000000", "x.log.20250101-000001.000000", "x.log.old", "x.log.backup-of-today"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run(t, log, log)
	got := files(t, dir)
	var rotated []string
	for name, text := range got {
		if strings.HasPrefix(name, "x.log.2026") {
			rotated = append(rotated, name)
			if len(text) > 1000 {
				t.Errorf("%s has %d bytes", name, len(text))
			}
		}
	}
	slices.Sort(rotated)
	if len(got) != 5 || len(rotated) != 2 || rotated[1] != "x.log.20260102-050405.000000" || got["x.log.old"] != "" {
		t.Fatalf("files %v", slices.Sorted(maps.Keys(got)))
	}
	if last := got[rotated[1]]; !strings.Contains(last, "line 099") {
		t.Errorf("the last rotated file contains %q", last)
	}
	for _, want := range []string{"after two hours\n", "standard output\n", "panic: a crash"} {
		if !strings.Contains(got["x.log"], want) {
			t.Errorf("the log does not contain %q: %q", want, got["x.log"])
		}
	}
}

// TestLines checks that no line is lost or split.
func TestLines(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "x.log")
	run(t, log, log)
	got := files(t, dir)
	text := ""
	for _, name := range slices.Sorted(maps.Keys(got)) { // x.log is the first one
		text += got[name]
	}
	lines := 0
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "line ") {
			lines++
			if len(line) != len("line 000 with some text that fills the file\n") {
				t.Errorf("line %q", line)
			}
		}
	}
	// Two files are kept: one with 22 lines, and the last one.
	if lines != 34 {
		t.Errorf("%d lines in %v", lines, got)
	}
}

// TestFileOfUser checks that a file that is not the log is not rotated.
func TestFileOfUser(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "x.log")
	run(t, log, filepath.Join(dir, "other.log"))
	if got := files(t, dir); len(got) != 1 || !strings.Contains(got["x.log"], "line 000") || !strings.Contains(got["x.log"], "line 099") {
		t.Errorf("files %v", got)
	}
}

// TestFailure checks that the log continues if it cannot be rotated.
func TestFailure(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "x.log")
	if err := os.Mkdir(log+".new", 0o700); err != nil {
		t.Fatal(err)
	}
	run(t, log, log)
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "rotating log"); n != 1 || !strings.Contains(string(text), "line 099") {
		t.Errorf("%d errors in %s", n, text)
	}
}
