package pods

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/cri/crifake"
	"hyperkube/components/kubelet/pod/objectcache"
	"hyperkube/components/kubelet/pod/volume"
	"hyperkube/internal/host/cgroup"
)

// fakeCgroups are Cgroups that record removals.
type fakeCgroups struct {
	Cgroups
	gone []string
}

func (r *fakeCgroups) Remove(_ context.Context, name string) error {
	r.gone = append(r.gone, name)
	return nil
}

func (r *fakeCgroups) Set(string, cgroup.Resources) error { return nil }

// TestCgroupOfOrphan checks that the cgroup of an orphaned pod, whose QoS class is unknown, is
// removed.
func TestCgroupOfOrphan(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	groups, store := &fakeCgroups{}, objectcache.New(nil, log)
	defer store.Close()
	h := newHost(Config{Log: log, Objects: store, Volumes: &volume.Set{Root: t.TempDir()}, Limits: Limits{Cgroups: groups}})
	orphan := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: "u"}}
	if err := (&terminator{worker: newWorker(h, orphan), pod: orphan}).tearDown(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"/kubepods/podu", "/kubepods/burstable/podu", "/kubepods/besteffort/podu"} {
		if !slices.Contains(groups.gone, want) {
			t.Errorf("%s stays: %v", want, groups.gone)
		}
	}
	groups.gone = nil
	known := asking("u", "1", "", "")
	if err := (&terminator{worker: newWorker(h, known), pod: known}).tearDown(t.Context()); err != nil || !slices.Equal(groups.gone, []string{"/kubepods/burstable/podu"}) {
		t.Errorf("%v, %v", groups.gone, err)
	}
}

// hookedRuntime is a runtime that calls a function when sandboxes are listed.
type hookedRuntime struct {
	*crifake.Runtime
	meanwhile func()
}

func (l *hookedRuntime) ListPodSandbox(ctx context.Context, r *runtimeapi.ListPodSandboxRequest, o ...grpc.CallOption) (*runtimeapi.ListPodSandboxResponse, error) {
	l.meanwhile()
	return l.Runtime.ListPodSandbox(ctx, r, o...)
}

// TestPodsStartWhileOrphansTerminate checks that the directory of a pod that is added during the removal of
// orphans is kept.
func TestPodsStartWhileOrphansTerminate(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	set := &volume.Set{Root: t.TempDir()}
	var m *Manager
	runtime := &hookedRuntime{crifake.New(), func() {
		m.host.Registry.workers["new"] = newWorker(m.host, &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "new"}})
		for _, uid := range []types.UID{"new", "old"} {
			if err := os.MkdirAll(filepath.Join(set.PodDir(uid), "volumes"), 0o755); err != nil {
				t.Error(err)
			}
		}
	}}
	m = NewManager(Config{Log: log, CRI: &cri.Client{Runtime: runtime, Images: runtime}, Volumes: set})
	if err := m.TerminateOrphans(t.Context()); err != nil {
		t.Fatal(err)
	}
	for uid, want := range map[types.UID]bool{"new": true, "old": false} {
		if _, err := os.Stat(set.PodDir(uid)); (err == nil) != want {
			t.Errorf("directory of %s: %v", uid, err)
		}
	}
}

// TestAdmittedFirst checks that a pod that is added while the kubelet starts to watch the runtime
// does not run before it is admitted.
func TestAdmittedFirst(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	b := newBenchWith(t, crifake.New("busybox:1"), func(cfg *Config) {
		cfg.Admitter = &fakeAdmitter{admit: func(*v1.Pod, []*v1.Pod) *Verdict {
			close(asked)
			<-answer
			return &Verdict{Reason: "No", Message: "not here"}
		}}
	})
	added := make(chan struct{})
	go func() { defer close(added); b.add(newPod("p", nil)) }()
	<-asked
	b.manager.startAll()
	w := b.registry.all()[0]
	w.mu.Lock()
	running := w.running
	w.mu.Unlock()
	if running {
		t.Error("the pod to run")
	}
	close(answer)
	<-added
	b.await("p", "refused", func(p *v1.Pod) bool { return p.Status.Phase == v1.PodFailed && p.Status.Reason == "No" })
	if calls := b.runtime.Calls(); slices.ContainsFunc(calls, func(c string) bool { return strings.HasPrefix(c, "RunPodSandbox") }) {
		t.Error("a sandbox was created:", calls)
	}
}

// TestSandboxOfUnknownState checks that a sandbox that was created but could not be observed is
// found again and not created twice.
func TestSandboxOfUnknownState(t *testing.T) {
	b := newBench(t, crifake.New("busybox:1"))
	b.runtime.Fail("PodSandboxStatus", errors.New("out of sorts"))
	b.add(newPod("p", nil))
	for limit := time.After(time.Minute); ; {
		var event string
		select {
		case event = <-b.events.Events:
		case <-limit:
			t.Fatal("nothing failed")
		}
		if strings.Contains(event, "FailedPodSandBoxStatus") {
			break
		}
	}
	b.runtime.Fail("PodSandboxStatus", nil)
	b.await("p", "ready", ready)
	if n, _ := b.runtime.Count(); n != 1 {
		t.Errorf("%d sandboxes: %v", n, b.runtime.Calls())
	}
}

// TestHostsFileKept checks that an unchanged hosts file is not written again, because other
// containers have it open.
func TestHostsFileKept(t *testing.T) {
	h := newHost(Config{})
	pod := newPod("p", nil)
	path := filepath.Join(t.TempDir(), "etc-hosts")
	then := time.Unix(1e9, 0)
	for _, ip := range []string{"192.0.2.1", "192.0.2.1", "192.0.2.2"} {
		before, _ := os.ReadFile(path)
		if err := h.configs.writeHosts(path, pod, []string{ip}); err != nil {
			t.Fatal(err)
		}
		after, err := os.ReadFile(path)
		info, statErr := os.Stat(path)
		if err != nil || statErr != nil || !strings.Contains(string(after), ip) {
			t.Fatal(string(after), err, statErr)
		}
		if same := string(before) == string(after); same != info.ModTime().Equal(then) {
			t.Errorf("%s: written at %s, the same is %t", ip, info.ModTime(), same)
		}
		if err := os.Chtimes(path, then, then); err != nil {
			t.Fatal(err)
		}
	}
}
