package process

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestChildren(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		want   int
	}{
		"exit 0":   {"exit 0", 0},
		"exit 7":   {"exit 7", 7},
		"SIGKILL":  {"kill -9 $$", 137},
		"SIGTERM":  {"kill -15 $$", 143},
		"exit 255": {"exit 255", 255},
	} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("/bin/sh", "-c", "read x; "+c.script)
		cmd.Stdin = r
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		r.Close()
		h, err := Open(cmd.Process.Pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		done := h.Done()
		select {
		case <-done:
			t.Errorf("%s: exited too early", name)
		default:
		}
		w.Close()
		<-done
		if got := h.Status(); got != (Status{c.want, true}) {
			t.Errorf("%s: got %+v", name, got)
		}
		if err := h.Signal(unix.SIGTERM); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: signal after the exit: %v", name, err)
		}
		if _, err := Open(cmd.Process.Pid, h.Start()); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: opened after the exit: %v", name, err)
		}
		h.Close()
	}
}

func TestChildOfOtherProcess(t *testing.T) {
	// The shell reaps its child only when its input is closed. Background commands have no standard
	// input, so the child reads from another descriptor.
	cmd := exec.Command("/bin/sh", "-c", `exec 3<&0; sh -c 'read x <&3; exit 9' & echo $!; wait $!; read y <&3; exit 0`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer in.Close()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	h, err := Open(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	done := h.Done()
	if _, err := in.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	<-done
	got := h.Status()
	if got != (Status{9, true}) && got != UnknownStatus { // older kernels do not always provide it
		t.Errorf("got %+v", got)
	}
	t.Logf("status is %+v", got)
}

func TestOtherProcess(t *testing.T) {
	start, err := StartTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(os.Getpid(), start+1); !errors.Is(err, ErrNotFound) {
		t.Errorf("a process with another start time: %v", err)
	}
	h, err := Open(os.Getpid(), start)
	if err != nil {
		t.Fatal(err)
	}
	done := h.Done()
	h.Close()
	<-done
	if h.Status() != UnknownStatus {
		t.Errorf("closed: %+v", h.Status())
	}
}

// TestZombie checks that Zombie detects an exited child by name until it is reaped.
func TestZombie(t *testing.T) {
	cmd := exec.Command("/bin/sh", "-c", "read x")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	if !slices.Contains(slices.Collect(Children()), pid) {
		t.Error("a running child is missing")
	}
	if name, ok := Zombie(pid); ok {
		t.Errorf("the running process %s is reported as zombie", name)
	}
	stdin.Close()
	// Wait for the exit without reaping the process.
	if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if name, ok := Zombie(pid); !ok || name != "sh" {
		t.Errorf("got %q, %v for an exited child", name, ok)
	}
	if !slices.Contains(slices.Collect(Children()), pid) {
		t.Error("an unreaped child is missing")
	}
	_ = cmd.Wait()
	if _, ok := Zombie(pid); ok || slices.Contains(slices.Collect(Children()), pid) {
		t.Error("a reaped child is listed")
	}
}
