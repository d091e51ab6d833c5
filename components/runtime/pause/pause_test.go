package pause

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"hyperkube/internal/testing/testwait"
)

func TestELF(t *testing.T) {
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		program, err := Program(arch)
		if err != nil {
			t.Fatal(err)
		}
		if len(program) > 1024 {
			t.Errorf("%s: %d bytes", arch, len(program))
		}
		f, err := elf.NewFile(bytes.NewReader(program))
		if err != nil {
			t.Fatal(err)
		}
		if f.Machine != machine || f.Type != elf.ET_EXEC || len(f.Progs) != 1 || f.Progs[0].Filesz != uint64(len(program)) {
			t.Errorf("%s: %+v", arch, f.FileHeader)
		}
	}
	if _, err := Program("sparc"); err == nil {
		t.Error("an unknown architecture has a program")
	}
}

// start runs the program for this machine.
func start(t *testing.T, attr *syscall.SysProcAttr, args ...string) *exec.Cmd {
	t.Helper()
	program, err := Program(runtime.GOARCH)
	if err != nil {
		t.Skip(err)
	}
	file := filepath.Join(t.TempDir(), "pause")
	if err := os.WriteFile(file, program, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(file, args...)
	cmd.SysProcAttr = attr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

// blocked waits until the process waits for signals.
func blocked(t *testing.T, pid int) {
	t.Helper()
	testwait.Until(t, "the program to wait", func() bool {
		data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		status := string(data)
		// More signals may be ignored, inherited from the parent of the test.
		_, rest, _ := strings.Cut(status, "SigIgn:\t")
		line, _, _ := strings.Cut(rest, "\n")
		ignored, err := strconv.ParseUint(line, 16, 64)
		const children = 1 << (syscall.SIGCHLD - 1)
		return err == nil && ignored&children != 0 && strings.Contains(status, "State:\tS")
	})
}

func TestSignals(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		cmd := start(t, nil)
		blocked(t, cmd.Process.Pid)
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
}

func TestFirstOfItsNamespaces(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for namespaces")
	}
	cmd := start(t, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}, t.TempDir())
	blocked(t, cmd.Process.Pid)
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/root", cmd.Process.Pid))
	if err != nil || len(entries) != 0 {
		t.Errorf("its root holds %v, %v", entries, err)
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", cmd.Process.Pid))
	if err != nil || strings.Count(string(mounts), "\n") != 1 {
		t.Errorf("its mounts are %q, %v", mounts, err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestNoRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for namespaces")
	}
	cmd := start(t, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}, "/no/such/directory")
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("ended with %v", err)
	}
}
