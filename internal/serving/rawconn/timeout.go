package rawconn

import (
	"errors"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// setTimeout makes the connection fail if the peer does not acknowledge sent data for timeout (TCP_USER_TIMEOUT, in
// milliseconds). It does nothing if timeout is not positive. It returns the error of the system call.
func setTimeout(c syscall.RawConn, timeout time.Duration) error {
	if timeout <= 0 {
		return nil
	}
	var refused error
	err := c.Control(func(fd uintptr) {
		refused = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(timeout.Milliseconds()))
	})
	return errors.Join(err, refused)
}
