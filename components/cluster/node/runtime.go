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

	"hyperkube/components/cluster/podsunit"
	"hyperkube/components/runtime/launch"
	"hyperkube/components/runtime/runtimeclient"
	"hyperkube/internal/base/backoff"
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/base/version"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/host/packetfilter"
	"hyperkube/internal/host/process"
)

// runtimeStartTimeout limits the time from the start of the container runtime until it answers. It is long
// enough for slow machines. If the runtime exits, the wait ends earlier.
const runtimeStartTimeout = 2 * time.Minute

// runtimeOptions returns the options for starting the container runtime of a node. podCIDRs are the
// CIDRs of pod addresses until the Node has pod CIDRs, separated by commas. It is empty in a
// cluster of several nodes, where a guess could be the pod CIDR of another node. mode is how packet filter rules are
// written.
func runtimeOptions(l layout.Node, podCIDRs string, mode packetfilter.Mode) (launch.Options, error) {
	self, err := os.Executable()
	if err != nil {
		return launch.Options{}, fmt.Errorf("finding the hyperkube binary: %w", err)
	}
	args := []string{
		"--root=" + l.Runtime(), "--state=" + l.RuntimeState(), "--socket=" + l.RuntimeSocket(),
		"--builtin=" + self, "--builtin-image=" + version.Image(), "--images-dir=" + l.Images(), "--cni-conf-dir=" + l.CNIConf(),
		"--link-prefix=" + l.LinkPrefix, "--cgroup-root=" + l.CgroupRoot, "--journal=" + l.Journal("runtime"),
		"--pod-cidr=" + podCIDRs, "--proxy-mode=" + string(mode),
	}
	if a := l.KubeletAlias(); a != (layout.Alias{}) {
		args = append(args, "--kubelet-dir="+a.Actual, "--known-kubelet-dir="+a.Advertised)
	}
	return launch.Options{
		LogFile: l.Log("runtime"), PIDFile: l.PIDFile("runtime"), Main: self, Cgroup: podsunit.RuntimeCgroup(l),
		Args: append(args, configFileArgs(l)...),
	}, nil
}

// configFileArgs returns runtime flags for the configuration files in a cluster's --root directory. For a file that
// does not exist there, the runtime uses the file of the machine, so for example registry mirrors apply to every
// cluster. If the cluster uses the machine's directory itself, it returns no flags, because that is the runtime's
// default.
func configFileArgs(l layout.Node) []string {
	if l.Etc == layout.Default().Etc {
		return nil // the defaults of the runtime
	}
	var out []string
	for flag, name := range map[string]string{"--registry-config=": "registries.yaml", "--runtime-handlers=": "handlers.yaml"} {
		path := l.ConfigFile(name)
		if _, err := os.Stat(path); err == nil {
			out = append(out, flag+path)
		}
	}
	slices.Sort(out)
	return out
}

// StartRuntime starts the container runtime of a node unless it runs, and returns when it answers.
// The runtime is a separate process that survives this one. If another version of this program
// started it or with other options, it replaces itself and keeps its containers. podCIDRs and mode are as in
// runtimeOptions.
func StartRuntime(ctx context.Context, l layout.Node, podCIDRs string, mode packetfilter.Mode) error {
	ctx, cancel := context.WithTimeout(ctx, runtimeStartTimeout)
	defer cancel()
	pid, err := RuntimePID(l)
	if err != nil {
		return err
	}
	if err := podsunit.Start(ctx, l); err != nil {
		return err
	}
	o, err := runtimeOptions(l, podCIDRs, mode)
	if err != nil {
		return err
	}
	if pid == 0 {
		// Start returns when the runtime serves CRI.
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
	if o.Cgroup != "" { // an earlier version has started it outside of the unit
		if err := launch.Enter(o.Cgroup, pid); err != nil {
			return err
		}
	}
	outdated, err := o.Outdated(pid)
	if err != nil || !outdated {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding the hyperkube binary: %w", err)
	}
	if err := client.Upgrade(ctx, o.Successor(self)); err != nil {
		return fmt.Errorf("upgrading the container runtime to this version, see %s: %w", l.Log("runtime"), err)
	}
	return nil
}

// RuntimeSupervisor restarts the container runtime when it exits while the node runs. Containers
// survive an exit of the runtime.
type RuntimeSupervisor struct {
	Layout   layout.Node
	PodCIDRs string // as in runtimeOptions
	// PacketFilter is how packet filter rules are written.
	PacketFilter packetfilter.Mode
	Log          *slog.Logger
}

// Delays between attempts to restart a runtime that keeps exiting.
const (
	minRestartDelay = 100 * time.Millisecond
	maxRestartDelay = 10 * time.Second
)

// Run starts the container runtime immediately when it has exited or does not run, until ctx is done. Then it returns and
// leaves the runtime running. After a failed start, and after the second and each further start of a runtime that keeps
// exiting within a minute, Run waits for a back-off before it checks again whether the runtime runs.
func (k RuntimeSupervisor) Run(ctx context.Context) error {
	retry := backoff.Backoff{First: minRestartDelay, Max: maxRestartDelay}
	for {
		began := time.Now()
		if err := k.waitForExit(ctx); err != nil {
			k.Log.Warn("watching the process of the container runtime failed; containers keep running, starting the runtime if it does not run", "err", err)
		}
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(began) > time.Minute {
			retry.Reset()
		}
		k.Log.Warn("container runtime does not run or cannot be watched; its containers keep running, starting it if necessary")
		err := StartRuntime(ctx, k.Layout, k.PodCIDRs, k.PacketFilter)
		if ctx.Err() != nil {
			return nil
		}
		first, pause := !retry.Started(), retry.Next()
		if err == nil && first {
			continue // the first restart is immediate
		}
		if err != nil {
			k.Log.Error("starting the container runtime failed; containers keep running, but the kubelet cannot start or stop any, retrying after the back-off", "err", err, "retryAfter", pause)
		}
		if !lifecycle.Pause(ctx, pause) {
			return nil
		}
	}
}

// waitForExit returns when the runtime has exited or does not run, or when ctx is done. It returns an error if it
// cannot watch the process.
func (k RuntimeSupervisor) waitForExit(ctx context.Context) error {
	pid, err := RuntimePID(k.Layout)
	if err != nil || pid == 0 {
		return err
	}
	h, err := process.Open(pid, 0)
	if errors.Is(err, process.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer h.Close()
	// The PID may have been reused before Open.
	if now, err := RuntimePID(k.Layout); err != nil || now != pid {
		return err
	}
	select {
	case <-h.Done():
	case <-ctx.Done():
	}
	return nil
}

// RuntimePID returns the PID of the process that serves the runtime's socket, or 0 if there is
// none. The kernel provides it, so no PID file is needed.
func RuntimePID(l layout.Node) (int, error) {
	conn, err := net.DialTimeout("unix", l.RuntimeSocket(), 5*time.Second)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("connecting to the container runtime: %w", err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("getting the PID of the container runtime: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, fmt.Errorf("getting the PID of the container runtime: %w", err)
	}
	if credErr != nil {
		return 0, fmt.Errorf("getting the PID of the container runtime: %w", credErr)
	}
	return int(cred.Pid), nil
}
