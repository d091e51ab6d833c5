//go:build cgo

package runtime

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// dialInside calls a port on the loopback address of a process's network
// namespace: IPv4, then IPv6. Only the making of the socket takes a thread: who
// is never answered, however often, must not use them up.
func dialInside(ctx context.Context, pid int, port int32) (*net.TCPConn, error) {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	var first error
	for _, to := range []struct {
		family  int
		address unix.Sockaddr
		text    string
	}{
		{unix.AF_INET, &unix.SockaddrInet4{Port: int(port), Addr: [4]byte{127, 0, 0, 1}}, "127.0.0.1"},
		{unix.AF_INET6, &unix.SockaddrInet6{Port: int(port), Addr: [16]byte{15: 1}}, "::1"},
	} {
		socket, err := socketInside(ns, to.family)
		if err == nil {
			var conn *net.TCPConn
			if conn, err = connect(ctx, socket, to.address); err == nil {
				return conn, nil
			}
		}
		if first == nil {
			first = fmt.Errorf("dial tcp %s: %w", net.JoinHostPort(to.text, fmt.Sprint(port)), err)
		}
	}
	return nil, first
}

// socketInside makes a socket in a network namespace, in which it stays.
func socketInside(ns *os.File, family int) (*os.File, error) {
	type result struct {
		fd  int
		err error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- result{-1, os.NewSyscallError("setns", err)}
			return
		}
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
		done <- result{fd, os.NewSyscallError("socket", err)}
	}()
	got := <-done
	if got.err != nil {
		return nil, got.err
	}
	return os.NewFile(uintptr(got.fd), "port-forward"), nil
}

// connect connects a socket, which it closes.
func connect(ctx context.Context, socket *os.File, address unix.Sockaddr) (*net.TCPConn, error) {
	defer socket.Close()
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = unix.Connect(int(fd), address) }); err != nil {
		return nil, err
	}
	if errors.Is(failed, unix.EINPROGRESS) {
		stop := context.AfterFunc(ctx, func() { _ = socket.SetWriteDeadline(time.Unix(1, 0)) })
		defer stop()
		failed = nil
		err := raw.Write(func(fd uintptr) bool {
			polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
			if n, err := unix.Poll(polled, 0); err != nil || n == 0 {
				return false
			}
			code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
			if err == nil && code != 0 {
				err = unix.Errno(code)
			}
			failed = err
			return true
		})
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			return nil, err
		}
	}
	if failed != nil {
		return nil, os.NewSyscallError("connect", failed)
	}
	conn, err := net.FileConn(socket)
	if err != nil {
		return nil, err
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		conn.Close()
		return nil, errors.New("no TCP connection")
	}
	return tcp, nil
}
