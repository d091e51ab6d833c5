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

// waitForEvent waits for an event that contains want, and skips all events before it.
func (b *bench) waitForEvent(want string) {
	b.t.Helper()
	limit := time.After(time.Minute)
	for {
		select {
		case e := <-b.events.Events:
			if strings.Contains(e, want) {
				return
			}
		case <-limit:
			b.t.Fatalf("no event %q", want)
		}
	}
}

func TestFamilies(t *testing.T) {
	events := record.NewFakeRecorder(10)
	w := newWorker(newHost(Config{Log: slog.New(slog.DiscardHandler), Events: events}), &v1.Pod{})
	w.report.reportIPFamilyChange("", "192.0.2.1")
	w.report.reportIPFamilyChange("192.0.2.1", "192.0.2.2")
	w.report.reportIPFamilyChange("2001:db8::1", "192.0.2.1")
	if len(events.Events) != 1 {
		t.Fatalf("%d events", len(events.Events))
	}
	want := "Kubelet detected an IPv6 node IP (2001:db8::1), but the cloud provider selected an IPv4 node IP (192.0.2.1); pass an explicit `--node-ip` to kubelet to fix this."
	if e := <-events.Events; !strings.Contains(e, "HostIPsIPFamilyMismatch "+want) {
		t.Error(e)
	}
}

// TestUnseenSandbox checks the event of a sandbox that was created but cannot be observed.
func TestUnseenSandbox(t *testing.T) {
	runtime := crifake.New("busybox:1")
	runtime.Fail("PodSandboxStatus", errors.New("not today"))
	b := newBench(t, runtime)
	b.add(newPod("a", nil))
	b.waitForEvent("FailedPodSandBoxStatus Unable to get pod sandbox status: ")
	b.waitForEvent("FailedSync error determining status: ")
}

// TestSandboxWithoutAddress checks that a sandbox without an IP address is replaced after a
// back-off, and that an event reports the reason.
func TestSandboxWithoutAddress(t *testing.T) {
	runtime := crifake.New("busybox:1")
	runtime.NoAddress.Store(true)
	b := newBench(t, runtime)
	p := newPod("a", nil)
	b.add(p)
	b.waitForEvent("FailedCreatePodSandBox Failed to create pod sandbox: the sandbox has no IP address")
	w := b.registry.worker(p.UID)
	w.mu.Lock()
	if w.machine.Retry.At.IsZero() {
		t.Error("retried without backoff")
	}
	w.mu.Unlock()
	runtime.NoAddress.Store(false)
	b.await("a", "ready", ready)
}
