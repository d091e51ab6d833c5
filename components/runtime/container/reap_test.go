package container

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"hyperkube/internal/testing/testwait"
)

// TestReapLaunchers checks that the processes of failed starts are reaped, and no others.
func TestReapLaunchers(t *testing.T) {
	program, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	var stats []string
	for _, name := range []string{"runc:[2:INIT]", "another"} {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, program, 0o700); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(file)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = cmd.Wait() }()
		stat := filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "stat")
		testwait.Until(t, "a program to end", func() bool {
			data, err := os.ReadFile(stat)
			if err != nil {
				t.Fatal(err)
			}
			return strings.Contains(string(data), ") Z ")
		})
		stats = append(stats, stat)
	}
	reapLaunchers()
	if _, err := os.Stat(stats[0]); !os.IsNotExist(err) {
		t.Errorf("what a start has left is still there: %v", err)
	}
	if _, err := os.Stat(stats[1]); err != nil {
		t.Errorf("another child was reaped: %v", err)
	}
}
