// Package pluginwatch follows the sockets by which plugins make themselves known
// to the kubelet. Each socket below the folder is asked who it is, and whoever
// handles plugins of that type is told; when the socket goes, so is the plugin.
// https://kubernetes.io/docs/reference/node/kubelet-files/#plugin-registration
package pluginwatch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"hyperkube/internal/layout"
	"hyperkube/internal/lifecycle"
)

// Plugin is what a plugin says of itself.
type Plugin struct {
	// Name is that of the driver.
	Name string
	// Endpoint is the path of the socket that the plugin serves on, Socket that
	// of the one that it was found by; often the same.
	Endpoint, Socket string
	// Alias is by what path the plugin knows the kubelet's root directory: zero for
	// one that calls its endpoint by where it is, as programs outside of pods do.
	Alias layout.Alias
	// Versions are those of its type's protocol.
	Versions []string
}

// Handler takes in plugins of one type. Its methods are called by several
// goroutines, though never at once for one socket.
type Handler interface {
	// Register takes in a plugin. Its error is told to the plugin, which is then
	// asked again later.
	Register(ctx context.Context, p Plugin) error
	// Deregister is called when the socket of a registered plugin has gone.
	Deregister(p Plugin)
}

// Bounds of the time between two attempts at one socket, and how long one takes.
const (
	retryFirst = 200 * time.Millisecond
	retryMost  = 30 * time.Second
	askFor     = 10 * time.Second
)

// Watcher follows one folder.
type Watcher struct {
	// Dir is made if it is missing, and followed when it is made anew.
	Dir string
	// Alias is by what path pods know the kubelet's root directory.
	Alias layout.Alias
	// Handlers by type: CSIPlugin, DevicePlugin, DRAPlugin.
	Handlers map[string]Handler
	Log      *slog.Logger

	watch func() (*fsnotify.Watcher, error) // nil: of the kernel

	mu    sync.Mutex // guards found
	found map[string]bool
}

// Sockets are those that are there, and whether the plugin at each is registered.
func (w *Watcher) Sockets() map[string]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.found)
}

// note says that a socket is there, and whether its plugin is registered.
func (w *Watcher) note(path string, registered bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.found == nil {
		w.found = map[string]bool{}
	}
	w.found[path] = registered
}

// forget says that a socket has gone.
func (w *Watcher) forget(path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.found, path)
}

// socket is one that is there.
type socket struct {
	file   fs.FileInfo
	cancel context.CancelFunc
	done   chan struct{}
}

// Run follows the folder until ctx ends. The plugins are not deregistered then.
func (w *Watcher) Run(ctx context.Context) error {
	w.Dir = filepath.Clean(w.Dir)
	if err := os.MkdirAll(w.Dir, 0o750); err != nil {
		return fmt.Errorf("making the directory of plugins' sockets: %w", err)
	}
	watch := w.watch
	if watch == nil {
		watch = fsnotify.NewWatcher
	}
	notify, err := watch()
	if err != nil {
		return fmt.Errorf("watching plugins' sockets: %w", err)
	}
	defer notify.Close()
	ctx, cancel := context.WithCancel(ctx)
	f := &followed{w: w, notify: notify, sockets: map[string]*socket{}}
	defer f.wait.Wait()
	defer cancel()
	// The folder itself may be removed and made anew.
	if err := notify.Add(filepath.Dir(w.Dir)); err != nil {
		return fmt.Errorf("watching plugins' sockets: %w", err)
	}
	if err := f.walk(ctx, w.Dir); err != nil {
		return fmt.Errorf("looking for plugins' sockets: %w", err)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err, ok := <-notify.Errors:
			if !ok {
				return nil
			}
			w.Log.Warn("following plugins' sockets", "error", err)
			f.again(ctx)
		case ev, ok := <-notify.Events:
			if !ok {
				return nil
			}
			f.event(ctx, ev)
		}
	}
}

// followed is what one Run follows. It belongs to Run's goroutine, and its methods get
// Run's context.
type followed struct {
	w       *Watcher
	notify  *fsnotify.Watcher
	sockets map[string]*socket // by path
	wait    sync.WaitGroup     // for those who follow sockets
}

// event takes in what has happened to a file.
func (f *followed) event(ctx context.Context, ev fsnotify.Event) {
	switch {
	case !within(f.w.Dir, ev.Name):
	case ev.Has(fsnotify.Create):
		if err := f.walk(ctx, ev.Name); err != nil {
			f.w.Log.Warn("following plugins' sockets", "error", err)
		}
	case ev.Has(fsnotify.Remove) || ev.Has(fsnotify.Rename):
		// A folder that is moved away takes all with it.
		f.forget(func(path string) bool { return path == ev.Name || within(ev.Name, path) && gone(path) })
	}
}

// again looks at everything, for events may have been lost, of what came and of what
// went.
func (f *followed) again(ctx context.Context) {
	f.forget(gone)
	if err := f.walk(ctx, f.w.Dir); err != nil {
		f.w.Log.Warn("looking for plugins' sockets again failed", "error", err)
	}
}

// walk follows the folders and the sockets at root and below.
func (f *followed) walk(ctx context.Context, root string) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case path != f.w.Dir && strings.HasPrefix(d.Name(), "."):
			if d.IsDir() {
				return filepath.SkipDir
			}
		case d.IsDir():
			return f.notify.Add(path)
		case d.Type()&fs.ModeSocket != 0:
			f.appeared(ctx, path)
		}
		return nil
	})
}

// appeared follows a socket, in the place of an earlier one at its path.
func (f *followed) appeared(ctx context.Context, path string) {
	file, err := os.Lstat(path)
	if err != nil {
		return // it has gone again
	}
	if old := f.sockets[path]; old != nil {
		// A file system may give the number of a file that has gone to the next one.
		if os.SameFile(old.file, file) && old.file.ModTime().Equal(file.ModTime()) {
			return // found in its folder, and told of as well
		}
		old.cancel()
		<-old.done
	}
	own, stop := context.WithCancel(ctx)
	s := &socket{file: file, cancel: stop, done: make(chan struct{})}
	f.sockets[path] = s
	f.w.note(path, false)
	f.wait.Go(func() {
		defer close(s.done)
		f.w.follow(ctx, own, path)
	})
}

// forget lets go of sockets that which says have gone.
func (f *followed) forget(which func(path string) bool) {
	for path, s := range f.sockets {
		if which(path) {
			s.cancel()
			<-s.done
			delete(f.sockets, path)
			f.w.forget(path)
		}
	}
}

// within tells whether path is dir or below it.
func within(dir, path string) bool {
	rest, ok := strings.CutPrefix(path, dir)
	return ok && (rest == "" || rest[0] == filepath.Separator)
}

func gone(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// follow registers the plugin at a socket, and deregisters it when own ends
// before ctx does.
func (w *Watcher) follow(ctx, own context.Context, path string) {
	pause := retryFirst
	for {
		plugin, handler, err := w.register(ctx, own, path)
		if err == nil {
			w.note(path, true)
			<-own.Done()
			if ctx.Err() == nil {
				w.Log.Info("a plugin has gone", "plugin", plugin.Name, "socket", path)
				handler.Deregister(plugin)
			}
			return
		}
		if own.Err() != nil {
			return
		}
		w.Log.Info("a plugin could not be registered, trying again", "socket", path, "error", err)
		if !lifecycle.Pause(own, pause) {
			return
		}
		pause = min(2*pause, retryMost)
	}
}

// register takes in the plugin at a socket, unless own ends. When ctx ends, too, the
// plugin is left as it is.
func (w *Watcher) register(ctx, own context.Context, path string) (Plugin, Handler, error) {
	conn, err := Dial(path)
	if err != nil {
		return Plugin{}, nil, fmt.Errorf("connecting to a plugin: %w", err)
	}
	defer conn.Close()
	client := registerapi.NewRegistrationClient(conn)
	ask, cancel := context.WithTimeout(own, askFor)
	defer cancel()
	// A socket is there before it is listened on.
	info, err := client.GetInfo(ask, &registerapi.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return Plugin{}, nil, fmt.Errorf("asking a plugin who it is: %w", err)
	}
	p := Plugin{Name: info.Name, Endpoint: info.Endpoint, Socket: path, Versions: info.SupportedVersions}
	if p.Endpoint == "" {
		p.Endpoint = path
	}
	if at := w.Alias.Locate(p.Endpoint); at != p.Endpoint {
		p.Endpoint, p.Alias = at, w.Alias
	}
	handler := w.Handlers[info.Type]
	if handler == nil {
		err = fmt.Errorf("no handler registered for plugin type: %s at socket %s", info.Type, path)
	} else {
		err = handler.Register(own, p)
	}
	status := &registerapi.RegistrationStatus{PluginRegistered: err == nil}
	if err != nil {
		status.Error = "RegisterPlugin error -- plugin registration failed with err: " + err.Error()
	}
	tell, cancelTell := context.WithTimeout(own, askFor)
	defer cancelTell()
	if _, told := client.NotifyRegistrationStatus(tell, status); told != nil && err == nil {
		if ctx.Err() == nil {
			handler.Deregister(p)
		}
		err = fmt.Errorf("telling a plugin that it is registered: %w", told)
	}
	if err != nil {
		return Plugin{}, nil, err
	}
	w.Log.Info("a plugin is registered", "plugin", p.Name, "type", info.Type, "endpoint", p.Endpoint)
	return p, handler, nil
}
