// Package pluginwatch watches the registration sockets of plugins. It calls GetInfo on each socket
// below a directory and registers the plugin with the Handler of its type. When the socket is
// removed, the plugin is deregistered.
//
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

	"hyperkube/internal/base/backoff"
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/host/layout"
)

// Plugin describes a plugin, such as a CSI driver, that registers with the kubelet.
type Plugin struct {
	// Name is the name of the driver.
	Name string
	// Endpoint is the path of the socket that the plugin serves on. Socket is the path of its
	// registration socket, often the same.
	Endpoint, Socket string
	// Alias maps the kubelet's root directory to the path by which the plugin accesses it. It is
	// zero if the plugin registered its endpoint by the host path, as processes outside of pods do.
	Alias layout.Alias
	// Versions are the supported API versions.
	Versions []string
}

// Handler manages the plugins of one type. Its methods are called concurrently, but not for the same socket.
type Handler interface {
	// Register registers a plugin. Its error is returned to the plugin, and the registration is
	// retried later.
	Register(ctx context.Context, p Plugin) error
	// Deregister is called when the registration socket of a registered plugin was removed or replaced, or when
	// the plugin could not be notified of its registration.
	Deregister(p Plugin)
}

// minRetryBackoff and maxRetryBackoff are the first and the longest delay before a failed registration of a plugin
// is tried again. registerTimeout is how long one attempt may take.
const (
	minRetryBackoff = 200 * time.Millisecond
	maxRetryBackoff = 30 * time.Second
	registerTimeout = 10 * time.Second
)

// Watcher watches a directory of registration sockets and registers the plugins.
type Watcher struct {
	// Dir is created if it does not exist, and watched again if it is recreated.
	Dir string
	// Alias is the path by which pods access the kubelet's root directory.
	Alias layout.Alias
	// Handlers are the handlers by plugin type, such as CSIPlugin and DRAPlugin. A plugin of another type is not
	// registered.
	Handlers map[string]Handler
	Log      *slog.Logger

	watch func() (*fsnotify.Watcher, error) // fsnotify.NewWatcher by default

	// mu guards sockets, the existing sockets and whether the plugin at each is registered.
	mu      sync.Mutex
	sockets map[string]bool
}

// Sockets returns the existing registration sockets, and whether the plugin at each is registered, for
// metrics.
func (w *Watcher) Sockets() map[string]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.sockets)
}

// setRegistered records that a socket exists, and whether its plugin is registered.
func (w *Watcher) setRegistered(path string, registered bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sockets == nil {
		w.sockets = map[string]bool{}
	}
	w.sockets[path] = registered
}

// removeSocket removes the registration socket at path from those that Sockets returns.
func (w *Watcher) removeSocket(path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.sockets, path)
}

// socket is an existing registration socket, and the task that handles it.
type socket struct {
	*lifecycle.Task
	file fs.FileInfo
}

// Run registers the plugins of existing and new sockets, and deregisters those of removed ones, until ctx is
// done. Plugins are not deregistered when it returns. It returns an error if the directory cannot be watched.
func (w *Watcher) Run(ctx context.Context) error {
	w.Dir = filepath.Clean(w.Dir)
	if err := os.MkdirAll(w.Dir, 0o750); err != nil {
		return fmt.Errorf("creating the plugin registration directory: %w", err)
	}
	watch := w.watch
	if watch == nil {
		watch = fsnotify.NewWatcher
	}
	notify, err := watch()
	if err != nil {
		return fmt.Errorf("watching the plugin registration directory: %w", err)
	}
	defer notify.Close()
	ctx, cancel := context.WithCancel(ctx)
	f := &watchState{w: w, notify: notify, sockets: map[string]*socket{}}
	defer f.stop()
	defer cancel() // before the sockets are stopped, so that plugins are not deregistered
	// The directory itself may be removed and recreated.
	if err := notify.Add(filepath.Dir(w.Dir)); err != nil {
		return fmt.Errorf("watching the plugin registration directory: %w", err)
	}
	if err := f.walk(ctx, w.Dir); err != nil {
		return fmt.Errorf("listing plugin sockets: %w", err)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err, ok := <-notify.Errors:
			if !ok {
				return nil
			}
			w.Log.Warn("watch of the plugin registration directory reported an error, so new sockets may have been missed; listing the directory again now", "directory", w.Dir, "err", err)
			f.rescan(ctx)
		case ev, ok := <-notify.Events:
			if !ok {
				return nil
			}
			f.event(ctx, ev)
		}
	}
}

// watchState is the state of one Run. Only Run's goroutine uses it. Its methods get Run's context.
type watchState struct {
	w       *Watcher
	notify  *fsnotify.Watcher
	sockets map[string]*socket // by path
}

// stop stops handling all sockets.
func (f *watchState) stop() {
	for _, s := range f.sockets {
		s.Stop()
	}
}

// event handles a file event: it adds new sockets and directories, and removes deleted ones.
func (f *watchState) event(ctx context.Context, ev fsnotify.Event) {
	switch {
	case !within(f.w.Dir, ev.Name):
	case ev.Has(fsnotify.Create):
		if err := f.walk(ctx, ev.Name); err != nil {
			f.w.Log.Warn("watching new file or directory in the plugin registration directory failed; plugins in it are not registered: recreate it or restart the kubelet", "path", ev.Name, "err", err)
		}
	case ev.Has(fsnotify.Remove) || ev.Has(fsnotify.Rename):
		// Moving a directory away removes all sockets in it.
		f.removeSockets(func(path string) bool { return path == ev.Name || within(ev.Name, path) && notExist(path) })
	}
}

// rescan compares the known sockets with the directory, because creation and removal events may have been
// lost.
func (f *watchState) rescan(ctx context.Context) {
	f.removeSockets(notExist)
	if err := f.walk(ctx, f.w.Dir); err != nil {
		f.w.Log.Warn("listing plugin sockets failed; plugins with new sockets are not registered until their sockets are recreated or the kubelet restarts", "directory", f.w.Dir, "err", err)
	}
}

// walk adds the directory root and those below it to the watch, and handles the sockets in them. Names that
// begin with a dot are ignored.
func (f *watchState) walk(ctx context.Context, root string) error {
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
			f.addSocket(ctx, path)
		}
		return nil
	})
}

// addSocket starts a goroutine that handles the socket at path. It replaces an earlier socket at the same
// path. A socket that is already handled is ignored.
func (f *watchState) addSocket(ctx context.Context, path string) {
	file, err := os.Lstat(path)
	if err != nil {
		return // removed again
	}
	if old := f.sockets[path]; old != nil {
		// File systems can reuse the inode number of a removed file.
		if os.SameFile(old.file, file) && old.file.ModTime().Equal(file.ModTime()) {
			return // found by the scan and reported by an event
		}
		old.Stop()
	}
	f.w.setRegistered(path, false)
	f.sockets[path] = &socket{file: file, Task: lifecycle.StartTask(ctx, func(own context.Context) { f.w.handleSocket(ctx, own, path) })}
}

// removeSockets stops handling the sockets for which which returns true, and waits until their plugins are
// deregistered.
func (f *watchState) removeSockets(which func(path string) bool) {
	for path, s := range f.sockets {
		if which(path) {
			s.Stop()
			delete(f.sockets, path)
			f.w.removeSocket(path)
		}
	}
}

// within reports whether path is dir or below it.
func within(dir, path string) bool {
	rest, ok := strings.CutPrefix(path, dir)
	return ok && (rest == "" || rest[0] == filepath.Separator)
}

// notExist reports whether there is no file at path.
func notExist(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// handleSocket registers the plugin at a socket with retries. When own is done because the socket was removed
// or replaced, it deregisters the plugin; when ctx is done, the kubelet is stopping and it does not.
func (w *Watcher) handleSocket(ctx, own context.Context, path string) {
	retry := backoff.Backoff{First: minRetryBackoff, Max: maxRetryBackoff}
	for {
		plugin, handler, err := w.register(ctx, own, path)
		if err == nil {
			w.setRegistered(path, true)
			<-own.Done()
			if ctx.Err() == nil {
				w.Log.Info("plugin deregistered because its socket was removed or replaced; it is not used until it registers again", "plugin", plugin.Name, "socket", path)
				handler.Deregister(plugin)
			}
			return
		}
		if own.Err() != nil {
			return
		}
		w.Log.Info("registration of the CSI or DRA driver at a socket failed; the driver is not used until a retry succeeds, retrying with back-off", "socket", path, "err", err)
		if !retry.Pause(own) {
			return
		}
	}
}

// register asks the plugin at a socket for its name and type, registers it with the Handler of the type, and
// reports the result to the plugin. If the plugin cannot be notified, it is deregistered again, unless ctx is
// done. own ends the attempt.
func (w *Watcher) register(ctx, own context.Context, path string) (Plugin, Handler, error) {
	conn, err := Dial(path)
	if err != nil {
		return Plugin{}, nil, fmt.Errorf("connecting to plugin: %w", err)
	}
	defer conn.Close()
	client := registerapi.NewRegistrationClient(conn)
	ask, cancel := context.WithTimeout(own, registerTimeout)
	defer cancel()
	// The socket file exists before the plugin listens on it.
	info, err := client.GetInfo(ask, &registerapi.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return Plugin{}, nil, fmt.Errorf("getting plugin info: %w", err)
	}
	p := Plugin{Name: info.Name, Endpoint: info.Endpoint, Socket: path, Versions: info.SupportedVersions}
	if p.Endpoint == "" {
		p.Endpoint = path
	}
	if at := w.Alias.ToActual(p.Endpoint); at != p.Endpoint {
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
	notifyCtx, cancelNotify := context.WithTimeout(own, registerTimeout)
	defer cancelNotify()
	if _, notifyErr := client.NotifyRegistrationStatus(notifyCtx, status); notifyErr != nil && err == nil {
		if ctx.Err() == nil {
			handler.Deregister(p)
		}
		err = fmt.Errorf("notifying the plugin of its registration: %w", notifyErr)
	}
	if err != nil {
		return Plugin{}, nil, err
	}
	w.Log.Info("plugin registered, the kubelet uses it now", "plugin", p.Name, "type", info.Type, "endpoint", p.Endpoint)
	return p, handler, nil
}
