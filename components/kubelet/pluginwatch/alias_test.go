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

// TestEndpointAlias: a plugin's socket is where its pod has it from, not where it
// says.
func TestEndpointAlias(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "registry")
	p := &plugin{kind: "CSIPlugin", told: make(chan *registerapi.RegistrationStatus, 9)}
	p.serve(t, filepath.Join(dir, "p.sock"))
	h := &handler{came: make(chan Plugin, 9), gone: make(chan Plugin, 9)}
	w := &Watcher{Dir: dir, Alias: layout.Alias{Known: "/e", Own: "/own"}, Handlers: map[string]Handler{"CSIPlugin": h}, Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	select {
	case got := <-h.came:
		if got.Endpoint != "/own" {
			t.Errorf("it is called at %s", got.Endpoint)
		}
	case <-time.After(2 * time.Minute):
		t.Error("it was not found")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
