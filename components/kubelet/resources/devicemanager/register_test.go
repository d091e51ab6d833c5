package devicemanager

import (
	"io"
	"log/slog"
	"os"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// TestTwoPlugins checks that while a plugin is being replaced, two plugins can serve one resource:
// the resource exists as long as either of them runs.
func TestTwoPlugins(t *testing.T) {
	dir, err := os.MkdirTemp("", "devices") // short path because socket paths are limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	changed := make(chan struct{}, 100)
	m, err := New(Config{
		Dir: dir, Active: func() []*v1.Pod { return nil }, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Changed: func([]types.UID) { changed <- struct{}{} },
	})
	if err != nil {
		t.Fatal(err)
	}
	if !m.NoCheckpoint() {
		t.Error("registration was not reported")
	}
	go func() { _ = m.Run(t.Context()) }()
	await := func(what string, all, healthy int64) {
		t.Helper()
		deadline := time.After(2 * time.Minute)
		for {
			a, h := m.Capacity()
			x, y := a[testResource], h[testResource]
			if x.Value() == all && y.Value() == healthy {
				return
			}
			select {
			case <-changed:
			case <-deadline:
				t.Fatalf("%s: there are %s devices, %s of them healthy", what, x.String(), y.String())
			}
		}
	}
	one := &plugin{lists: make(chan []*api.Device, 1), socket: "one.sock"}
	two := &plugin{lists: make(chan []*api.Device, 1), socket: "two.sock"}
	three := &plugin{lists: make(chan []*api.Device, 1), socket: "three.sock"}
	end := one.serve(t, dir)
	one.lists <- devices(api.Healthy)
	await("the first", 1, 1)
	if m.NoCheckpoint() {
		t.Error("the devices are not recorded")
	}
	endTwo := two.serve(t, dir)
	two.lists <- devices(api.Healthy, api.Healthy)
	await("the second", 2, 2)
	end()
	endThree := three.serve(t, dir)
	three.lists <- devices(api.Healthy, api.Healthy, api.Healthy)
	await("the third, though the first has ended", 3, 3)
	endThree()
	await("the second again", 2, 2)
	two.lists <- devices(api.Healthy, api.Unhealthy)
	await("the second, of which one has failed", 2, 1)
	endTwo()
	await("none", 2, 0)
}
