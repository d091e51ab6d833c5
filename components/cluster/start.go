package cluster

import (
	"context"
	"fmt"
	"os"
	"time"

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
		// It returns when CRI is served.
		_, err = launch.Start(ctx, launch.Options{Args: args, LogFile: l.Log("runtime"), PIDFile: l.PIDFile("runtime")})
		if err != nil {
			return fmt.Errorf("starting the container runtime, see %s: %w", l.Log("runtime"), err)
		}
	}
	client, err := runtimeclient.Dial(l.RuntimeSocket())
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := client.Version(ctx, &runtimeapi.VersionRequest{}); err != nil {
		return fmt.Errorf("the container runtime does not answer, see %s: %w", l.Log("runtime"), err)
	}
	return nil
}
