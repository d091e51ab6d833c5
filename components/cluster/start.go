package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/launch"
	"hyperkube/components/runtime/runtimeclient"
	"hyperkube/internal/layout"
	"hyperkube/internal/version"
)

// runtimeStart is how long a runtime may take until it answers.
const runtimeStart = 30 * time.Second

// startRuntime starts the container runtime of a node, unless it runs, and
// returns when it answers. It is a process of its own that outlives this one.
func startRuntime(ctx context.Context, l layout.Node, id identity) error {
	ctx, cancel := context.WithTimeout(ctx, runtimeStart)
	defer cancel()
	pid, err := runtimePID(l)
	if err != nil {
		return err
	}
	if pid == 0 {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("finding this program: %w", err)
		}
		args := []string{
			"--root=" + l.Runtime(), "--state=" + l.RuntimeState(), "--socket=" + l.RuntimeSocket(),
			"--builtin=" + self, "--builtin-image=" + version.Image(), "--images-dir=" + l.Images(),
			"--link-prefix=" + l.LinkPrefix, "--cgroup-root=" + l.CgroupRoot, "--journal=" + l.Journal("runtime"),
		}
		if _, err := launch.Start(launch.Options{Args: args, Log: l.Log("runtime"), PIDFile: l.PIDFile("runtime")}); err != nil {
			return fmt.Errorf("starting the container runtime: %w", err)
		}
	}
	client, err := runtimeclient.Dial(l.RuntimeSocket())
	if err != nil {
		return err
	}
	defer client.Close()
	if err := waitSocket(ctx, l.RuntimeSocket()); err != nil {
		return fmt.Errorf("the container runtime does not answer, see %s: %w", l.Log("runtime"), err)
	}
	if _, err := client.Version(ctx, &runtimeapi.VersionRequest{}); err != nil {
		return fmt.Errorf("the container runtime does not answer, see %s: %w", l.Log("runtime"), err)
	}
	return nil
}

// waitSocket blocks until somebody serves the unix socket at path. Its folder
// tells when it appears.
func waitSocket(ctx context.Context, path string) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching for a socket: %w", err)
	}
	defer watcher.Close()
	if err := watcher.Add(filepath.Dir(path)); err != nil {
		return fmt.Errorf("watching for a socket: %w", err)
	}
	for {
		conn, err := net.Dial("unix", path)
		if err == nil {
			return conn.Close()
		}
		// Between its making and its listening nothing tells: a moment.
		var retry <-chan time.Time
		if errors.Is(err, unix.ECONNREFUSED) {
			retry = time.After(2 * time.Millisecond)
		}
		select {
		case <-watcher.Events:
		case <-retry:
		case err := <-watcher.Errors:
			return fmt.Errorf("watching for a socket: %w", err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
