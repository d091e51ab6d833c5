package supportbundle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"hyperkube/components/cluster/service"
	"hyperkube/internal/host/layout"
)

// maxPodLogSize is the part of the log of a container that is collected, in bytes.
const maxPodLogSize = 512 << 10

// overlap is how many bytes before the collected end of a file are read as well, so that a credential is recognized
// that begins before the end. It is longer than any private key.
const overlap = 256 << 10

// readTail returns the last limit bytes of a file, or nil if it is not a regular file. It reports whether the file is
// longer.
func readTail(name string, limit int64) (data []byte, longer bool, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, false, err
	}
	if !info.Mode().IsRegular() {
		return nil, false, nil
	}
	if longer = info.Size() > limit; longer {
		if _, err := f.Seek(-limit, io.SeekEnd); err != nil {
			return nil, false, err
		}
	}
	data, err = io.ReadAll(io.LimitReader(f, limit))
	return data, longer, err
}

// addFile adds a file of the machine to the archive, with its path below dir. A missing file is no error.
func (c *collection) addFile(dir, name string, limit int64) {
	data, longer, err := readTail(name, limit+overlap)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		c.fail(err)
	default:
		c.addFileData(file{name: filepath.Join(dir, name), data: data, limit: int(limit), beginningMissing: longer})
	}
}

// addCommand adds the output of a program, also if the program fails. It does nothing if the program is not
// installed.
func (c *collection) addCommand(ctx context.Context, name, program string, args ...string) {
	if _, err := exec.LookPath(program); err != nil {
		return
	}
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		c.fail(fmt.Errorf("%s %s: %w", program, strings.Join(args, " "), err))
	}
	c.add(name, out)
}

// collectLogs adds the logs of the components and of the pods in kube-system.
func collectLogs(_ context.Context, c *collection) error {
	l := c.cfg.Layout
	patterns := []string{filepath.Join(l.PodLogs, "kube-system_*", "*", "*.log")}
	for _, data := range layout.DataDirPatterns(l.Data) {
		patterns = append(patterns, filepath.Join(data, "logs", "*.log"), filepath.Join(data, "pod-logs", "kube-system_*", "*", "*.log"))
	}
	for i, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		limit := int64(maxFileSize)
		if i == 0 || strings.Contains(pattern, "pod-logs") {
			limit = maxPodLogSize
		}
		for _, file := range files {
			c.addFile("logs", file, limit)
		}
	}
	return nil
}

// collectJournal adds the log of the kernel, and the state of the services of this program: with systemd also their
// logs, which OpenRC writes to the files that collectLogs adds.
func collectJournal(ctx context.Context, c *collection) error {
	if service.HasSystemd() {
		for _, unit := range []string{"hyperkube.service", "hyperkube-node.service", "hyperkube-pods.service"} {
			c.addCommand(ctx, "logs/journal/"+unit+".log", "journalctl", "--no-pager", "--lines=20000", "--unit="+unit)
			c.addCommand(ctx, "systemd/"+unit+".txt", "systemctl", "show", unit)
		}
	} else if service.HasManager() {
		c.addCommand(ctx, "openrc/services.txt", "rc-status", "--all")
	}
	size, err := unix.Klogctl(unix.SYSLOG_ACTION_SIZE_BUFFER, nil)
	if err != nil {
		return fmt.Errorf("reading the kernel log: %w", err)
	}
	data := make([]byte, size)
	n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, data)
	if err != nil {
		return fmt.Errorf("reading the kernel log: %w", err)
	}
	c.add("logs/kernel.log", data[:n])
	return nil
}
