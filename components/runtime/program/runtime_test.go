//go:build cgo

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/internal/host/cgroup"
)

const goarch = goruntime.GOARCH

var quiet = log.New(io.Discard, "", 0)

// pod returns the configuration of a sandbox, modified by change.
func (n *node) pod(name string, change ...func(*runtimeapi.PodSandboxConfig)) *runtimeapi.PodSandboxConfig {
	c := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: "uid-" + name},
		Hostname:     name,
		LogDirectory: n.path("logs", name),
		DnsConfig:    &runtimeapi.DNSConfig{Servers: []string{"10.96.0.10"}, Searches: []string{"default.svc.cluster.local"}, Options: []string{"ndots:5"}},
		Labels:       map[string]string{"app": name},
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent:    n.cgroup + "/pods/" + name,
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}},
		},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func (n *node) run(config *runtimeapi.PodSandboxConfig) string {
	n.t.Helper()
	resp, err := n.RunPodSandbox(context.Background(), &runtimeapi.RunPodSandboxRequest{Config: config})
	if err != nil {
		n.t.Fatal(err)
	}
	return resp.PodSandboxId
}

// shell returns the configuration of a container that runs a script.
func shell(name, script string, change ...func(*runtimeapi.ContainerConfig)) *runtimeapi.ContainerConfig {
	c := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name},
		Image:    &runtimeapi.ImageSpec{Image: "busybox"},
		Command:  []string{"/bin/sh", "-c", script},
		LogPath:  name + "/0.log",
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources: &runtimeapi.LinuxContainerResources{},
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
				MaskedPaths:      []string{"/proc/version"}, ReadonlyPaths: []string{"/proc/sys"},
			},
		},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func (n *node) create(pod string, config *runtimeapi.ContainerConfig) (string, error) {
	resp, err := n.CreateContainer(context.Background(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: config})
	return resp.GetContainerId(), err
}

func (n *node) startContainer(pod string, config *runtimeapi.ContainerConfig) string {
	n.t.Helper()
	id, err := n.create(pod, config)
	if err == nil {
		_, err = n.StartContainer(context.Background(), &runtimeapi.StartContainerRequest{ContainerId: id})
	}
	if err != nil {
		n.t.Fatal(err)
	}
	return id
}

func (n *node) status(id string) *runtimeapi.ContainerStatus {
	n.t.Helper()
	resp, err := n.ContainerStatus(context.Background(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		n.t.Fatal(err)
	}
	return resp.Status
}

func (n *node) waitExit(id string) *runtimeapi.ContainerStatus {
	n.t.Helper()
	n.eventually("the container's end", func() bool { return n.status(id).State == runtimeapi.ContainerState_CONTAINER_EXITED })
	return n.status(id)
}

// logText returns the log of a container, of one stream or of both.
func (n *node) logText(id string, streams ...string) string {
	n.t.Helper()
	data, err := os.ReadFile(n.status(id).LogPath)
	if err != nil {
		n.t.Fatal(err)
	}
	var b strings.Builder
	for line := range strings.Lines(string(data)) {
		words := strings.SplitN(line, " ", 4)
		if len(words) != 4 {
			n.t.Fatalf("bad log line %q", line)
		}
		if len(streams) == 0 || strings.Contains(strings.Join(streams, " "), words[1]) {
			b.WriteString(words[3])
		}
	}
	return b.String()
}

// output runs a script, waits for its exit and returns its output.
func (n *node) output(pod string, config *runtimeapi.ContainerConfig) string {
	n.t.Helper()
	id := n.startContainer(pod, config)
	n.waitExit(id)
	text := n.logText(id)
	if _, err := n.RemoveContainer(context.Background(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
		n.t.Error(err)
	}
	return text
}

func (n *node) exec(id string, timeout int64, cmd ...string) (*runtimeapi.ExecSyncResponse, error) {
	return n.ExecSync(context.Background(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: cmd, Timeout: timeout})
}

func (n *node) imported() *node {
	n.t.Helper()
	names, err := n.Import(context.Background(), bytes.NewReader(archive(n.t, "busybox:latest", busybox(n.t))))
	if err != nil || len(names) != 1 || names[0] != "docker.io/library/busybox:latest" {
		n.t.Fatalf("imported %v, %v", names, err)
	}
	return n
}

func TestPod(t *testing.T) {
	n := newNode(t).imported()
	pod := n.run(n.pod("first"))
	st, err := n.PodSandboxStatus(context.Background(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod})
	if err != nil {
		t.Fatal(err)
	}
	if st.Status.State != runtimeapi.PodSandboxState_SANDBOX_READY || st.Status.Network.Ip != "10.244.0.2" {
		t.Errorf("the sandbox is %v", st.Status)
	}
	id := n.startContainer(pod, shell("hello", `echo out; echo err >&2; hostname; cat /etc/resolv.conf; ip addr show eth0 | grep -o 10.244.0.2/24; ls /gone; ls /old; cat /bin/again; exit 3`))
	end := n.waitExit(id)
	if end.ExitCode != 3 || end.Reason != "Error" || end.FinishedAt < end.StartedAt || end.StartedAt < end.CreatedAt {
		t.Errorf("it ended %v", end)
	}
	want := "out\nfirst\nsearch default.svc.cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n10.244.0.2/24\nnew\nx"
	if got := strings.TrimSpace(n.logText(id, "stdout")); got != want {
		t.Errorf("stdout is %q, want %q", got, want)
	}
	if got := n.logText(id, "stderr"); got != "err\nls: /gone: No such file or directory\n" {
		t.Errorf("stderr is %q", got)
	}
	server := n.startContainer(pod, shell("server", "mkdir /www; echo hello > /www/index.html; httpd -f -p 80 -h /www"))
	other := n.run(n.pod("second"))
	if got := n.output(other, shell("client", "for i in 1 2 3 4 5 6 7 8 9; do wget -q -O - http://10.244.0.2/ && break; sleep 0.1; done")); got != "hello\n" {
		t.Errorf("the other pod got %q", got)
	}
	if s := n.status(server); s.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the server is %v", s)
	}
	if _, err := n.create(pod, shell("server", "true")); err == nil || !strings.Contains(err.Error(), "is reserved for") {
		t.Errorf("a name was taken twice: %v", err)
	}
	if entries, err := os.ReadDir(filepath.Join(n.path("logs"), "first")); err != nil || len(entries) != 2 {
		t.Errorf("log directories are %v, %v", entries, err)
	}
	fmt.Fprintln(io.Discard)
}

// BenchmarkPod creates, starts and removes pods, and reports the milliseconds of each call.
func BenchmarkPod(b *testing.B) {
	n := newNode(b).imported()
	ctx := context.Background()
	// The CPU time of the runtime and its children is measured in one cgroup.
	groups, err := cgroup.Open()
	if err != nil {
		b.Fatal(err)
	}
	if err := groups.Create(n.cgroup+"/bench", cgroup.Resources{}); err != nil {
		b.Fatal(err)
	}
	if err := groups.AddProcess(n.cgroup+"/bench", n.cmd.Process.Pid); err != nil {
		b.Fatal(err)
	}
	used := func() uint64 {
		s, err := groups.Stats(n.cgroup)
		if err != nil {
			b.Fatal(err)
		}
		return s.CPUNanoseconds
	}
	begin := used()
	cpu := map[string]uint64{}
	spent := map[string]time.Duration{}
	timed := func(what string, f func() error) {
		start, before := time.Now(), used()
		if err := f(); err != nil {
			b.Fatal(err)
		}
		spent[what] += time.Since(start)
		cpu[what] += used() - before
	}
	for i := 0; b.Loop(); i++ {
		name := fmt.Sprint("pod", i)
		var pod, id string
		timed("sandbox", func() error { pod = n.run(n.pod(name)); return nil })
		timed("create", func() (err error) {
			id, err = n.create(pod, shell("c", "sleep 1000", func(c *runtimeapi.ContainerConfig) {
				c.Linux.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
			}))
			return err
		})
		timed("start", func() error {
			_, err := n.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
			return err
		})
		timed("exec", func() error {
			_, err := n.exec(id, 0, "true")
			return err
		})
		timed("stop", func() error {
			_, err := n.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod})
			return err
		})
		timed("remove", func() error {
			_, err := n.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod})
			return err
		})
	}
	for what, d := range spent {
		b.ReportMetric(float64(d.Microseconds())/1000/float64(b.N), what+"-ms")
		b.ReportMetric(float64(cpu[what]/1000)/1000/float64(b.N), what+"-cpu-ms")
	}
	b.ReportMetric(float64((used()-begin)/1000)/1000/float64(b.N), "cpu-ms")
}

// BenchmarkIdle measures a runtime with idle pods: its memory in MiB, the additional memory per pod
// in KiB, and CPU in per mille of a core.
func BenchmarkIdle(b *testing.B) {
	n := newNode(b).imported()
	memory := func() (pss, anonymous float64) {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", n.cmd.Process.Pid))
		if err != nil {
			b.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			var kib float64
			name, rest, _ := strings.Cut(line, ":")
			_, _ = fmt.Sscan(rest, &kib)
			switch name {
			case "Pss":
				pss = kib
			case "Anonymous":
				anonymous = kib
			}
		}
		return pss, anonymous
	}
	cpu := func() float64 {
		var ns float64
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", n.cmd.Process.Pid))
		for _, task := range tasks {
			if data, err := os.ReadFile(task); err == nil {
				var own float64
				_, _ = fmt.Sscan(string(data), &own)
				ns += own
			}
		}
		return ns
	}
	pss, anonymous := memory()
	const pods = 30
	for i := range pods {
		n.startContainer(n.run(n.pod(fmt.Sprint("idle", i))), shell("c", "exec sleep 1000"))
	}
	const rest = 5 * time.Second
	time.Sleep(rest) // garbage from creating the pods is collected in this time
	begin := cpu()
	time.Sleep(rest)
	used := cpu() - begin
	pssAfter, anonymousAfter := memory()
	threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", n.cmd.Process.Pid))
	for b.Loop() {
	}
	b.ReportMetric(pss/1024, "pss-MiB")
	b.ReportMetric(anonymous/1024, "anonymous-MiB")
	b.ReportMetric(pssAfter/1024, "pss-with-pods-MiB")
	b.ReportMetric((anonymousAfter-anonymous)/pods, "anonymous-KiB/pod")
	b.ReportMetric(used/float64(rest)*1000, "cpu-permille")
	b.ReportMetric(float64(len(threads)), "threads")
}
