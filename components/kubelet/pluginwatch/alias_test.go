package pluginwatch

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"hyperkube/internal/layout"
)

// TestEndpointAlias: a plugin that says where its pod has its socket is found where
// that is, and is to be told paths alike; one that says where it is knows no others.
func TestEndpointAlias(t *testing.T) {
	inPod, outside := layout.Alias{Known: "/e", Own: "/own"}, layout.Alias{Known: "/known", Own: "/e"}
	for _, c := range []struct {
		alias, told layout.Alias
		endpoint    string
	}{{inPod, inPod, "/own"}, {outside, layout.Alias{}, "/e"}} {
		dir := filepath.Join(t.TempDir(), "registry")
		p := &plugin{kind: "CSIPlugin", told: make(chan *registerapi.RegistrationStatus, 9)} // it says /e
		p.serve(t, filepath.Join(dir, "p.sock"))
		h := &handler{came: make(chan Plugin, 9), gone: make(chan Plugin, 9)}
		w := &Watcher{Dir: dir, Alias: c.alias, Handlers: map[string]Handler{"CSIPlugin": h}, Log: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		select {
		case got := <-h.came:
			if got.Endpoint != c.endpoint || got.Alias != c.told {
				t.Errorf("with %v it is called at %s and told %v", c.alias, got.Endpoint, got.Alias)
			}
		case <-time.After(2 * time.Minute):
			t.Error("it was not found")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
