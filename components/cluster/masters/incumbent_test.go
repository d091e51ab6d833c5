package masters

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

	"hyperkube/components/cluster/progress"
	"hyperkube/internal/client"
)

// serveAs has the master's API server answered by a handler, under its own certificate.
func serveAs(t *testing.T, m *master, handle http.HandlerFunc) {
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

// TestIncumbent: an API server whose manifest is another is waited for until it has gone,
// and one whose manifest is the same is not.
func TestIncumbent(t *testing.T) {
	m := testMaster(t)
	asked, release := make(chan struct{}), make(chan struct{})
	var gone atomic.Bool
	serveAs(t, m, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		close(asked)
		<-release
		gone.Store(true)
	})
	i := m.incumbent(t.Context())
	defer i.Stop()
	<-asked
	if err := i.leave(t.Context(), m.patience()); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(m.layout.StaticPods(), "kube-apiserver.yaml"), []byte("another"), 0o600); err != nil {
		t.Fatal(err)
	}
	waits, waited := make(chan struct{}), make(chan bool, 1)
	told := sync.OnceFunc(func() { close(waits) })
	p := m.patience()
	p.First, p.Say = time.Nanosecond, func(string) { told() }
	go func() {
		if err := i.leave(t.Context(), p); err != nil {
			t.Error(err)
		}
		waited <- gone.Load()
	}()
	select {
	case <-waited:
		close(release)
		t.Fatal("it is not waited for")
	case <-waits:
		close(release)
	}
	if !<-waited {
		t.Error("it is not waited for")
	}
}

// TestSkippedPhases: what is to be left out is not done, and all else is.
func TestSkippedPhases(t *testing.T) {
	done := func(skip ...string) (node, addons bool) {
		t.Helper()
		m := testMaster(t)
		m.settings.Skip = skip
		var mu sync.Mutex
		serveAs(t, m, func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			node = node || strings.HasPrefix(r.URL.Path, "/api/v1/nodes/")
			addons = addons || strings.Contains(r.URL.Path, "/deployments/")
			w.Header().Set("Content-Type", "application/json")
			if r.Method == http.MethodGet {
				fmt.Fprint(w, `{"metadata": {"name": "m", "labels": {"node-role.kubernetes.io/control-plane": ""}}}`)
				return
			}
			_, _ = io.Copy(w, r.Body)
		})
		if _, err := m.configure(t.Context()); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		defer mu.Unlock()
		return node, addons
	}
	if node, addons := done(); !node || !addons {
		t.Errorf("with all phases: node %v, add-ons %v", node, addons)
	}
	if node, addons := done("addon"); !node || addons {
		t.Errorf("without add-ons: node %v, add-ons %v", node, addons)
	}
	if node, addons := done("mark-control-plane"); node || !addons {
		t.Errorf("without the marking: node %v, add-ons %v", node, addons)
	}
}

// TestPersist: what fails while the API server starts again is done again, and what it
// refuses is not.
func TestPersist(t *testing.T) {
	m := testMaster(t)
	var asked atomic.Int32
	serveAs(t, m, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/readyz":
		case asked.Add(1) == 1:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			w.WriteHeader(http.StatusForbidden)
		}
	})
	config, err := m.super()
	if err != nil {
		t.Fatal(err)
	}
	clients, err := client.New(client.Config{REST: config})
	if err != nil {
		t.Fatal(err)
	}
	objects, err := m.configObjects()
	if err != nil {
		t.Fatal(err)
	}
	err = m.persist(t.Context(), clients, func(ctx context.Context) error { return applyAll(ctx, clients, objects) })
	if err == nil || asked.Load() != 2 {
		t.Errorf("asked %d times: %v", asked.Load(), err)
	}
}
