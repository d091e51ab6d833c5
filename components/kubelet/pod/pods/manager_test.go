package pods

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"hyperkube/components/kubelet/cri/crifake"
	"hyperkube/components/kubelet/pod/images"
	"hyperkube/components/kubelet/pod/objectcache"
	"hyperkube/components/kubelet/pod/probe"
	"hyperkube/components/kubelet/pod/volume"
	"hyperkube/components/kubelet/telemetry"
	"hyperkube/internal/testing/testwait"
)

// bench is a Manager with a fake runtime and a fake API server.
type bench struct {
	t       *testing.T
	ctx     context.Context
	runtime *crifake.Runtime
	kube    *fake.Clientset
	manager *Manager
	// registry and host are those of manager.
	registry *Registry
	events   *record.FakeRecorder
	host     *host
	// stop stops the manager, as if the kubelet was killed.
	stop func()
}

func newBench(t *testing.T, runtime *crifake.Runtime, objs ...*v1.Pod) *bench {
	t.Helper()
	return newBenchWith(t, runtime, func(*Config) {}, objs...)
}

// newBenchWith is newBench with a changed configuration.
func newBenchWith(t *testing.T, runtime *crifake.Runtime, change func(*Config), objs ...*v1.Pod) *bench {
	t.Helper()
	kube := fake.NewClientset()
	for _, o := range objs {
		if err := kube.Tracker().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	log := slog.New(slog.DiscardHandler)
	dir := t.TempDir()
	store := objectcache.New(kube, log)
	platform := &Platform{}
	platform.SetRuntimeName("fake")
	events := record.NewFakeRecorder(10000)
	cfg := Config{
		Log: log, Platform: platform, CRI: runtime.Client(), Kube: kube, Objects: store,
		Volumes: &volume.Set{Root: dir, Types: []volume.Type{volume.EmptyDir{}, volume.HostPath{}, volume.ConfigMapVolume{Objects: store}}},
		Images:  Images{Puller: images.NewPuller(runtime)},
		Metrics: telemetry.New(),
		Events:  events,
		Node: Node{
			IPs: func() []string { return []string{"192.0.2.1"} }, Object: func() *v1.Node { return nil },
			Allocatable: func() v1.ResourceList { return nil },
		},
		Logs: Logs{Pods: filepath.Join(dir, "logs")}, Limits: Limits{CPUQuota: true, CPUQuotaPeriod: 100 * time.Millisecond},
		Prober: probe.New(func(ctx context.Context, id string, cmd []string, _ time.Duration) (int, []byte, error) {
			if runtime.OnExec == nil {
				return 0, nil, nil
			}
			code, out := runtime.OnExec(id, cmd)
			return int(code), []byte(out), nil
		}, "1.37"),
	}
	change(&cfg)
	ctx, cancel := context.WithCancel(context.Background())
	b := &bench{t: t, ctx: ctx, runtime: runtime, kube: kube, manager: NewManager(cfg), events: events}
	b.host, b.registry = b.manager.host, b.manager.host.Registry
	done := make(chan struct{})
	go func() { defer close(done); _ = b.manager.Run(ctx) }()
	b.stop = sync.OnceFunc(func() {
		cancel()
		<-done
		store.Close()
	})
	t.Cleanup(b.stop)
	return b
}

// fakeAdmitter is an Admitter of functions. preempt may be nil if it is not called.
type fakeAdmitter struct {
	admit   func(pod *v1.Pod, others []*v1.Pod) *Verdict
	preempt func(ctx context.Context, message string) (bool, string)
}

func (a *fakeAdmitter) Admit(_ context.Context, pod *v1.Pod, others []*v1.Pod) *Verdict {
	return a.admit(pod, others)
}

func (a *fakeAdmitter) PreemptForResize(ctx context.Context, _ *v1.Pod, message string) (bool, string) {
	return a.preempt(ctx, message)
}

func newPod(name string, change func(*v1.Pod)) *v1.Pod {
	zero := int64(0)
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name), Generation: 1, ResourceVersion: "1"},
		Spec: v1.PodSpec{
			NodeName: "node", RestartPolicy: v1.RestartPolicyAlways, TerminationGracePeriodSeconds: &zero,
			Containers: []v1.Container{{Name: "main", Image: "busybox:1", ImagePullPolicy: v1.PullIfNotPresent}},
		},
		Status: v1.PodStatus{Phase: v1.PodPending},
	}
	if change != nil {
		change(p)
	}
	return p
}

// add creates a pod in the API and adds it to the manager.
func (b *bench) add(p *v1.Pod) {
	b.t.Helper()
	if _, err := b.kube.CoreV1().Pods(p.Namespace).Create(b.ctx, p, metav1.CreateOptions{}); err != nil {
		b.t.Fatal(err)
	}
	b.manager.Set(b.ctx, p)
}

// await waits until the pod in the API satisfies a condition.
func (b *bench) await(name, what string, is func(*v1.Pod) bool) *v1.Pod {
	b.t.Helper()
	var pod *v1.Pod
	testwait.Succeed(b.t, "pod "+name+" to become "+what, func() (err error) {
		if pod, err = b.kube.CoreV1().Pods("default").Get(b.ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		if !is(pod) {
			return fmt.Errorf("status %+v; calls %v", pod, b.runtime.Calls())
		}
		return nil
	})
	return pod
}

func ready(p *v1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

func TestPodRuns(t *testing.T) {
	b := newBench(t, crifake.New("busybox:1"))
	b.add(newPod("a", nil))
	p := b.await("a", "ready", ready)
	if p.Status.Phase != v1.PodRunning || p.Status.PodIP == "" || p.Status.HostIP != "192.0.2.1" || p.Status.QOSClass != v1.PodQOSBestEffort {
		t.Errorf("status: %+v", p.Status)
	}
	if s := p.Status.ContainerStatuses[0]; !strings.HasPrefix(s.ContainerID, "fake://") || s.RestartCount != 0 || s.State.Running == nil {
		t.Errorf("container status: %+v", s)
	}
}

func TestPodEnds(t *testing.T) {
	b := newBench(t, crifake.New("busybox:1"))
	b.add(newPod("a", func(p *v1.Pod) { p.Spec.RestartPolicy = v1.RestartPolicyNever }))
	b.await("a", "ready", ready)
	b.runtime.Exit("main", 0)
	p := b.await("a", "succeeded", func(p *v1.Pod) bool { return p.Status.Phase == v1.PodSucceeded })
	if s := p.Status.ContainerStatuses[0].State.Terminated; s == nil || s.Reason != "Completed" {
		t.Errorf("state: %+v", p.Status.ContainerStatuses[0].State)
	}
}

func TestRestartAndBackOff(t *testing.T) {
	b := newBench(t, crifake.New("busybox:1"))
	b.add(newPod("a", nil))
	b.await("a", "ready", ready)
	b.runtime.Exit("main", 1)
	b.await("a", "restarted", func(p *v1.Pod) bool { return p.Status.ContainerStatuses[0].RestartCount == 1 && ready(p) })
	b.runtime.Exit("main", 1)
	p := b.await("a", "backing off", func(p *v1.Pod) bool {
		w := p.Status.ContainerStatuses[0].State.Waiting
		return w != nil && w.Reason == "CrashLoopBackOff"
	})
	if got := p.Status.ContainerStatuses[0].State.Waiting.Message; got != "back-off 10s restarting failed container=main pod=a_default(uid-a)" {
		t.Errorf("message %q", got)
	}
	if s := p.Status.ContainerStatuses[0].LastTerminationState.Terminated; s == nil || s.ExitCode != 1 {
		t.Errorf("last state %+v", s)
	}
}

func TestDelete(t *testing.T) {
	b := newBench(t, crifake.New("busybox:1"))
	b.add(newPod("a", nil))
	p := b.await("a", "ready", ready)
	now := metav1.Now()
	p = p.DeepCopy()
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds, p.ResourceVersion = &now, new(int64), "100"
	b.manager.Set(b.ctx, p)
	testwait.Until(t, "the deletion of the pod's object", func() bool {
		_, err := b.kube.CoreV1().Pods("default").Get(b.ctx, "a", metav1.GetOptions{})
		return err != nil
	})
	b.registry.Remove("uid-a")
	testwait.Until(t, "the pod to be removed completely", func() bool {
		s, c := b.runtime.Count()
		return s == 0 && c == 0 && len(b.registry.Pods()) == 0
	})
}

// TestForceDeleted checks that a force-deleted pod that has not terminated does not count for the
// admission of other pods, because the scheduler does not count it either.
func TestForceDeleted(t *testing.T) {
	runtime := crifake.New("busybox:1")
	runtime.Stubborn = true
	beside := map[string]int{}
	b := newBenchWith(t, runtime, func(cfg *Config) {
		cfg.Admitter = &fakeAdmitter{admit: func(p *v1.Pod, others []*v1.Pod) *Verdict {
			beside[p.Name] = len(others)
			return nil
		}}
	})
	b.add(newPod("a", func(p *v1.Pod) { *p.Spec.TerminationGracePeriodSeconds = 30 }))
	b.await("a", "ready", ready)
	b.add(newPod("b", nil))
	b.registry.Remove("uid-a")
	b.add(newPod("c", nil))
	if want := map[string]int{"a": 0, "b": 1, "c": 1}; !maps.Equal(beside, want) {
		t.Errorf("pods present at each admission: %v, want %v", beside, want)
	}
}

func TestInitContainers(t *testing.T) {
	always := v1.ContainerRestartPolicyAlways
	b := newBench(t, crifake.New("busybox:1"))
	b.add(newPod("a", func(p *v1.Pod) {
		p.Spec.InitContainers = []v1.Container{
			{Name: "first", Image: "busybox:1"},
			{Name: "sidecar", Image: "busybox:1", RestartPolicy: &always},
			{Name: "second", Image: "busybox:1"},
		}
	}))
	running := func(i int) func(*v1.Pod) bool {
		return func(p *v1.Pod) bool {
			return len(p.Status.InitContainerStatuses) == 3 && p.Status.InitContainerStatuses[i].State.Running != nil
		}
	}
	b.await("a", "in its first init container", running(0))
	b.runtime.Exit("first", 0)
	b.await("a", "in its second init container", running(2))
	b.runtime.Exit("second", 0)
	b.await("a", "ready", ready)
	b.runtime.Exit("sidecar", 0)
	b.await("a", "with a restarted sidecar", func(p *v1.Pod) bool { return p.Status.InitContainerStatuses[1].RestartCount == 1 && ready(p) })
	var order []string
	for _, c := range b.runtime.Calls() {
		if name, ok := strings.CutPrefix(c, "StartContainer "); ok {
			order = append(order, name)
		}
	}
	if want := []string{"first", "sidecar", "second", "main", "sidecar"}; !slices.Equal(order, want) {
		t.Errorf("started %v, want %v", order, want)
	}
}

func TestRestartAll(t *testing.T) {
	never := v1.ContainerRestartPolicyNever
	b := newBench(t, crifake.New("busybox:1"))
	b.add(newPod("a", func(p *v1.Pod) {
		p.Spec.RestartPolicy = v1.RestartPolicyNever
		p.Spec.InitContainers = []v1.Container{{Name: "first", Image: "busybox:1"}}
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "watcher", Image: "busybox:1", RestartPolicy: &never, RestartPolicyRules: []v1.ContainerRestartRule{{
			Action: v1.ContainerRestartRuleActionRestartAllContainers, ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}},
		}}})
	}))
	for n := range int32(2) {
		again := func(list []v1.ContainerStatus, i int) bool {
			return len(list) > i && list[i].State.Running != nil && list[i].RestartCount == n
		}
		b.await("a", "in its init container", func(p *v1.Pod) bool { return again(p.Status.InitContainerStatuses, 0) })
		b.runtime.Exit("first", 0)
		b.await("a", "ready", func(p *v1.Pod) bool {
			return again(p.Status.ContainerStatuses, 0) && again(p.Status.ContainerStatuses, 1) && ready(p)
		})
		b.runtime.Exit("watcher", 42)
	}
	p := b.await("a", "restarted twice", func(p *v1.Pod) bool { return p.Status.InitContainerStatuses[0].RestartCount == 2 })
	for _, s := range append(p.Status.ContainerStatuses, p.Status.InitContainerStatuses...) {
		if s.LastTerminationState.Terminated == nil {
			t.Errorf("%s: last state %+v", s.Name, s.LastTerminationState)
		}
	}
}

func TestInitFailureFailsPod(t *testing.T) {
	b := newBench(t, crifake.New("busybox:1"))
	b.add(newPod("a", func(p *v1.Pod) {
		p.Spec.RestartPolicy = v1.RestartPolicyNever
		p.Spec.InitContainers = []v1.Container{{Name: "first", Image: "busybox:1"}}
	}))
	b.await("a", "initialising", func(p *v1.Pod) bool {
		return len(p.Status.InitContainerStatuses) == 1 && p.Status.InitContainerStatuses[0].State.Running != nil
	})
	b.runtime.Exit("first", 3)
	p := b.await("a", "failed", func(p *v1.Pod) bool { return p.Status.Phase == v1.PodFailed })
	if p.Status.ContainerStatuses[0].State.Waiting == nil {
		t.Errorf("the app container: %+v", p.Status.ContainerStatuses[0].State)
	}
}

func TestAdoption(t *testing.T) {
	runtime := crifake.New("busybox:1")
	b := newBench(t, runtime)
	b.add(newPod("a", nil))
	p := b.await("a", "ready", ready)
	id := p.Status.ContainerStatuses[0].ContainerID

	next := newBench(t, runtime, p)
	next.manager.Set(next.ctx, p)
	deadline := time.Now().Add(300 * time.Millisecond)
	for time.Now().Before(deadline) {
		q, err := next.kube.CoreV1().Pods("default").Get(next.ctx, "a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if q.Status.ContainerStatuses[0].ContainerID != id || !ready(q) {
			t.Fatalf("the pod changed: %+v", q.Status)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if s, c := runtime.Count(); s != 1 || c != 1 {
		t.Errorf("%d sandboxes and %d containers after adoption", s, c)
	}
}

func TestReboot(t *testing.T) {
	b := newBench(t, crifake.New("busybox:1"))
	b.add(newPod("a", nil))
	b.await("a", "ready", ready)
	b.runtime.StopSandboxes()
	b.await("a", "back", func(p *v1.Pod) bool { return p.Status.ContainerStatuses[0].RestartCount == 1 && ready(p) })
}

func TestImageErrors(t *testing.T) {
	runtime := crifake.New("busybox:1")
	runtime.Fail("PullImage", errors.New("no such host"))
	b := newBench(t, runtime)
	b.add(newPod("a", func(p *v1.Pod) { p.Spec.Containers[0].Image = "nowhere.example/x:1" }))
	waits := func(reason string) func(*v1.Pod) bool {
		return func(p *v1.Pod) bool {
			if len(p.Status.ContainerStatuses) == 0 {
				return false
			}
			w := p.Status.ContainerStatuses[0].State.Waiting
			return w != nil && w.Reason == reason
		}
	}
	b.await("a", "failing to pull", waits("ErrImagePull"))
	b.add(newPod("b", func(p *v1.Pod) { p.Spec.Containers[0].Image = "Bad Name" }))
	b.await("b", "refused", waits("InvalidImageName"))
	b.add(newPod("c", func(p *v1.Pod) {
		p.Spec.Containers[0].ImagePullPolicy, p.Spec.Containers[0].Image = v1.PullNever, "x:1"
	}))
	b.await("c", "without image", waits("ErrImageNeverPull"))
}

func TestConfigMapComesLater(t *testing.T) {
	b := newBench(t, crifake.New("busybox:1"))
	b.add(newPod("a", func(p *v1.Pod) {
		p.Spec.Containers[0].Env = []v1.EnvVar{{Name: "X", ValueFrom: &v1.EnvVarSource{
			ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "cm"}, Key: "k"},
		}}}
	}))
	p := b.await("a", "waiting for its configuration", func(p *v1.Pod) bool {
		return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
			p.Status.ContainerStatuses[0].State.Waiting.Reason == "CreateContainerConfigError"
	})
	if got := p.Status.ContainerStatuses[0].State.Waiting.Message; got != `configmap "cm" not found` && got != `configmaps "cm" not found` {
		t.Errorf("message %q", got)
	}
	cm := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cm", Namespace: "default", ResourceVersion: "7"}, Data: map[string]string{"k": "v"}}
	if _, err := b.kube.CoreV1().ConfigMaps("default").Create(b.ctx, cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.await("a", "ready", ready)
}

func TestLiveness(t *testing.T) {
	runtime := crifake.New("busybox:1")
	runtime.OnExec = func(string, []string) (int32, string) { return 1, "sick" }
	b := newBench(t, runtime)
	b.add(newPod("a", func(p *v1.Pod) {
		p.Spec.Containers[0].LivenessProbe = &v1.Probe{
			ProbeHandler:  v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"check"}}},
			PeriodSeconds: 1, FailureThreshold: 1, TimeoutSeconds: 1,
		}
	}))
	b.await("a", "restarted", func(p *v1.Pod) bool {
		return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].RestartCount >= 1
	})
}

func TestDeadline(t *testing.T) {
	b := newBench(t, crifake.New("busybox:1"))
	one := int64(1)
	b.add(newPod("a", func(p *v1.Pod) { p.Spec.ActiveDeadlineSeconds = &one }))
	p := b.await("a", "failed", func(p *v1.Pod) bool { return p.Status.Phase == v1.PodFailed })
	if p.Status.Reason != "DeadlineExceeded" {
		t.Errorf("reason %q", p.Status.Reason)
	}
}

func TestImageChange(t *testing.T) {
	b := newBench(t, crifake.New("busybox:1", "busybox:2"))
	b.add(newPod("a", nil))
	p := b.await("a", "ready", ready).DeepCopy()
	p.Spec.Containers[0].Image, p.Generation = "busybox:2", 2
	b.manager.Set(b.ctx, p)
	b.await("a", "changed", func(p *v1.Pod) bool {
		s := p.Status.ContainerStatuses[0]
		return s.RestartCount == 1 && s.Image == "busybox:2" && ready(p) && p.Status.ObservedGeneration == 2
	})
}

func TestWithoutEvents(t *testing.T) {
	runtime := crifake.New("busybox:1")
	runtime.NoEvents = true
	b := newBench(t, runtime)
	b.add(newPod("a", nil))
	b.await("a", "ready", ready)
	b.runtime.Exit("main", 1)
	b.await("a", "restarted", func(p *v1.Pod) bool { return p.Status.ContainerStatuses[0].RestartCount == 1 && ready(p) })
}
