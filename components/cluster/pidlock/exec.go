package pidlock

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Exec replaces the program of this process, which keeps the lock and its PID: at no moment can
// another process take the lock or find it free. env returns the environment of the new program,
// which must call Adopt with the descriptor fd. Exec returns only if it fails; the process still
// has the lock then.
func (l *Lock) Exec(program string, args []string, env func(fd int) ([]string, error)) error {
	fd := int(l.file.Fd())
	environ, err := env(fd)
	if err != nil {
		return err
	}
	// No child process that another goroutine starts may inherit the lock.
	syscall.ForkLock.Lock()
	defer syscall.ForkLock.Unlock()
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
		return fmt.Errorf("passing on the lock of %s: %w", l.file.Name(), err)
	}
	err = syscall.Exec(program, args, environ)
	syscall.CloseOnExec(fd)
	return fmt.Errorf("executing %s: %w", program, err)
}

// Adopt returns the lock at path that this process held with the descriptor fd when it called Exec.
func Adopt(path string, fd int) (*Lock, error) {
	syscall.CloseOnExec(fd)
	var held, current unix.Stat_t
	if err := unix.Fstat(fd, &held); err != nil {
		return nil, fmt.Errorf("adopting the lock of %s: %w", path, err)
	}
	if err := unix.Stat(path, &current); err != nil {
		return nil, fmt.Errorf("adopting the lock of %s: %w", path, err)
	}
	if held.Ino != current.Ino || held.Dev != current.Dev {
		return nil, fmt.Errorf("adopting the lock of %s: descriptor %d is another file", path, fd)
	}
	return &Lock{file: os.NewFile(uintptr(fd), path)}, nil
}
