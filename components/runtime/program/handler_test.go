//go:build cgo

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// doubleName is the name under which the test binary acts as an OCI runtime. It supports the part
// of runc's command line that this project uses.
const doubleName = "oci-double"

func double(args []string) error {
	f := flag.NewFlagSet(doubleName, flag.ContinueOnError)
	root, log := f.String("root", "", ""), f.String("log", "", "")
	if err := f.Parse(args); err != nil {
		return err
	}
	err := doubleDo(*root, f.Args())
	if err != nil && *log != "" {
		_ = os.WriteFile(*log, []byte(err.Error()), 0o600)
	}
	return err
}

func doubleDo(root string, args []string) error {
	f := flag.NewFlagSet(args[0], flag.ContinueOnError)
	bundle, pidFile, console := f.String("bundle", "", ""), f.String("pid-file", "", ""), f.String("console-socket", "", "")
	processFile, resources := f.String("process", "", ""), f.String("resources", "", "")
	force := f.Bool("force", false, "")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	id := f.Arg(0)
	process := func(p *specs.Process, init bool) (*libcontainer.Process, error) {
		out := &libcontainer.Process{Args: p.Args, Env: p.Env, UID: int(p.User.UID), GID: int(p.User.GID), Cwd: p.Cwd, Init: init,
			Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
			Capabilities: &configs.Capabilities{Bounding: p.Capabilities.Bounding, Effective: p.Capabilities.Effective, Permitted: p.Capabilities.Permitted}}
		if *console != "" {
			conn, err := net.Dial("unix", *console)
			if err != nil {
				return nil, err
			}
			out.Stdin, out.Stdout, out.Stderr = nil, nil, nil
			if out.ConsoleSocket, err = conn.(*net.UnixConn).File(); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	writePID := func(p *libcontainer.Process) error {
		pid, err := p.Pid()
		if err != nil {
			return err
		}
		if err := os.WriteFile(*pidFile+".tmp", fmt.Append(nil, pid), 0o600); err != nil {
			return err
		}
		return os.Rename(*pidFile+".tmp", *pidFile)
	}
	if args[0] == "create" {
		data, err := os.ReadFile(filepath.Join(*bundle, "config.json"))
		if err != nil {
			return err
		}
		var spec specs.Spec
		if err := json.Unmarshal(data, &spec); err != nil {
			return err
		}
		config, err := specconv.CreateLibcontainerConfig(&specconv.CreateOpts{CgroupName: id, Spec: &spec})
		if err != nil {
			return err
		}
		if err := os.MkdirAll(root, 0o711); err != nil {
			return err
		}
		c, err := libcontainer.Create(root, id, config)
		if err != nil {
			return err
		}
		p, err := process(spec.Process, true)
		if err != nil {
			return err
		}
		if err := c.Start(p); err != nil {
			return err
		}
		return writePID(p)
	}
	c, err := libcontainer.Load(root, id)
	if args[0] == "delete" && *force && errors.Is(err, libcontainer.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	switch args[0] {
	case "start":
		return c.Exec()
	case "delete":
		_ = c.Signal(unix.SIGKILL)
		return c.Destroy()
	case "update":
		var r specs.LinuxResources
		if *resources != "-" {
			return errors.New("resources come by stdin")
		}
		if err := json.NewDecoder(os.Stdin).Decode(&r); err != nil {
			return err
		}
		config := c.Config()
		if r.Memory.Limit != nil {
			config.Cgroups.Memory = *r.Memory.Limit
		}
		return c.Set(config)
	case "exec":
		data, err := os.ReadFile(*processFile)
		if err != nil {
			return err
		}
		var how specs.Process
		if err := json.Unmarshal(data, &how); err != nil {
			return err
		}
		p, err := process(&how, false)
		if err != nil {
			return err
		}
		if err := c.Run(p); err != nil {
			return err
		}
		if err := writePID(p); err != nil {
			return err
		}
		state, _ := p.Wait()
		code := state.ExitCode()
		if s, ok := state.Sys().(interface {
			Signaled() bool
			Signal() unix.Signal
		}); ok && s.Signaled() {
			code = 128 + int(s.Signal())
		}
		os.Exit(code)
	}
	return fmt.Errorf("unknown command %s", args[0])
}

// TestHandler runs pods with an external OCI runtime.
func TestHandler(t *testing.T) {
	dir := t.TempDir()
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, doubleName)
	if err := os.Symlink(program, binary); err != nil {
		t.Fatal(err)
	}
	handlers := filepath.Join(dir, "handlers.yaml")
	if err := os.WriteFile(handlers, []byte("handlers:\n  other:\n    binary: "+binary+"\n    userNamespaces: true\n  gone:\n    binary: /none\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, "--runtime-handlers", handlers).imported()
	ctx := context.Background()
	status, err := n.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	features := map[string]*runtimeapi.RuntimeHandlerFeatures{}
	for _, h := range status.RuntimeHandlers {
		features[h.Name] = h.Features
	}
	if len(features) != 4 || features["other"].RecursiveReadOnlyMounts || features["other"].UserNamespaces != features[""].UserNamespaces {
		t.Errorf("the handlers are %v", features)
	}
	by := func(handler, name string, change ...func(*runtimeapi.PodSandboxConfig)) string {
		t.Helper()
		resp, err := n.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: n.pod(name, change...), RuntimeHandler: handler})
		if err != nil {
			t.Fatal(err)
		}
		return resp.PodSandboxId
	}
	if _, err := n.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: n.pod("none"), RuntimeHandler: "unknown"}); err == nil ||
		!strings.Contains(err.Error(), `no runtime for "unknown" is configured`) {
		t.Errorf("an unknown handler: %v", err)
	}
	if id, err := n.create(by("gone", "gone"), shell("c", "true")); err != nil {
		t.Error(err)
	} else if _, err := n.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id}); err == nil || !strings.Contains(err.Error(), "/none") {
		t.Errorf("a program that is not there: %v", err)
	}
	pod := by("other", "by-other")
	if s, err := n.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod}); err != nil || s.Status.RuntimeHandler != "other" {
		t.Errorf("the sandbox is %v, %v", s, err)
	}
	if got := n.output(pod, shell("out", "echo out; hostname; cat /old/new; echo")); got != "out\nby-other\nnew\n" {
		t.Errorf("it said %q", got)
	}
	if got := n.output(pod, shell("cgroups", "mkdir /sys/fs/cgroup/made 2>&1")); !strings.HasSuffix(got, ": Read-only file system\n") {
		t.Errorf("writing to its cgroups said %q", got)
	}
	if got := n.output(by("other", "users", inUserNS(65536*5)), shell("c", "id -u; awk '{print $2}' /proc/self/uid_map; touch /x && ls -ln /x | awk '{print $3}'")); got != "0\n327680\n0\n" {
		t.Errorf("with a user namespace it printed %q", got)
	}
	ends := n.startContainer(pod, shell("ends", "sleep 0.05; exit 7"))
	if st := n.waitExit(ends); st.ExitCode != 7 && st.ExitCode != 255 {
		t.Errorf("it ended %v", st)
	}
	if id, err := n.create(pod, shell("bad", "true", func(c *runtimeapi.ContainerConfig) { c.Command = []string{"/no/such"} })); err != nil {
		t.Error(err)
	} else if _, err := n.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id}); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("no program: %v", err)
	}
	long := n.startContainer(pod, shell("long", "trap 'exit 5' INT; while true; do sleep 0.02; done"))
	for range 2 {
		out, err := n.exec(long, 60, "sh", "-c", "echo $$ >&2; echo hi; exit 3")
		if err != nil || out.ExitCode != 3 || string(out.Stdout) != "hi\n" {
			t.Errorf("exec: %v, %v", out, err)
		}
		if _, err := n.exec(long, 1, "sleep", "777"); err == nil {
			t.Error("a long command ended")
		}
		if out, err := n.exec(long, 60, "sh", "-c", "ps | grep -c '[7]77'"); err != nil || string(out.Stdout) != "0\n" {
			t.Errorf("a command runs longer than its timeout: %v, %v", out, err)
		}
		if _, err := n.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: long,
			Linux: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 64 << 20}}); err != nil {
			t.Error(err)
		}
		// Repeat with the next runtime process.
		n.stop(9)
		n.start()
	}
	if s, err := n.ContainerStats(ctx, &runtimeapi.ContainerStatsRequest{ContainerId: long}); err != nil || s.Stats.Memory.AvailableBytes.GetValue() > 64<<20 {
		t.Errorf("its limit is %v, %v", s, err)
	}
	if _, err := n.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: long, Timeout: 5}); err != nil {
		t.Error(err)
	}
	if st := n.status(long); st.ExitCode != 5 && st.ExitCode != 255 {
		t.Errorf("it ended %v", st)
	}
	tty := n.startContainer(pod, shell("tty", "test -t 0 && echo terminal; stty size; sleep 0.1", func(c *runtimeapi.ContainerConfig) { c.Tty, c.Stdin = true, true }))
	if n.waitExit(tty); !strings.HasPrefix(n.logText(tty), "terminal\r\n") {
		t.Errorf("by a terminal it said %q", n.logText(tty))
	}
}
