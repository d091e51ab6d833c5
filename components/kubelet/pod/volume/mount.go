package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
)

// outputWaitDelay is how long the children of an exited tool may keep its output open.
const outputWaitDelay = 5 * time.Second

// RunTool runs a program of the host and returns its standard output and standard error together, also if it
// fails. When ctx is done, it kills the program and its helpers, such as mount.nfs, which waits for minutes for
// an unreachable server and would mount later.
func RunTool(ctx context.Context, name string, args ...string) (string, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = outputWaitDelay
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // the tool succeeded and left a service running
	}
	return out.String(), err
}

// mountTool mounts source at target with the host's mount program, which runs helpers for file systems that
// the kernel cannot mount by itself. With an empty fsType the program detects the file system. When ctx is
// done, it returns ctx's error.
func mountTool(ctx context.Context, fsType, source, target string, options []string) error {
	var args []string
	if fsType != "" {
		args = append(args, "-t", fsType)
	}
	if len(options) > 0 {
		args = append(args, "-o", strings.Join(options, ","))
	}
	args = append(args, source, target)
	out, err := RunTool(ctx, "mount", args...)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("mount failed: %w\nMounting command: mount\nMounting arguments: %s\nOutput: %s", err, strings.Join(args, " "), out)
	}
	return nil
}

// MountDevice mounts the file system of a block device at target. An empty fsType means ext4. It creates the
// file system if blkid finds nothing on the device, and runs fsck if fsType is an ext file system, unless
// readOnly; an empty device is then an error. If target is already mounted, it does nothing. The error is a
// contentMismatchError if the mount fails and the device contains something else than the file system.
func MountDevice(ctx context.Context, device, target, fsType string, options []string, readOnly bool) error {
	if mounted, err := mountinfo.Mounted(target); err != nil || mounted {
		return err
	}
	if fsType == "" {
		fsType = "ext4"
	}
	have, err := content(ctx, device)
	if err != nil {
		return err
	}
	if readOnly {
		options = append([]string{"ro"}, options...)
	}
	switch {
	case have == "" && readOnly:
		return fmt.Errorf("cannot mount unformatted disk %s as we are manipulating it in read-only mode", device)
	case have == "":
		if err := format(ctx, device, fsType); err != nil {
			return err
		}
	case !readOnly && strings.HasPrefix(fsType, "ext"):
		// Errors that fsck could correct and a missing fsck are ignored.
		out, err := RunTool(ctx, "fsck", "-a", device)
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() == 4 {
			return fmt.Errorf("'fsck' found errors on device %s but could not correct them: %s", device, out)
		}
	}
	err = mountTool(ctx, fsType, device, target, append([]string{"defaults"}, options...))
	if err != nil && have != "" && have != fsType {
		return &contentMismatchError{err}
	}
	return err
}

// contentMismatchError is the error for a device that could not be mounted and contains something else than
// the requested file system.
type contentMismatchError struct{ error }

func (o *contentMismatchError) Unwrap() error { return o.error }

// content returns the type of the file system on a device, such as "ext4". If blkid finds only a partition table,
// it returns a text for error messages; if blkid recognizes nothing, so that the device may be formatted, it
// returns "".
func content(ctx context.Context, device string) (string, error) {
	out, err := RunTool(ctx, "blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 2 {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("determining the content of %s: %w: %s", device, err, out)
	}
	kind := ""
	for line := range strings.SplitSeq(out, "\n") {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch name {
		case "TYPE":
			kind = value
		case "PTTYPE":
			if kind == "" {
				kind = "unknown data, probably partitions"
			}
		}
	}
	return kind, nil
}

// format creates a file system on an empty device with the host's mkfs program.
func format(ctx context.Context, device, fsType string) error {
	args := []string{device}
	switch fsType {
	case "ext3", "ext4":
		// Reserve no blocks for root.
		args = []string{"-F", "-m0", device}
	case "xfs":
		args = []string{"-f", device}
	}
	if out, err := RunTool(ctx, "mkfs."+fsType, args...); err != nil {
		return fmt.Errorf("format of disk %q failed: type:(%q) errcode:(%w) output:(%s)", device, fsType, err, out)
	}
	return nil
}
