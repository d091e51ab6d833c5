package controlplane

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"hyperkube/components/cluster/progress"
	"hyperkube/internal/client"
)

// serveAs serves the API of the control plane node with a handler and with the certificate of its
// API server.
func serveAs(t *testing.T, m *controlPlaneNode, handle http.HandlerFunc) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m.address = netip.MustParseAddr("127.0.0.1")
	m.settings.Port = listener.Addr().(*net.TCPAddr).Port
	m.steps = progress.New(func(progress.Step) {})
	if err := m.prepare(); err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: handle}}
	server.TLS = &tls.Config{Certificates: []tls.Certificate{m.pki.APIServer.TLS()}}
	server.StartTLS()
	t.Cleanup(server.Close)
}

// TestAPIServerWatch: init waits until an API server whose manifest changed has stopped. It does not
// wait if the manifest is the same.
func TestAPIServerWatch(t *testing.T) {
	m := newTestNode(t)
	watching, release := make(chan struct{}), make(chan struct{})
	var stopped atomic.Bool
	serveAs(t, m, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		close(watching)
		<-release
		stopped.Store(true)
	})
	w := m.watchAPIServer(t.Context())
	defer w.Stop()
	<-watching
	if err := w.waitStopped(t.Context(), m.waitOptions()); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(m.layout.StaticPods(), "kube-apiserver.yaml"), []byte("another"), 0o600); err != nil {
		t.Fatal(err)
	}
	waiting, done := make(chan struct{}), make(chan bool, 1)
	report := sync.OnceFunc(func() { close(waiting) })
	p := m.waitOptions()
	p.FirstReport, p.Report = time.Nanosecond, func(string) { report() }
	go func() {
		if err := w.waitStopped(t.Context(), p); err != nil {
			t.Error(err)
		}
		done <- stopped.Load()
	}()
	select {
	case <-done:
		close(release)
		t.Fatal("did not wait for the old API server")
	case <-waiting:
		close(release)
	}
	if !<-done {
		t.Error("did not wait for the old API server")
	}
}

// TestSkippedPhases: phases in --skip-phases are skipped, and all others run.
func TestSkippedPhases(t *testing.T) {
	ran := func(skip ...string) (node, addons bool) {
		t.Helper()
		m := newTestNode(t)
		m.settings.Skip = skip
		var mu sync.Mutex
		serveAs(t, m, func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			node = node || strings.HasPrefix(r.URL.Path, "/api/v1/nodes/")
			w.Header().Set("Content-Type", "application/json")
			if strings.HasSuffix(r.URL.Path, "/configmaps/hyperkube-addons") { // the first request about add-ons
				addons = true
				w.WriteHeader(http.StatusForbidden)
				return
			}
			if r.Method == http.MethodGet {
				fmt.Fprint(w, `{"metadata": {"name": "m", "labels": {"node-role.kubernetes.io/control-plane": ""}}}`)
				return
			}
			_, _ = io.Copy(w, r.Body)
		})
		_, err := m.setup().configure(t.Context())
		mu.Lock()
		defer mu.Unlock()
		if (err != nil) != addons || addons && !apierrors.IsForbidden(err) {
			t.Fatal(err)
		}
		return node, addons
	}
	if node, addons := ran(); !node || !addons {
		t.Errorf("with all phases: node %v, add-ons %v", node, addons)
	}
	if node, addons := ran("addon"); !node || addons {
		t.Errorf("without addon: node %v, add-ons %v", node, addons)
	}
	if node, addons := ran("mark-control-plane"); node || !addons {
		t.Errorf("without mark-control-plane: node %v, add-ons %v", node, addons)
	}
}

// TestRetryTransient: requests that fail while the API server restarts are retried. Requests that it
// refuses are not.
func TestRetryTransient(t *testing.T) {
	m := newTestNode(t)
	var requests atomic.Int32
	serveAs(t, m, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/readyz":
		case requests.Add(1) == 1:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			w.WriteHeader(http.StatusForbidden)
		}
	})
	config, err := m.setup().adminConfig()
	if err != nil {
		t.Fatal(err)
	}
	clients, err := client.New(client.Config{REST: config})
	if err != nil {
		t.Fatal(err)
	}
	objects, err := m.setup().configObjects()
	if err != nil {
		t.Fatal(err)
	}
	err = m.retryTransient(t.Context(), clients, func(ctx context.Context) error { return applyAll(ctx, clients, objects) })
	if err == nil || requests.Load() != 2 {
		t.Errorf("%d requests: %v", requests.Load(), err)
	}
}
