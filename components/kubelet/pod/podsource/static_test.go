package podsource

import (
	"context"
	"log/slog"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"hyperkube/components/kubelet/pod/pods"
	"hyperkube/components/kubelet/pod/staticpod"
	"hyperkube/components/kubelet/telemetry"
)

// TestMirrorOutlives checks that the mirror pod of a static pod whose manifest was changed or
// removed exists until the pod has terminated.
func TestMirrorOutlives(t *testing.T) {
	log, registry := slog.New(slog.DiscardHandler), pods.NewRegistry()
	manager := pods.NewManager(pods.Config{Log: log, Registry: registry})
	var of types.UID // UID of the pod that the mirror pod belongs to
	mirrors := staticpod.NewMirrors(fake.NewClientset(), func() *v1.Node { return nil }, func(uid types.UID) { of = uid }, log)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	sink := &staticSink{sources: New(Config{Registry: registry, Mirrors: mirrors}), stop: ctx.Done(), start: func(f func()) { f() }, set: func(p *v1.Pod) { manager.Set(ctx, p) }}
	pod := func(uid types.UID) *v1.Pod {
		p := &v1.Pod{}
		p.Name, p.Namespace, p.UID = "s", "default", uid
		return p
	}
	// Workers are not started, so that no pod terminates.
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"new", func() { sink.Set(pod("1")) }},
		{"changed", func() { sink.Set(pod("2")) }},
		{"gone", func() { sink.Remove("1") }},
	} {
		step.do()
		of = ""
		mirrors.Observe(pod("mirror"), false)
		if of != "1" {
			t.Errorf("%s: mirror pod of %q", step.name, of)
		}
	}
}

// TestChangedWhileEnding checks that of several manifests that replace each other while the first
// pod terminates, only the last one is run, and not before the first pod has terminated.
func TestChangedWhileEnding(t *testing.T) {
	log, registry := slog.New(slog.DiscardHandler), pods.NewRegistry()
	manager := pods.NewManager(pods.Config{Log: log, Registry: registry, Metrics: telemetry.New()})
	ctx, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	t.Cleanup(wait.Wait)
	t.Cleanup(cancel)
	sink := &staticSink{sources: New(Config{Registry: registry}), stop: ctx.Done(), start: wait.Go, set: func(p *v1.Pod) { manager.Set(ctx, p) }}
	set := func(uid types.UID) {
		p := &v1.Pod{}
		p.Name, p.Namespace, p.UID = "s", "default", uid
		sink.Set(p)
	}
	set("1")
	for _, change := range [][2]types.UID{{"1", "2"}, {"2", "3"}, {"3", "4"}} {
		sink.Remove(change[0])
		set(change[1])
	}
	// Workers are not started, so that the first pod does not terminate.
	for _, uid := range []types.UID{"2", "3", "4"} {
		if registry.Done(uid) != nil {
			t.Errorf("%s runs in addition to the first", uid)
		}
	}
}
