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

// dialInNetNS connects to a TCP port on the loopback address in the network namespace of the process pid, for
// port-forward. It tries 127.0.0.1 first and then ::1. If both fail, it returns the error of 127.0.0.1. Only creating
// the socket needs a dedicated thread, so connections that hang do not exhaust threads.
func dialInNetNS(ctx context.Context, pid int, port int32) (*net.TCPConn, error) {
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
		socket, err := socketInNetNS(ns, to.family)
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

// socketInNetNS creates a non-blocking TCP socket of the address family in the network namespace ns. The socket stays
// in that namespace, whichever thread uses it later.
func socketInNetNS(ns *os.File, family int) (*os.File, error) {
	type result struct {
		fd  int
		err error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread exits
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

// connect connects socket to address and returns it as a Go connection. It closes socket in any case, because the
// connection is a duplicate. When ctx is done it returns the error of ctx.
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
		return nil, errors.New("not a TCP connection")
	}
	return tcp, nil
}
