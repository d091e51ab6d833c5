package pluginwatch

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"hyperkube/internal/host/layout"
)

// TestEndpointAlias checks that a plugin that registers an endpoint path inside its pod is found at
// the host path, and gets paths inside its pod. A plugin that registers a host path gets host
// paths.
func TestEndpointAlias(t *testing.T) {
	inPod, outside := layout.Alias{Advertised: "/e", Actual: "/own"}, layout.Alias{Advertised: "/known", Actual: "/e"}
	for _, c := range []struct {
		alias, wantAlias layout.Alias
		endpoint         string
	}{{inPod, inPod, "/own"}, {outside, layout.Alias{}, "/e"}} {
		dir := filepath.Join(t.TempDir(), "registry")
		p := &plugin{kind: "CSIPlugin", notified: make(chan *registerapi.RegistrationStatus, 9)} // its endpoint is /e
		p.serve(t, filepath.Join(dir, "p.sock"))
		h := &handler{registered: make(chan Plugin, 9), deregistered: make(chan Plugin, 9)}
		w := &Watcher{Dir: dir, Alias: c.alias, Handlers: map[string]Handler{"CSIPlugin": h}, Log: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		select {
		case got := <-h.registered:
			if got.Endpoint != c.endpoint || got.Alias != c.wantAlias {
				t.Errorf("with %v got endpoint %s and alias %v", c.alias, got.Endpoint, got.Alias)
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
