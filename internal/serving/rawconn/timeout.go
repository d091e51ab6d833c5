package rawconn

import (
	"errors"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// setTimeout limits the time that sent data may remain unacknowledged.
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
