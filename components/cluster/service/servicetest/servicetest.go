// Package servicetest provides a fake systemd to tests.
package servicetest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Systemd is a fake systemd for tests: a program systemctl that records its calls, and empty directories in the place
// of /run and /etc/systemd/system.
type Systemd struct {
	dir string
}

// New hides /run and the units of this machine until the test ends, and puts a fake systemctl first in PATH. It skips
// the test without root or if it cannot mount. The test must not run in parallel.
func New(t *testing.T) *Systemd {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount")
	}
	const units = "/etc/systemd/system"
	if _, err := os.Stat(units); err != nil {
		t.Skip("needs a directory of units:", err)
	}
	for _, dir := range []string{"/run", units} {
		if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
			t.Skip("mounting:", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	}
	s := &Systemd{dir: t.TempDir()}
	script := "#!/bin/sh\necho \"$@\" >> " + s.dir + "/calls\ncase \"$*\" in" +
		" *MainPID*) cat " + s.dir + "/pid 2>/dev/null || echo 0;;" +
		" show*) echo etcd has exited;;" +
		" restart*) [ ! -e " + s.dir + "/stuck ] || exec sleep 100;; esac\n"
	if err := os.WriteFile(filepath.Join(s.dir, "systemctl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", s.dir+":"+os.Getenv("PATH"))
	return s
}

// Boot makes service.HasSystemd report that the machine runs systemd.
func (s *Systemd) Boot(t *testing.T) {
	t.Helper()
	if err := os.MkdirAll("/run/systemd/system", 0o755); err != nil {
		t.Fatal(err)
	}
}

// Block makes `systemctl restart` wait until its context is canceled.
func (s *Systemd) Block(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, "stuck"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// SetMainPID sets the PID of the main process of each unit; it is 0 by default.
func (s *Systemd) SetMainPID(t *testing.T, pid string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, "pid"), []byte(pid+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Calls returns the calls of systemctl since the last call of Calls, except `systemctl show`. Arguments are separated
// by underscores, without leading hyphens: "enable_now_hyperkube.service".
func (s *Systemd) Calls() []string {
	file := filepath.Join(s.dir, "calls")
	data, _ := os.ReadFile(file) // missing if there was no call
	_ = os.Remove(file)
	var calls []string
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "show") {
			calls = append(calls, strings.ReplaceAll(strings.ReplaceAll(line, " ", "_"), "--", ""))
		}
	}
	return calls
}
