package kubelet

import (
	"log/slog"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"hyperkube/components/kubelet/podcerts"
	"hyperkube/components/kubelet/pods"
	"hyperkube/components/kubelet/staticpod"
	"hyperkube/components/kubelet/telemetry"
)

// TestMirrorOutlives: the mirror of a static pod whose manifest has changed or gone is
// there until the pod has ended.
func TestMirrorOutlives(t *testing.T) {
	k := &Kubelet{log: slog.New(slog.DiscardHandler)}
	k.tokens, k.podCerts = newTokens(nil), &podcerts.Issuer{}
	k.manager = pods.NewManager(&pods.Host{Log: k.log})
	var of types.UID // whose the mirror is taken for
	k.mirrors = staticpod.NewMirrors(fake.NewClientset(), func() *v1.Node { return nil }, func(uid types.UID) { of = uid }, k.log)
	stop := make(chan struct{})
	close(stop)
	sink := &staticSink{k: k, stop: stop, start: func(f func()) { f() }}
	pod := func(uid types.UID) *v1.Pod {
		p := &v1.Pod{}
		p.Name, p.Namespace, p.UID = "s", "default", uid
		return p
	}
	// Nothing runs the workers, so that none ends.
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
		k.mirrors.Seen(pod("mirror"), false)
		if of != "1" {
			t.Errorf("%s: the mirror is that of %q", step.name, of)
		}
	}
}

// TestChangedWhileEnding: of the manifests that come while the pod of the first ends, only
// the last is run, and not before that has ended.
func TestChangedWhileEnding(t *testing.T) {
	k := &Kubelet{log: slog.New(slog.DiscardHandler)}
	k.tokens, k.podCerts = newTokens(nil), &podcerts.Issuer{}
	k.manager = pods.NewManager(&pods.Host{Log: k.log, Metrics: telemetry.New()})
	stop := make(chan struct{})
	var wait sync.WaitGroup
	t.Cleanup(wait.Wait)
	t.Cleanup(func() { close(stop) })
	sink := &staticSink{k: k, stop: stop, start: wait.Go}
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
	// Nothing runs the workers, so that the first does not end.
	for _, uid := range []types.UID{"2", "3", "4"} {
		if k.manager.Done(uid) != nil {
			t.Errorf("%s runs beside the first", uid)
		}
	}
}
