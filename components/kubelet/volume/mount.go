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

// lettingGo is how long a tool that has ended may be held open by what it started.
const lettingGo = 5 * time.Second

// RunTool runs one of the host's tools and returns what it printed. When ctx ends
// the tool does, with the helpers that it has started: such as that of NFS, which
// waits for minutes for a server that is away, and would mount behind our back.
func RunTool(ctx context.Context, name string, args ...string) (string, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = lettingGo
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // it has done its work, and left a service running
	}
	return out.String(), err
}

// mountTool mounts by the host's mount program, which knows helpers for file
// systems that the kernel cannot mount by itself.
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

// MountDevice mounts a device that is a file system, and makes one first if it
// is nothing at all. What is mounted already stays.
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
		// What fsck could mend is no error, nor is that there is no fsck.
		out, err := RunTool(ctx, "fsck", "-a", device)
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() == 4 {
			return fmt.Errorf("'fsck' found errors on device %s but could not correct them: %s", device, out)
		}
	}
	err = mountTool(ctx, fsType, device, target, append([]string{"defaults"}, options...))
	if err != nil && have != "" && have != fsType {
		return &otherContent{err}
	}
	return err
}

// otherContent is that a device could not be mounted on which there is something else
// than the file system that was wanted.
type otherContent struct{ error }

func (o *otherContent) Unwrap() error { return o.error }

// content tells what is on a device, empty for nothing known.
func content(ctx context.Context, device string) (string, error) {
	out, err := RunTool(ctx, "blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 2 {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("looking what is on %s: %w: %s", device, err, out)
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

func format(ctx context.Context, device, fsType string) error {
	args := []string{device}
	switch fsType {
	case "ext3", "ext4":
		// Nothing is kept for root.
		args = []string{"-F", "-m0", device}
	case "xfs":
		args = []string{"-f", device}
	}
	if out, err := RunTool(ctx, "mkfs."+fsType, args...); err != nil {
		return fmt.Errorf("format of disk %q failed: type:(%q) errcode:(%w) output:(%s)", device, fsType, err, out)
	}
	return nil
}
