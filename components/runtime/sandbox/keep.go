package sandbox

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"hyperkube/internal/host/process"
)

// keepSendFD and keepReceiveFD are the file descriptors of the two ends of a socket pair in the sandbox's pause
// process, which never uses them. Files that Keep sends through the pair stay in its queue, and so stay open for as
// long as the process runs.
const (
	keepSendFD    = 3
	keepReceiveFD = 4
)

// maxKept is the largest number of files in one call of Keep.
const maxKept = 4

// keepPair creates the socket pair that a sandbox's pause process inherits as keepSendFD and keepReceiveFD.
func keepPair() (send, receive *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("creating a socket pair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "send"), os.NewFile(uintptr(fds[1]), "receive"), nil
}

// Keep opens the files at paths for reading and passes them to the pause process of a sandbox. That process keeps them
// open under name until Release is called or it exits, even if the runtime exits. It returns an error if the sandbox
// was created by an earlier version of the runtime, whose pause process has no socket pair. Calls of Keep and Release
// for the same sandbox must not overlap.
func Keep(sandbox *process.Handle, name string, paths ...string) error {
	if len(paths) > maxKept {
		return fmt.Errorf("keeping files: %d are too many", len(paths))
	}
	var fds []int
	defer func() { closeFDs(fds) }()
	for _, path := range paths {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("keeping files: opening %s: %w", path, err)
		}
		fds = append(fds, fd)
	}
	send, err := sandbox.File(keepSendFD)
	if err != nil {
		return fmt.Errorf("keeping files: %w", err)
	}
	defer unix.Close(send)
	return sendKept(send, name, fds)
}

// Release closes the files that the pause process of a sandbox keeps open under name. It is not an error if there are
// none. Calls of Keep and Release for the same sandbox must not overlap.
func Release(sandbox *process.Handle, name string) error {
	receive, err := sandbox.File(keepReceiveFD)
	if err != nil {
		return fmt.Errorf("releasing files: %w", err)
	}
	defer unix.Close(receive)
	send, err := sandbox.File(keepSendFD)
	if err != nil {
		return fmt.Errorf("releasing files: %w", err)
	}
	defer unix.Close(send)
	// The queue is read up to the mark, and all other files are queued again. A message is only removed after its
	// copy is queued, so that no file is lost if this process is killed in between.
	mark := rand.Text()
	if err := sendKept(send, mark, nil); err != nil {
		return err
	}
	for found := ""; found != mark; {
		var fds []int
		if found, fds, err = receiveKept(receive, unix.MSG_PEEK); err != nil {
			return err
		}
		if found != name && len(fds) > 0 { // a message without files is a mark
			err = sendKept(send, found, fds)
		}
		closeFDs(fds)
		if err != nil {
			return err
		}
		if _, fds, err = receiveKept(receive, 0); err != nil {
			return err
		}
		closeFDs(fds)
	}
	return nil
}

// sendKept appends a message with a name and file descriptors to the queue of the socket. It does not block; if the
// queue is full, it returns an error.
func sendKept(socket int, name string, fds []int) error {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	if err := unix.Sendmsg(socket, []byte(name), rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); err != nil {
		return fmt.Errorf("queueing kept files: %w", err)
	}
	return nil
}

// receiveKept reads the first message of the queue: a name and file descriptors, which the caller closes. flags are
// those of recvmsg(2); with MSG_PEEK the message stays in the queue. It returns an error if the queue is empty.
func receiveKept(socket, flags int) (name string, fds []int, err error) {
	text, rights := make([]byte, 256), make([]byte, unix.CmsgSpace(maxKept*4))
	n, rn, _, _, err := unix.Recvmsg(socket, text, rights, flags|unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if err == nil && n == 0 {
		err = errors.New("the queue is closed")
	}
	if err != nil {
		return "", nil, fmt.Errorf("reading kept files: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(rights[:rn])
	if err != nil {
		return "", nil, fmt.Errorf("reading kept files: %w", err)
	}
	for i := range messages {
		got, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // other information
		}
		fds = append(fds, got...)
	}
	return string(text[:n]), fds, nil
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
