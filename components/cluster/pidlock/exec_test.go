package pidlock

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// execEnv is the environment variable with the path of the lock that TestExecProcess takes, and
// execFDEnv the one with the descriptor that it adopts.
const (
	execEnv   = "PIDLOCK_TEST_EXEC"
	execFDEnv = "PIDLOCK_TEST_FD"
)

// TestExec checks that a process keeps its lock while it executes another program, and that this
// program releases it.
func TestExec(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.pid")
	cmd := exec.Command(os.Args[0], "-test.run=^TestExecProcess$", "-test.v")
	cmd.Env = append(os.Environ(), execEnv+"="+path)
	cmd.Stderr = os.Stderr
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
	output := bufio.NewScanner(out)
	for _, word := range []string{"taken", "adopted"} {
		for output.Scan() && output.Text() != word {
			continue
		}
		if pid, err := Holder(path); pid != cmd.Process.Pid || err != nil {
			t.Errorf("%s: held by %d, %v, want %d", word, pid, err, cmd.Process.Pid)
		}
		fmt.Fprintln(in)
	}
	for output.Scan() && output.Text() != "released" {
		continue
	}
	if pid, err := Holder(path); pid != 0 || err != nil {
		t.Errorf("released: held by %d, %v", pid, err)
	}
	in.Close()
	for output.Scan() {
		continue
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// TestExecProcess is the process of TestExec. It prints each step and waits for a line of input.
func TestExecProcess(t *testing.T) {
	path := os.Getenv(execEnv)
	if path == "" {
		t.Skip("runs only as a part of TestExec")
	}
	step := func(word string) {
		fmt.Println(word)
		_, _ = os.Stdin.Read(make([]byte, 1)) // closed at the end of the test
	}
	fd, err := strconv.Atoi(os.Getenv(execFDEnv))
	if err != nil {
		lock, err := Acquire(path)
		if err != nil {
			t.Fatal(err)
		}
		step("taken")
		t.Fatal(lock.Exec("/proc/self/exe", os.Args, func(fd int) ([]string, error) {
			return append(os.Environ(), execFDEnv+"="+strconv.Itoa(fd)), nil
		}))
	}
	if _, err := Adopt(path+".other", fd); err == nil {
		t.Error("adopted the lock of another path")
	}
	lock, err := Adopt(path, fd)
	if err != nil {
		t.Fatal(err)
	}
	step("adopted")
	lock.Release()
	step("released")
}
