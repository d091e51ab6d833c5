//go:build cgo

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// verboseInfo is the verbose info that `crictl inspect` shows as "info".
type verboseInfo struct {
	PID    int
	Config struct {
		Metadata struct{ Name string }
		Command  []string
	}
	RuntimeSpec *specs.Spec
	ChainID     string
	ImageSpec   struct {
		Config struct{ Cmd []string }
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
}

func parseInfo(t *testing.T, info map[string]string, err error) (out verboseInfo) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(info["info"]), &out); err != nil {
		t.Fatalf("%v: %s", err, info["info"])
	}
	return out
}

// TestInfo checks that the verbose info contains namespaces, cgroups, commands and layers where
// operators expect them, and that reading it changes nothing.
func TestInfo(t *testing.T) {
	n := newNode(t).imported()
	ctx := context.Background()
	pod := n.run(n.pod("verbose"))
	volume := filepath.Join(t.TempDir(), "volume")
	id := n.startContainer(pod, shell("c", "sleep 1000", func(c *runtimeapi.ContainerConfig) {
		c.Mounts = []*runtimeapi.Mount{{ContainerPath: "/v", HostPath: volume}}
		c.Envs = []*runtimeapi.KeyValue{{Key: "SAID", Value: []byte("yes")}}
	}))
	ofSandbox := func() verboseInfo {
		resp, err := n.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod, Verbose: true})
		return parseInfo(t, resp.GetInfo(), err)
	}
	ofContainer := func() verboseInfo {
		resp, err := n.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
		return parseInfo(t, resp.GetInfo(), err)
	}

	s := ofSandbox()
	if s.Config.Metadata.Name != "verbose" || s.RuntimeSpec == nil {
		t.Fatalf("the sandbox: %+v", s)
	}
	netns := ""
	for _, ns := range s.RuntimeSpec.Linux.Namespaces {
		if ns.Type == specs.NetworkNamespace {
			netns = ns.Path
		}
	}
	want, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", n.pidOf(id)))
	if got, linkErr := os.Readlink(netns); err != nil || linkErr != nil || got != want {
		t.Errorf("the sandbox's network namespace %s is %s, not the container's %s", netns, got, want)
	}

	c := ofContainer()
	if c.PID != n.pidOf(id) || c.Config.Metadata.Name != "c" || c.RuntimeSpec == nil {
		t.Fatalf("the container: %+v", c)
	}
	mounted := false
	for _, m := range c.RuntimeSpec.Mounts {
		mounted = mounted || m.Destination == "/v" && m.Source == volume
	}
	said := false
	for _, e := range c.RuntimeSpec.Process.Env {
		said = said || e == "SAID=yes"
	}
	if !mounted || !said || len(c.RuntimeSpec.Process.Args) != 3 || c.RuntimeSpec.Process.Args[2] != "sleep 1000" {
		t.Errorf("its specification: %+v, %+v", c.RuntimeSpec.Process, c.RuntimeSpec.Mounts)
	}

	if err := os.Remove(volume); err != nil {
		t.Fatal(err)
	}
	if c := ofContainer(); c.RuntimeSpec != nil || c.Config.Metadata.Name != "c" {
		t.Errorf("without its volume: %+v", c)
	}
	if _, err := os.Stat(volume); err == nil {
		t.Error("inspecting a container has created a volume's directory")
	}
	if _, err := n.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Fatal(err)
	}
	if s, c := ofSandbox(), ofContainer(); s.RuntimeSpec != nil || c.RuntimeSpec != nil || len(c.Config.Command) != 3 {
		t.Errorf("stopped: %+v, %+v", s, c)
	}

	resp, err := n.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec("busybox"), Verbose: true})
	image := parseInfo(t, resp.GetInfo(), err)
	if layers := image.ImageSpec.RootFS.DiffIDs; image.ChainID == "" || len(layers) != 2 || image.ChainID == layers[1] ||
		len(image.ImageSpec.Config.Cmd) != 1 || image.ImageSpec.Config.Cmd[0] != "sh" {
		t.Errorf("the image: %+v", image)
	}
	if resp, err := n.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec("busybox")}); err != nil || len(resp.Info) != 0 {
		t.Errorf("the image, unasked: %v, %v", resp, err)
	}
}

// TestStatsOfBarePods checks stats of pods without a cgroup parent, as created by `crictl runp`,
// which share a cgroup.
func TestStatsOfBarePods(t *testing.T) {
	n := newNode(t).imported()
	ctx := context.Background()
	bare := func(c *runtimeapi.PodSandboxConfig) { c.Linux.CgroupParent = "" }
	empty := n.run(n.pod("empty", bare))
	full := n.run(n.pod("full", bare))
	id := n.startContainer(full, shell("c", "x=$(head -c 4000000 /dev/zero | tr '\\0' x); echo made; sleep 1000; echo $x"))
	n.eventually("its memory", func() bool { return n.logText(id) == "made\n" })
	of := func(pod string) *runtimeapi.LinuxPodSandboxStats {
		resp, err := n.PodSandboxStats(ctx, &runtimeapi.PodSandboxStatsRequest{PodSandboxId: pod})
		if err != nil || resp.Stats.GetLinux().GetCpu() == nil || resp.Stats.Linux.Memory == nil || resp.Stats.Linux.Process == nil {
			t.Fatalf("got %v, %v", resp, err)
		}
		return resp.Stats.Linux
	}
	if one := of(empty); one.Process.ProcessCount.Value != 1 || one.Memory.UsageBytes.Value > 4000000 {
		t.Errorf("the one without containers: %v", one)
	}
	two := of(full)
	if two.Memory.UsageBytes.Value < 4000000 || two.Process.ProcessCount.Value < 2 || two.Cpu.UsageCoreNanoSeconds.Value == 0 {
		t.Errorf("the one with a container: %v", two)
	}
	info, err := n.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := two.Containers[0].WritableLayer.FsId.Mountpoint, info.ContainerFilesystems[0].FsId.Mountpoint; got != want {
		t.Errorf("a container's own files are on %s, containers are on %s", got, want)
	}
	list, err := n.ListPodSandboxMetrics(ctx, &runtimeapi.ListPodSandboxMetricsRequest{})
	if err != nil || len(list.PodMetrics) != 2 {
		t.Fatalf("got %v, %v", list, err)
	}
	if a, b := list.PodMetrics[0].Metrics[0].LabelValues[1], list.PodMetrics[1].Metrics[0].LabelValues[1]; a == b {
		t.Errorf("both pods have the id %s", a)
	}
}

// TestVersion checks that a runtime without the built-in image reports the version of the program
// that contains it.
func TestVersion(t *testing.T) {
	t.Setenv(versionEnv, "v1.2.3-x")
	n := newNode(t)
	v, err := n.Version(context.Background(), &runtimeapi.VersionRequest{})
	if err != nil || v.RuntimeVersion != "v1.2.3-x" || v.RuntimeApiVersion != "v1" {
		t.Errorf("got %v, %v", v, err)
	}
}
