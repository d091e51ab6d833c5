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
			t.Errorf("%s: ended too early", name)
		default:
		}
		w.Close()
		<-done
		if got := h.Status(); got != (Status{c.want, true}) {
			t.Errorf("%s: got %+v", name, got)
		}
		if err := h.Signal(unix.SIGTERM); !errors.Is(err, ErrGone) {
			t.Errorf("%s: a signal after the end: %v", name, err)
		}
		if _, err := Open(cmd.Process.Pid, h.Start()); !errors.Is(err, ErrGone) {
			t.Errorf("%s: opened after the end: %v", name, err)
		}
		h.Close()
	}
}

func TestAnothersChild(t *testing.T) {
	// The shell reaps its child only after it was told to. What runs in the
	// background has no standard input of its own, so it has another file.
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
	if got != (Status{9, true}) && got != Unknown { // older kernels cannot always tell
		t.Errorf("got %+v", got)
	}
	t.Logf("status is %+v", got)
}

func TestOtherProcess(t *testing.T) {
	start, err := StartTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(os.Getpid(), start+1); !errors.Is(err, ErrGone) {
		t.Errorf("a process of another start time: %v", err)
	}
	h, err := Open(os.Getpid(), start)
	if err != nil {
		t.Fatal(err)
	}
	done := h.Done()
	h.Close()
	<-done
	if h.Status() != Unknown {
		t.Errorf("given up: %+v", h.Status())
	}
}

// TestZombie holds that a child which ended is told from one that runs, by its
// name, until it is reaped.
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
		t.Error("a child that runs is not among the children")
	}
	if name, ok := Zombie(pid); ok {
		t.Errorf("%s, which runs, is called ended", name)
	}
	stdin.Close()
	// Waits for the end and leaves it to be reaped.
	if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if name, ok := Zombie(pid); !ok || name != "sh" {
		t.Errorf("got %q, %v of a child that ended", name, ok)
	}
	if !slices.Contains(slices.Collect(Children()), pid) {
		t.Error("a child that is not reaped is not among the children")
	}
	_ = cmd.Wait()
	if _, ok := Zombie(pid); ok || slices.Contains(slices.Collect(Children()), pid) {
		t.Error("a child is there after it was reaped")
	}
}
