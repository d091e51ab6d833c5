//go:build cgo

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/internal/testing/testwait"
)

func TestExecSync(t *testing.T) {
	n := newNode(t).imported()
	pod := n.run(n.pod("exec"))
	id := n.startContainer(pod, shell("c", "sleep 1000", func(c *runtimeapi.ContainerConfig) {
		c.Linux.SecurityContext.RunAsUser = &runtimeapi.Int64Value{Value: 1000}
		c.Envs = []*runtimeapi.KeyValue{{Key: "BOTH", Value: []byte("pod")}}
		c.WorkingDir = "/tmp"
	}))
	got, err := n.exec(id, 60, "sh", "-c", "id -u; id -g; id -G; pwd; echo $FROM $BOTH $HOSTNAME; echo err >&2; exit 4")
	if err != nil {
		t.Fatal(err)
	}
	if want := "1000\n1001\n1001 1002\n/tmp\nimage pod exec\n"; string(got.Stdout) != want || string(got.Stderr) != "err\n" || got.ExitCode != 4 {
		t.Errorf("got %q, %q, %d", got.Stdout, got.Stderr, got.ExitCode)
	}
	if _, err := n.exec(id, 1, "sleep", "1000"); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a timeout is %v", err)
	}
	if _, err := n.exec(id, 60, "no-such-command"); err == nil || !strings.Contains(err.Error(), `executable file not found in $PATH`) {
		t.Errorf("no command is %v", err)
	}
	if got, err := n.exec(id, 60, "sh", "-c", "yes | head -c 20000000"); err != nil || len(got.Stdout) != 7<<20 {
		t.Errorf("much output is %d bytes, %v", len(got.GetStdout()), err)
	}
	if got, err := n.exec(id, 60, "sh", "-c", "sleep 1000 & echo started"); err != nil || string(got.Stdout) != "started\n" {
		t.Errorf("leaving a child: %q, %v", got.GetStdout(), err)
	}
	if _, err := n.exec("0000", 1, "true"); status.Code(err) != codes.NotFound {
		t.Errorf("no container is %v", err)
	}
}

// stream runs a command or attaches through a URL returned by the runtime.
func stream(t *testing.T, address string, o remotecommand.StreamOptions) error {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	e, err := remotecommand.NewSPDYExecutor(&rest.Config{Host: u.Host}, http.MethodPost, u)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	return e.StreamWithContext(ctx, o)
}

type sizes chan remotecommand.TerminalSize

func (s sizes) Next() *remotecommand.TerminalSize {
	size, ok := <-s
	if !ok {
		return nil
	}
	return &size
}

func TestStreams(t *testing.T) {
	n := newNode(t).imported()
	ctx := context.Background()
	pod := n.run(n.pod("streams"))
	id := n.startContainer(pod, shell("c", "mkdir /www; echo hello > /www/index.html; exec httpd -f -p 80 -h /www"))
	t.Run("exec", func(t *testing.T) {
		resp, err := n.Exec(ctx, &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"sh", "-c", "cat; echo e >&2; exit 5"}, Stdin: true, Stdout: true, Stderr: true})
		if err != nil {
			t.Fatal(err)
		}
		var out, errs bytes.Buffer
		err = stream(t, resp.Url, remotecommand.StreamOptions{Stdin: strings.NewReader("given\n"), Stdout: &out, Stderr: &errs})
		if err == nil || !strings.Contains(err.Error(), "command terminated with exit code 5") {
			t.Errorf("ended with %v", err)
		}
		if out.String() != "given\n" || errs.String() != "e\n" {
			t.Errorf("got %q and %q", out.String(), errs.String())
		}
		if err := stream(t, resp.Url, remotecommand.StreamOptions{Stdout: io.Discard}); err == nil {
			t.Error("a token served twice")
		}
	})
	t.Run("terminal", func(t *testing.T) {
		resp, err := n.Exec(ctx, &runtimeapi.ExecRequest{ContainerId: id, Tty: true, Stdin: true, Stdout: true,
			Cmd: []string{"sh", "-c", "while [ \"$(stty size)\" != \"33 44\" ]; do sleep 0.01; done; read x; echo got $x; test -t 0 && echo tty"}})
		if err != nil {
			t.Fatal(err)
		}
		size := make(sizes, 1)
		size <- remotecommand.TerminalSize{Width: 44, Height: 33}
		close(size)
		var out bytes.Buffer
		if err := stream(t, resp.Url, remotecommand.StreamOptions{Stdin: strings.NewReader("word\n"), Stdout: &out, Tty: true, TerminalSizeQueue: size}); err != nil {
			t.Error(err)
		}
		if !strings.Contains(out.String(), "got word\r\ntty\r\n") {
			t.Errorf("got %q", out.String())
		}
	})
	t.Run("attach", func(t *testing.T) {
		in := n.startContainer(pod, shell("in", "read a; echo got $a; read b || echo end", func(c *runtimeapi.ContainerConfig) { c.Stdin, c.StdinOnce = true, true }))
		resp, err := n.Attach(ctx, &runtimeapi.AttachRequest{ContainerId: in, Stdin: true, Stdout: true, Stderr: true})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := stream(t, resp.Url, remotecommand.StreamOptions{Stdin: strings.NewReader("attached\n"), Stdout: &out, Stderr: io.Discard}); err != nil {
			t.Error(err)
		}
		if out.String() != "got attached\nend\n" {
			t.Errorf("got %q", out.String())
		}
		n.waitExit(in)
		if got := n.logText(in); got != "got attached\nend\n" {
			t.Errorf("logged %q", got)
		}
	})
	t.Run("attach and leave", func(t *testing.T) {
		on := n.startContainer(pod, shell("on", "while read a; do echo got $a; done; echo end", func(c *runtimeapi.ContainerConfig) { c.Stdin = true }))
		for _, word := range []string{"one", "two"} {
			resp, err := n.Attach(ctx, &runtimeapi.AttachRequest{ContainerId: on, Stdin: true, Stdout: true, Stderr: true})
			if err != nil {
				t.Fatal(err)
			}
			// The stream ends although the container keeps running.
			if err := stream(t, resp.Url, remotecommand.StreamOptions{Stdin: strings.NewReader(word + "\n"), Stdout: io.Discard, Stderr: io.Discard}); err != nil {
				t.Error(err)
			}
		}
		const want = "got one\ngot two\n"
		testwait.Succeed(t, "the log", func() error {
			if got := n.logText(on); got != want {
				return fmt.Errorf("logged %q, want %q", got, want)
			}
			return nil
		})
	})
	t.Run("attach to a terminal", func(t *testing.T) {
		tty := n.startContainer(pod, shell("tty", "read a; echo got $a", func(c *runtimeapi.ContainerConfig) { c.Stdin, c.Tty = true, true }))
		resp, err := n.Attach(ctx, &runtimeapi.AttachRequest{ContainerId: tty, Stdin: true, Stdout: true, Tty: true})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := stream(t, resp.Url, remotecommand.StreamOptions{Stdin: strings.NewReader("typed\n"), Stdout: &out, Tty: true}); err != nil {
			t.Error(err)
		}
		if !strings.Contains(out.String(), "got typed\r\n") {
			t.Errorf("got %q", out.String())
		}
		n.waitExit(tty)
		if got := n.logText(tty); !strings.Contains(got, "got typed\r\n") {
			t.Errorf("logged %q", got)
		}
	})
	t.Run("port-forward", func(t *testing.T) {
		resp, err := n.PortForward(ctx, &runtimeapi.PortForwardRequest{PodSandboxId: pod, Port: []int32{80}})
		if err != nil {
			t.Fatal(err)
		}
		u, err := url.Parse(resp.Url)
		if err != nil {
			t.Fatal(err)
		}
		transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{Host: u.Host})
		if err != nil {
			t.Fatal(err)
		}
		stop, ready := make(chan struct{}), make(chan struct{})
		f, err := portforward.New(spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, u),
			[]string{"0:80", "0:81"}, stop, ready, io.Discard, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- f.ForwardPorts() }()
		select {
		case <-ready:
		case err := <-done:
			t.Fatal(err)
		}
		ports, err := f.GetPorts()
		if err != nil {
			t.Fatal(err)
		}
		get := func(port uint16) (string, error) {
			resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/", port))
			if err != nil {
				return "", err
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			return string(body), err
		}
		if got, err := get(ports[0].Local); err != nil || got != "hello\n" {
			t.Errorf("got %q, %v", got, err)
		}
		// Many concurrent connections, but no more than a busy machine can serve in the one minute
		// after which the server drops connections without a request.
		var wait sync.WaitGroup
		for range 100 {
			wait.Go(func() {
				if got, err := get(ports[0].Local); err != nil || got != "hello\n" {
					t.Errorf("one of many: %q, %v", got, err)
				}
			})
		}
		wait.Wait()
		if _, err := get(ports[1].Local); err == nil {
			t.Error("a port without listener accepted a connection")
		}
		close(stop)
		<-done
	})
	if _, err := n.Exec(ctx, &runtimeapi.ExecRequest{ContainerId: "none", Cmd: []string{"x"}, Stdout: true}); err == nil {
		t.Error("exec in no container")
	}
}
