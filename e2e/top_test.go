package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hyperkube/internal/serving/metricshistory"
)

// pty is a pseudo-terminal on which a command runs. Its methods are safe for concurrent use.
type pty struct {
	file, slave *os.File
	mu          sync.Mutex
	said        strings.Builder
	done        chan struct{}
}

// newPTY opens a pseudo-terminal of 100 by 20 characters, and records what is written to it.
func newPTY(t *testing.T) *pty {
	t.Helper()
	file, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	n := 0
	if err := unix.IoctlSetPointerInt(int(file.Fd()), unix.TIOCSPTLCK, 0); err == nil {
		n, err = unix.IoctlGetInt(int(file.Fd()), unix.TIOCGPTN)
		if err != nil {
			t.Fatal(err)
		}
	}
	p := &pty{file: file, done: make(chan struct{})}
	if p.slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	p.resize(t, 100, 20)
	go func() {
		defer close(p.done)
		_, _ = io.Copy(p, file) // ends when the last descriptor of the other side is closed
	}()
	t.Cleanup(func() {
		p.slave.Close()
		<-p.done
	})
	return p
}

func (p *pty) resize(t *testing.T, width, height uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(p.file.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: height, Col: width}); err != nil {
		t.Fatal(err)
	}
}

// Write records what the command wrote.
func (p *pty) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.Write(b)
}

// press types text.
func (p *pty) press(t *testing.T, text string) {
	t.Helper()
	if _, err := p.file.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

// shows returns an error unless text was written since the last call that succeeded.
func (p *pty) shows(text string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !strings.Contains(p.said.String(), text) {
		return fmt.Errorf("the terminal does not show %q but %q", text, p.said.String())
	}
	p.said.Reset()
	return nil
}

// mode returns the mode of the terminal.
func (p *pty) mode(t *testing.T) unix.Termios {
	t.Helper()
	mode, err := unix.IoctlGetTermios(int(p.file.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *mode
}

// TestTop reads the history of metrics of a cluster as several users, and runs `hyperkube top` on a terminal.
func TestTop(t *testing.T) {
	t.Parallel()
	m := newNetworked(t, "198.18.61.1/24")
	m.hyperkube("up", "--root", m.root)
	m.apply(`
apiVersion: v1
kind: Pod
metadata: {name: busy}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: IMAGE, args: [hello]}]
`)
	m.kubectl("wait", "--for=condition=Ready", "pod/busy", "--timeout=60s")
	const api = "/apis/history.metrics.hyperkube.io/v1alpha1"
	m.eventually(90*time.Second, func() error {
		var pods metricshistory.List
		if err := json.Unmarshal([]byte(m.kubectl("get", "--raw", api+"/namespaces/default/pods?range=5m")), &pods); err != nil {
			return err
		}
		if len(pods.Items) != 1 || len(pods.Items[0].Series[metricshistory.CPU].Values) < 3 {
			return fmt.Errorf("got %+v", pods)
		}
		h := pods.Items[0]
		for _, metric := range []string{metricshistory.CPU, metricshistory.NetworkReceive, metricshistory.NetworkTransmit} {
			if v := h.Series[metric].Values[1]; !(v >= 0) {
				return fmt.Errorf("the rate of %s is %v", metric, h.Series[metric])
			}
		}
		if v := h.Series[metricshistory.Memory].Values[1]; !(v > 1e5) {
			return fmt.Errorf("the memory is %v", v)
		}
		return nil
	})
	for path, want := range map[string]string{
		"":                 `"kind":"ControlPlaneHistory"`,
		"/nodes?range=24h": `"filesystemUsed":{"values":[`,
		"/controlplanes":   `"databaseSize":{"values":[`,
		"/pods":            `"name":"kube-dns-`,
	} {
		if out := m.kubectl("get", "--raw", api+path); !strings.Contains(out, want) {
			t.Errorf("%s: %s is not in %s", path, want, out)
		}
	}
	// RBAC decides by namespace.
	m.kubectl("create", "rolebinding", "jane", "--clusterrole=view", "--user=jane")
	m.kubectl("get", "--raw", api+"/namespaces/default/pods", "--as=jane")
	m.fails("forbidden", "kubectl", "get", "--raw", api+"/namespaces/kube-system/pods", "--as=jane")
	m.fails("forbidden", "kubectl", "get", "--raw", api+"/nodes", "--as=jane")

	m.prints("busy", "top", "pods")
	m.prints("kube-dns-", "top", "pods", "-A", "--once")
	m.prints("MAXIMUM", "top", "busy")
	m.fails("no usage of a pod \"none\"", "top", "none")

	for end, quit := range map[string]func(p *pty, pid int) error{
		"q":       func(p *pty, _ int) error { _, err := p.file.WriteString("q"); return err },
		"SIGTERM": func(_ *pty, pid int) error { return syscall.Kill(pid, syscall.SIGTERM) },
		"SIGHUP":  func(_ *pty, pid int) error { return syscall.Kill(pid, syscall.SIGHUP) },
	} {
		p := newPTY(t)
		before := p.mode(t)
		cmd := m.command(m.binary, "top", "-A")
		cmd.Env = append(cmd.Env, "LANG=C.UTF-8", "LC_ALL=", "NO_COLOR=")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = p.slave, p.slave, p.slave
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		exited := make(chan error, 1)
		go func() { exited <- cmd.Wait() }()
		shows := func(text string) { m.eventually(30*time.Second, func() error { return p.shows(text) }) }
		shows("kube-dns-")
		p.press(t, "?")
		shows("select a namespace")
		p.press(t, "x\x1b[Bs")
		shows("sort: memory")
		p.press(t, "N")
		shows("requests/s")
		p.press(t, "\r")
		shows("Disk")
		p.resize(t, 50, 10)
		shows("\x1b[10;1H")
		if p.mode(t) == before {
			t.Errorf("%s: the terminal is not in raw mode", end)
		}
		if err := quit(p, cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-exited:
			if err != nil {
				t.Errorf("%s: %v", end, err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal(errors.Join(errors.New(end+": the command does not exit"), cmd.Process.Kill()))
		}
		shows("\x1b[?1049l")
		if p.mode(t) != before {
			t.Errorf("%s: the mode of the terminal is not restored", end)
		}
	}
}
