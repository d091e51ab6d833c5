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

// plugin is one that registers.
type plugin struct {
	registerapi.UnimplementedRegistrationServer
	kind string
	told chan *registerapi.RegistrationStatus
}

func (p *plugin) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: p.kind, Name: "p", Endpoint: "/e", SupportedVersions: []string{"1.0.0"}}, nil
}

func (p *plugin) NotifyRegistrationStatus(_ context.Context, s *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	p.told <- s
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

// handler refuses the first attempt.
type handler struct{ came, gone chan Plugin }

func (h *handler) Register(_ context.Context, p Plugin) error {
	h.came <- p
	if len(h.came) == 1 {
		return errors.New("not now")
	}
	return nil
}

func (h *handler) Deregister(p Plugin) { h.gone <- p }

func TestWatcher(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "registry")
	early := &plugin{kind: "CSIPlugin", told: make(chan *registerapi.RegistrationStatus, 9)}
	path := filepath.Join(dir, "early.sock")
	server := early.serve(t, path)
	h := &handler{came: make(chan Plugin, 9), gone: make(chan Plugin, 9)}
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
			t.Fatal("nothing was told")
			return nil
		}
	}
	if s := next(early.told); s.PluginRegistered || s.Error != "RegisterPlugin error -- plugin registration failed with err: not now" {
		t.Errorf("refused: %v", s)
	}
	if s := next(early.told); !s.PluginRegistered {
		t.Errorf("the second time: %v", s)
	}
	// One that comes later, in a folder of its own, and one of no known type.
	late := &plugin{kind: "CSIPlugin", told: make(chan *registerapi.RegistrationStatus, 9)}
	late.serve(t, filepath.Join(dir, "sub", "late.sock"))
	if s := next(late.told); !s.PluginRegistered {
		t.Errorf("late: %v", s)
	}
	odd := &plugin{kind: "Odd", told: make(chan *registerapi.RegistrationStatus, 9)}
	odd.serve(t, filepath.Join(dir, "odd.sock"))
	if s := next(odd.told); s.PluginRegistered || s.Error == "" {
		t.Errorf("of no known type: %v", s)
	}
	server.Stop() // it removes its socket
	select {
	case p := <-h.gone:
		if p.Socket != path || p.Endpoint != "/e" {
			t.Errorf("gone: %+v", p)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("a plugin whose socket has gone is still there")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if len(h.gone) > 0 {
		t.Errorf("the end of the watch is no end of the plugins: %+v", <-h.gone)
	}
}

// TestFolderMadeAnew: plugins are found in a folder that was removed, or moved away,
// and made again.
func TestFolderMadeAnew(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "r")
	h := &handler{came: make(chan Plugin, 9), gone: make(chan Plugin, 9)}
	h.came <- Plugin{} // the first attempt is refused
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
		p := &plugin{kind: "CSIPlugin", told: make(chan *registerapi.RegistrationStatus, 9)}
		p.serve(t, filepath.Join(dir, "p.sock"))
		select {
		case <-p.told:
		case <-time.After(2 * time.Minute):
			t.Fatalf("the plugin is not found in folder %d", i)
		}
		if away == nil {
			break
		}
		if err := away(); err != nil {
			t.Fatal(err)
		}
		next("the plugin's end", h.gone)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestLostEvents: when the kernel says that it has lost events, what came meanwhile
// is found and what went is let go.
func TestLostEvents(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "r")
	p := &plugin{kind: "CSIPlugin", told: make(chan *registerapi.RegistrationStatus, 9)}
	first := filepath.Join(dir, "first.sock")
	server := p.serve(t, first)
	h := &handler{came: make(chan Plugin, 9), gone: make(chan Plugin, 9)}
	h.came <- Plugin{} // the first attempt is refused
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
	next(h.came, first)
	server.Stop()
	second := filepath.Join(dir, "sub", "second.sock")
	p.serve(t, second)
	lost <- fsnotify.ErrEventOverflow
	next(h.gone, first)
	next(h.came, second)
	// One that was made anew and got the same number: only its time tells.
	if err := os.Chtimes(second, time.Time{}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	lost <- fsnotify.ErrEventOverflow
	next(h.gone, second)
	next(h.came, second)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
