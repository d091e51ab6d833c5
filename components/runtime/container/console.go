//go:build cgo

package container

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// socketPair is a pair of connected sockets, over which libcontainer's init process sends the container's terminal to
// the runtime.
type socketPair struct{ parent, child *os.File }

func newSocketPair() (*socketPair, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("creating a socket for the terminal: %w", err)
	}
	return &socketPair{parent: os.NewFile(uintptr(fds[0]), "console"), child: os.NewFile(uintptr(fds[1]), "console")}, nil
}

func (s *socketPair) Close() {
	s.parent.Close()
	s.child.Close()
}

// receive returns the terminal that the init process has sent. Call it after the process was started; it does not
// block, because libcontainer sends the terminal before that. It returns an error if there is none.
func (s *socketPair) receive() (*os.File, error) {
	name, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(int(s.parent.Fd()), name, oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
	if err != nil {
		return nil, fmt.Errorf("receiving the terminal: %w", err)
	}
	return terminalOf(oob[:n])
}

// terminalOf returns the terminal whose file descriptor is in the control message oob, in non-blocking mode. It
// returns an error if the message has none.
func terminalOf(oob []byte) (*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("receiving the terminal: %w", err)
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil || len(fds) == 0 {
			continue
		}
		if err := unix.SetNonblock(fds[0], true); err != nil {
			unix.Close(fds[0])
			return nil, fmt.Errorf("receiving the terminal: %w", err)
		}
		return os.NewFile(uintptr(fds[0]), "terminal"), nil
	}
	return nil, errors.New("the container did not send a terminal")
}

// Resize sets the size of a terminal in characters.
func Resize(console *os.File, width, height uint16) error {
	conn, err := console.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	if err := conn.Control(func(fd uintptr) {
		set = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: height, Col: width})
	}); err != nil {
		return err
	}
	return set
}
