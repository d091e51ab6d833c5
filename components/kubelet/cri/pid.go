package cri

import (
	"fmt"
	"net"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// PID returns the ID of the process that listens on the runtime's socket, a path with or without "unix://".
// It returns an error if the runtime does not accept connections.
func PID(endpoint string) (pid int, err error) {
	conn, err := net.DialTimeout("unix", strings.TrimPrefix(endpoint, "unix://"), time.Second)
	if err != nil {
		return 0, fmt.Errorf("getting the process ID of the runtime: %w", err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("getting the process ID of the runtime: %w", err)
	}
	var peer *unix.Ucred
	var asked error
	if err := raw.Control(func(fd uintptr) { peer, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, fmt.Errorf("getting the process ID of the runtime: %w", err)
	}
	if asked != nil {
		return 0, fmt.Errorf("getting the process ID of the runtime: %w", asked)
	}
	return int(peer.Pid), nil
}
