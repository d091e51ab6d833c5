package dashboard

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// openBrowser opens url in the browser of the user. It returns an error if there is no display or no browser. A browser that
// it starts continues to run when ctx is canceled.
func openBrowser(ctx context.Context, url string) error {
	if os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
		return errors.New("there is no display")
	}
	program, err := exec.LookPath("xdg-open")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), program, url)
	// Browsers refuse to run as root, or show pages with its permissions.
	if cmd.SysProcAttr, err = asLoginUser(); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // only releases the process; the browser shows its own errors
	return nil
}

// asLoginUser returns attributes for a process of the user that ran sudo, or nil if this process was not started by sudo.
func asLoginUser() (*syscall.SysProcAttr, error) {
	id := os.Getenv("SUDO_UID")
	if os.Getuid() != 0 || id == "" {
		return nil, nil
	}
	login, err := user.LookupId(id)
	if err != nil {
		return nil, err
	}
	uid, errUID := strconv.ParseUint(login.Uid, 10, 32)
	gid, errGID := strconv.ParseUint(login.Gid, 10, 32)
	if err := errors.Join(errUID, errGID); err != nil {
		return nil, err
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
}
