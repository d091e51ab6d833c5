package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMainProgramIsFreeOfLibcontainer checks that the main program does not import libcontainer.
// Otherwise libcontainer would run the initialization of the whole program for every container.
func TestMainProgramIsFreeOfLibcontainer(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "hyperkube").Output()
	if err != nil {
		t.Skip("the main program cannot be listed:", err)
	}
	for line := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(line, "github.com/opencontainers/runc") || line == "hyperkube/components/runtime" {
			t.Errorf("the main program imports %s", line)
		}
	}
}

func TestSealed(t *testing.T) {
	f, err := unpack()
	if errors.Is(err, ErrNotBuilt) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if want := unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE; err != nil || seals&want != want {
		t.Errorf("seals are %x, %v", seals, err)
	}
	if _, err := f.WriteAt([]byte("x"), 0); err == nil {
		t.Error("the program was changed")
	}
}

func TestStart(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	o := Options{LogFile: filepath.Join(dir, "log", "l"), PIDFile: filepath.Join(dir, "run", "p"), Args: []string{"--no-such-flag"}}
	_, err := Start(context.Background(), o)
	if errors.Is(err, ErrNotBuilt) {
		t.Skip(err)
	}
	if err == nil || !strings.Contains(err.Error(), "no-such-flag") {
		t.Fatalf("a bad start: %v", err)
	}
	// The test must not change the host's network. The runtime can serve without network changes.
	o.Args = []string{"--root", dir + "/root", "--state", dir + "/state", "--socket", dir + "/sock", "--pod-cidr", "10.201.9.0/24", "--link-prefix", "hkt",
		"--journal", dir + "/journal", "--registry-config", ""}
	if os.Getenv("HYPERKUBE_TEST_APART") == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestStart$", "-test.v")
		cmd.Env = append(os.Environ(), "HYPERKUBE_TEST_APART=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	pid, err := Start(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = unix.Kill(pid, unix.SIGTERM)
		var status unix.WaitStatus
		if _, err := unix.Wait4(pid, &status, 0, nil); err != nil || status.ExitStatus() != 0 {
			t.Errorf("it ended %v, %v", status, err)
		}
		// It is a mount unless the directory was on a tmpfs already.
		_ = unix.Unmount(dir+"/state", unix.MNT_DETACH)
	}()
	if text, err := os.ReadFile(o.PIDFile); err != nil || strings.TrimSpace(string(text)) != fmt.Sprint(pid) {
		t.Errorf("the PID file says %q, %v", text, err)
	}
	if sid, err := unix.Getsid(pid); err != nil || sid != pid {
		t.Errorf("its session is %d, %v", sid, err)
	}
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(groups)) {
		if !strings.HasSuffix(line, ":/\n") {
			t.Errorf("it is in cgroup %s", line)
		}
	}
	if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err != nil || !strings.HasPrefix(string(name), "hyperkube-runtime\x00") {
		t.Errorf("it is called %q, %v", name, err)
	}
	if _, err := Start(context.Background(), o); err == nil || !strings.Contains(err.Error(), "another container runtime") {
		t.Errorf("a second one: %v", err)
	}
}
