package pluginwatch

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// plugin is a plugin that registers.
type plugin struct {
	registerapi.UnimplementedRegistrationServer
	kind     string
	notified chan *registerapi.RegistrationStatus
}

func (p *plugin) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: p.kind, Name: "p", Endpoint: "/e", SupportedVersions: []string{"1.0.0"}}, nil
}

func (p *plugin) NotifyRegistrationStatus(_ context.Context, s *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	p.notified <- s
	return &registerapi.RegistrationStatusResponse{}, nil
}

func (p *plugin) serve(t *testing.T, socket string) *grpc.Server {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	registerapi.RegisterRegistrationServer(s, p)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return s
}

// handler fails the first registration.
type handler struct{ registered, deregistered chan Plugin }

func (h *handler) Register(_ context.Context, p Plugin) error {
	h.registered <- p
	if len(h.registered) == 1 {
		return errors.New("not now")
	}
	return nil
}

func (h *handler) Deregister(p Plugin) { h.deregistered <- p }

func TestWatcher(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "registry")
	early := &plugin{kind: "CSIPlugin", notified: make(chan *registerapi.RegistrationStatus, 9)}
	path := filepath.Join(dir, "early.sock")
	server := early.serve(t, path)
	h := &handler{registered: make(chan Plugin, 9), deregistered: make(chan Plugin, 9)}
	w := &Watcher{Dir: dir, Handlers: map[string]Handler{"CSIPlugin": h}, Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	next := func(c chan *registerapi.RegistrationStatus) *registerapi.RegistrationStatus {
		t.Helper()
		select {
		case s := <-c:
			return s
		case <-time.After(2 * time.Minute):
			t.Fatal("no notification")
			return nil
		}
	}
	if s := next(early.notified); s.PluginRegistered || s.Error != "RegisterPlugin error -- plugin registration failed with err: not now" {
		t.Errorf("refused: %v", s)
	}
	if s := next(early.notified); !s.PluginRegistered {
		t.Errorf("the second time: %v", s)
	}
	// A plugin that starts later in a subdirectory, and one of unknown type.
	late := &plugin{kind: "CSIPlugin", notified: make(chan *registerapi.RegistrationStatus, 9)}
	late.serve(t, filepath.Join(dir, "sub", "late.sock"))
	if s := next(late.notified); !s.PluginRegistered {
		t.Errorf("late: %v", s)
	}
	odd := &plugin{kind: "Odd", notified: make(chan *registerapi.RegistrationStatus, 9)}
	odd.serve(t, filepath.Join(dir, "odd.sock"))
	if s := next(odd.notified); s.PluginRegistered || s.Error == "" {
		t.Errorf("unknown type: %v", s)
	}
	server.Stop() // Stop removes the socket
	select {
	case p := <-h.deregistered:
		if p.Socket != path || p.Endpoint != "/e" {
			t.Errorf("gone: %+v", p)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("a plugin without a socket is still registered")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if len(h.deregistered) > 0 {
		t.Errorf("plugins were deregistered at the end of the watch: %+v", <-h.deregistered)
	}
}

// TestDirectoryRecreated checks that plugins are found after the directory was removed or moved away,
// and recreated.
func TestDirectoryRecreated(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "r")
	h := &handler{registered: make(chan Plugin, 9), deregistered: make(chan Plugin, 9)}
	h.registered <- Plugin{} // the first registration fails
	w := &Watcher{Dir: dir, Handlers: map[string]Handler{"CSIPlugin": h}, Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	next := func(what string, c chan Plugin) Plugin {
		t.Helper()
		select {
		case p := <-c:
			return p
		case <-time.After(2 * time.Minute):
			t.Fatal("not seen: " + what)
			return Plugin{}
		}
	}
	for i, away := range []func() error{
		func() error { return os.RemoveAll(dir) },
		func() error { return os.Rename(dir, dir+"-old") },
		nil,
	} {
		p := &plugin{kind: "CSIPlugin", notified: make(chan *registerapi.RegistrationStatus, 9)}
		p.serve(t, filepath.Join(dir, "p.sock"))
		select {
		case <-p.notified:
		case <-time.After(2 * time.Minute):
			t.Fatalf("the plugin is not found in directory %d", i)
		}
		if away == nil {
			break
		}
		if err := away(); err != nil {
			t.Fatal(err)
		}
		next("the plugin's end", h.deregistered)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestLostEvents checks that after an event overflow new sockets are found and removed ones are
// deregistered.
func TestLostEvents(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "r")
	p := &plugin{kind: "CSIPlugin", notified: make(chan *registerapi.RegistrationStatus, 9)}
	first := filepath.Join(dir, "first.sock")
	server := p.serve(t, first)
	h := &handler{registered: make(chan Plugin, 9), deregistered: make(chan Plugin, 9)}
	h.registered <- Plugin{} // the first registration fails
	lost := make(chan error)
	w := &Watcher{Dir: dir, Handlers: map[string]Handler{"CSIPlugin": h}, Log: slog.New(slog.DiscardHandler)}
	w.watch = func() (*fsnotify.Watcher, error) {
		n, err := fsnotify.NewWatcher()
		if err == nil {
			n.Events, n.Errors = nil, lost
		}
		return n, err
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	next := func(c chan Plugin, want string) {
		t.Helper()
		for {
			select {
			case got := <-c:
				if got.Socket == want {
					return
				}
			case <-time.After(2 * time.Minute):
				t.Fatal("not seen: " + want)
			}
		}
	}
	next(h.registered, first)
	server.Stop()
	second := filepath.Join(dir, "sub", "second.sock")
	p.serve(t, second)
	lost <- fsnotify.ErrEventOverflow
	next(h.deregistered, first)
	next(h.registered, second)
	// A recreated socket with the same inode number differs only by its modification time.
	if err := os.Chtimes(second, time.Time{}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	lost <- fsnotify.ErrEventOverflow
	next(h.deregistered, second)
	next(h.registered, second)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
