package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/launch"
	"hyperkube/components/runtime/runtimeclient"
	"hyperkube/internal/layout"
	"hyperkube/internal/lifecycle"
	"hyperkube/internal/process"
	"hyperkube/internal/version"
)

// runtimeStart is how long a runtime may take until it answers, also on a slow
// machine; one that ends is not waited for.
const runtimeStart = 2 * time.Minute

// runtimeOptions say how a node's container runtime is started. PodCIDRs are what
// pods have addresses of until the Node has some, separated by commas: empty for a
// node of several, whose runtime could only guess, and would guess another's.
func runtimeOptions(l layout.Node, podCIDRs string) (launch.Options, error) {
	self, err := os.Executable()
	if err != nil {
		return launch.Options{}, fmt.Errorf("finding this program: %w", err)
	}
	args := []string{
		"--root=" + l.Runtime(), "--state=" + l.RuntimeState(), "--socket=" + l.RuntimeSocket(),
		"--builtin=" + self, "--builtin-image=" + version.Image(), "--images-dir=" + l.Images(), "--cni-conf-dir=" + l.CNIConf(),
		"--link-prefix=" + l.LinkPrefix, "--cgroup-root=" + l.CgroupRoot, "--journal=" + l.Journal("runtime"),
		"--pod-cidr=" + podCIDRs,
	}
	if a := l.KubeletAlias(); a != (layout.Alias{}) {
		args = append(args, "--kubelet-dir="+a.Own, "--known-kubelet-dir="+a.Known)
	}
	return launch.Options{
		LogFile: l.Log("runtime"), PIDFile: l.PIDFile("runtime"), Main: self,
		Args: append(args, ownSettings(l)...),
	}, nil
}

// ownSettings names the files below the root of a cluster elsewhere (`--root`) that it
// has instead of the machine's. What it has none of is the machine's: who reaches
// registries by a mirror does so for every cluster.
func ownSettings(l layout.Node) []string {
	if l.Etc == layout.Default().Etc {
		return nil // the runtime knows those
	}
	var out []string
	for flag, name := range map[string]string{"--registry-config=": "registries.yaml", "--runtime-handlers=": "handlers.yaml"} {
		path := l.Setting(name)
		if _, err := os.Stat(path); err == nil {
			out = append(out, flag+path)
		}
	}
	slices.Sort(out)
	return out
}

// StartRuntime starts the container runtime of a node, unless it runs, and
// returns when it answers. It is a process of its own that outlives this one;
// one that another version of this program has left makes way in place. PodCIDRs as
// for runtimeOptions.
func StartRuntime(ctx context.Context, l layout.Node, podCIDRs string) error {
	ctx, cancel := context.WithTimeout(ctx, runtimeStart)
	defer cancel()
	pid, err := RuntimePID(l)
	if err != nil {
		return err
	}
	o, err := runtimeOptions(l, podCIDRs)
	if err != nil {
		return err
	}
	if pid == 0 {
		// It returns when CRI is served.
		if _, err = launch.Start(ctx, o); err != nil {
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
	if pid == 0 {
		return nil
	}
	outdated, err := o.Outdated(pid)
	if err != nil || !outdated {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	if err := client.Upgrade(ctx, o.Successor(self)); err != nil {
		return fmt.Errorf("replacing the container runtime by that of this version, see %s: %w", l.Log("runtime"), err)
	}
	return nil
}

// RuntimeKeeper starts the container runtime again whenever it ends while the
// node is there: containers do without it, but nobody else could start it.
type RuntimeKeeper struct {
	Layout   layout.Node
	PodCIDRs string // as for runtimeOptions
	Log      *slog.Logger
}

// The pause between the tries to start a runtime that does not stay.
const (
	keepFirst = 100 * time.Millisecond
	keepMost  = 10 * time.Second
)

// Run keeps the runtime until ctx ends. The runtime stays then.
func (k RuntimeKeeper) Run(ctx context.Context) error {
	pause := keepFirst
	for {
		began := time.Now()
		if err := k.watch(ctx); err != nil {
			k.Log.Warn("the container runtime cannot be watched", "error", err)
		}
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(began) > time.Minute {
			pause = keepFirst
		}
		k.Log.Warn("the container runtime has ended and is started again")
		err := StartRuntime(ctx, k.Layout, k.PodCIDRs)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil && pause == keepFirst {
			// The first time nothing is waited for.
			pause *= 2
			continue
		}
		if err != nil {
			k.Log.Error("the container runtime cannot be started again", "error", err, "nextTry", pause)
		}
		if !lifecycle.Pause(ctx, pause) {
			return nil
		}
		pause = min(2*pause, keepMost)
	}
}

// watch returns when the runtime has ended, or none is there.
func (k RuntimeKeeper) watch(ctx context.Context) error {
	pid, err := RuntimePID(k.Layout)
	if err != nil || pid == 0 {
		return err
	}
	h, err := process.Open(pid, 0)
	if errors.Is(err, process.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer h.Close()
	// Its number might have become another's before it was opened.
	if now, err := RuntimePID(k.Layout); err != nil || now != pid {
		return err
	}
	select {
	case <-h.Done():
	case <-ctx.Done():
	}
	return nil
}

// RuntimePID returns the process that serves the runtime's socket, 0 if none
// does. The kernel knows it, whatever files say.
func RuntimePID(l layout.Node) (int, error) {
	conn, err := net.DialTimeout("unix", l.RuntimeSocket(), 5*time.Second)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reaching the container runtime: %w", err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("asking who serves the container runtime: %w", err)
	}
	var cred *unix.Ucred
	var asked error
	if err := raw.Control(func(fd uintptr) {
		cred, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, fmt.Errorf("asking who serves the container runtime: %w", err)
	}
	if asked != nil {
		return 0, fmt.Errorf("asking who serves the container runtime: %w", asked)
	}
	return int(cred.Pid), nil
}
