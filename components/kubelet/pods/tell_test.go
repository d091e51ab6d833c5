package pods

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"hyperkube/components/kubelet/cri/crifake"
)

// told waits for an event that has this in it, and passes over all before.
func (b *bench) told(want string) {
	b.t.Helper()
	limit := time.After(time.Minute)
	for {
		select {
		case e := <-b.events.Events:
			if strings.Contains(e, want) {
				return
			}
		case <-limit:
			b.t.Fatalf("never told %q", want)
		}
	}
}

// TestLate holds that it is told, once, when a pod that the kubelet ends takes much
// longer than it should.
func TestLate(t *testing.T) {
	events := record.NewFakeRecorder(10)
	grace := int64(60)
	for name, tc := range map[string]struct {
		verdict Verdict
		want    time.Duration
	}{
		"the verdict's time": {Verdict{Grace: new(int64(20))}, 30 * time.Second},
		"the pod's time":     {Verdict{}, 90 * time.Second},
		"hardly any":         {Verdict{Grace: new(int64(1))}, 10 * time.Second},
	} {
		w := newWorker(&Host{Log: slog.New(slog.DiscardHandler), Events: events}, &v1.Pod{Spec: v1.PodSpec{TerminationGracePeriodSeconds: &grace}})
		began := time.Now()
		w.setVerdict(&tc.verdict)
		w.stage = terminating
		if after := w.lateAt.Sub(began); after < tc.want || after > tc.want+time.Minute {
			t.Errorf("%s: late after %v, want %v", name, after, tc.want)
		}
		if at := w.tellLate(w.lateAt.Add(-time.Second)); at != w.lateAt || len(events.Events) > 0 {
			t.Errorf("%s: told too early", name)
		}
		at := w.lateAt
		once, again := w.tellLate(at), w.tellLate(at)
		if !once.IsZero() || !again.IsZero() || len(events.Events) != 1 {
			t.Fatalf("%s: told %d times", name, len(events.Events))
		}
		if e := <-events.Events; e != "Warning ExceededGracePeriod Container runtime did not kill the pod within specified grace period." {
			t.Errorf("%s: told %q", name, e)
		}
	}
	w := newWorker(&Host{Log: slog.New(slog.DiscardHandler), Events: events}, &v1.Pod{})
	w.setVerdict(&Verdict{Rejected: true})
	if !w.lateAt.IsZero() {
		t.Error("a pod that was never run is late")
	}
}

func TestFamilies(t *testing.T) {
	events := record.NewFakeRecorder(10)
	w := newWorker(&Host{Log: slog.New(slog.DiscardHandler), Events: events}, &v1.Pod{})
	w.tellFamilies("", "192.0.2.1")
	w.tellFamilies("192.0.2.1", "192.0.2.2")
	w.tellFamilies("2001:db8::1", "192.0.2.1")
	if len(events.Events) != 1 {
		t.Fatalf("%d events", len(events.Events))
	}
	want := "Kubelet detected an IPv6 node IP (2001:db8::1), but the cloud provider selected an IPv4 node IP (192.0.2.1); pass an explicit `--node-ip` to kubelet to fix this."
	if e := <-events.Events; !strings.Contains(e, "HostIPsIPFamilyMismatch "+want) {
		t.Error(e)
	}
}

// TestUnseenSandbox holds that a sandbox that was made and cannot be looked at is
// told of as that.
func TestUnseenSandbox(t *testing.T) {
	runtime := crifake.New("busybox:1")
	runtime.Fail("PodSandboxStatus", errors.New("not today"))
	b := newBench(t, runtime)
	b.add(newPod("a", nil))
	b.told("FailedPodSandBoxStatus Unable to get pod sandbox status: ")
	b.told("FailedSync error determining status: ")
}

// TestSandboxWithoutAddress holds that a runtime which makes sandboxes without addresses is
// asked for another one after a pause, as after any that failed, and that it is told why.
func TestSandboxWithoutAddress(t *testing.T) {
	runtime := crifake.New("busybox:1")
	runtime.NoAddress.Store(true)
	b := newBench(t, runtime)
	p := newPod("a", nil)
	b.add(p)
	b.told("FailedCreatePodSandBox Failed to create pod sandbox: the sandbox has no IP address")
	w := b.manager.worker(p.UID)
	w.mu.Lock()
	if w.mountGap == 0 {
		t.Error("it is tried again at once")
	}
	w.mu.Unlock()
	runtime.NoAddress.Store(false)
	b.await("a", "ready", ready)
}
