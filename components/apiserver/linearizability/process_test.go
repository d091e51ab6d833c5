package linearizability

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"hyperkube/internal/testing/testnetns"
)

// process is a child process that is restarted whenever it exits, as by a service manager.
type process struct {
	t    testing.TB
	name string
	// namespace is the network namespace. Nil means that of the test.
	namespace *testnetns.Namespace
	env       string
	output    string
	// mayExit are error messages with which the process may exit.
	mayExit []string
	// exits counts how often the process has exited, and restart is the pause afterwards.
	exits   atomic.Int64
	restart atomic.Int64

	mu      sync.Mutex
	running *os.Process
	stopped bool
}

// startProcess starts a process that is stopped at the end of the test. Its log is printed if the
// test fails.
func startProcess(t testing.TB, namespace *testnetns.Namespace, c child, mayExit ...string) *process {
	t.Helper()
	config, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, name: c.Name, namespace: namespace, env: childEnv + "=" + string(config), output: filepath.Join(t.TempDir(), c.Name+".log"), mayExit: mayExit}
	p.restart.Store(int64(100 * time.Millisecond))
	done, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		// The child must be killed when this process exits. That depends on the thread that started it.
		runtime.LockOSThread()
		for p.runOnce() {
			select {
			case <-time.After(time.Duration(p.restart.Load())):
			case <-stop:
				return
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		p.mu.Lock()
		p.stopped = true
		p.mu.Unlock()
		p.kill(0)
		<-done
		if t.Failed() {
			p.print()
		}
	})
	return p
}

// runOnce runs the process until it exits. It returns false if the process must not be restarted.
func (p *process) runOnce() bool {
	out, err := os.OpenFile(p.output, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Error(err)
		return false
	}
	defer out.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), p.env)
	cmd.Stderr = out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := false
	start := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.stopped {
			return
		}
		if err := cmd.Start(); err != nil {
			p.t.Error(err)
			return
		}
		p.running, started = cmd.Process, true
	}
	if p.namespace == nil {
		start()
	} else {
		p.namespace.Run(start)
	}
	if !started {
		return false
	}
	offset, _ := out.Seek(0, io.SeekCurrent)
	_ = cmd.Wait()
	if !killed(cmd.ProcessState) {
		p.check(offset)
	}
	p.exits.Add(1)
	return true
}

func killed(state *os.ProcessState) bool {
	status, ok := state.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// check checks that the process has exited with an error that it may exit with. Its log begins at the
// offset.
func (p *process) check(offset int64) {
	text, err := os.ReadFile(p.output)
	if err != nil {
		p.t.Error(err)
		return
	}
	log := string(text[min(offset, int64(len(text))):])
	for _, reason := range p.mayExit {
		if strings.Contains(log, reason) && !strings.Contains(log, "\ngoroutine ") {
			return
		}
	}
	p.t.Errorf("%s exited:\n%s", p.name, log)
}

// kill kills the process, which starts again after a pause.
func (p *process) kill(restart time.Duration) {
	p.restart.Store(int64(restart))
	p.signal(syscall.SIGKILL)
}

// pause stops the process for a while without killing it.
func (p *process) pause(length time.Duration) {
	p.signal(syscall.SIGSTOP)
	time.Sleep(length)
	p.signal(syscall.SIGCONT)
}

func (p *process) signal(s os.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running != nil {
		_ = p.running.Signal(s) // it may have exited
	}
}

// print prints the end of the process's log.
func (p *process) print() {
	text, err := os.ReadFile(p.output)
	lines := strings.Split(string(text), "\n")
	p.t.Logf("%s (%v):\n%s", p.name, err, strings.Join(lines[max(0, len(lines)-40):], "\n"))
}
