package network

import (
	"context"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// followPlugins looks anew whenever the folder of configurations of network plugins
// changes, until ctx ends. The folder may come later, and so may those above it.
func (n *Network) followPlugins(ctx context.Context) {
	if n.cfg.PluginConf == "" {
		return
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		n.cfg.Log.Warn("configurations of network plugins that come later are not seen", "err", err)
		return
	}
	defer watcher.Close()
	watched := n.watchPlugins(watcher)
	for {
		select {
		case <-ctx.Done():
			return
		case event, ok := <-watcher.Events:
			if !ok {
				return
			}
			if event.Has(fsnotify.Chmod) && event.Op == fsnotify.Chmod {
				continue
			}
			if watched != n.cfg.PluginConf || event.Name == n.cfg.PluginConf {
				// A folder on the way to it came, or it went itself.
				now := n.watchPlugins(watcher)
				if now == watched && now != n.cfg.PluginConf {
					continue
				}
				watched = now
			}
		case err, ok := <-watcher.Errors:
			if !ok {
				return
			}
			n.cfg.Log.Warn("a change of configurations of network plugins was missed", "err", err)
		}
		select {
		case n.changed <- struct{}{}:
		default:
		}
		if n.cfg.PluginsChanged != nil {
			n.cfg.PluginsChanged()
		}
	}
}

// watchPlugins watches the folder, or the nearest above it that is there, and
// returns which.
func (n *Network) watchPlugins(watcher *fsnotify.Watcher) string {
	for dir := n.cfg.PluginConf; ; dir = filepath.Dir(dir) {
		if err := watcher.Add(dir); err == nil {
			// One that came while it was looked for is found from here.
			if dir == n.cfg.PluginConf || watcher.Add(n.cfg.PluginConf) != nil {
				return dir
			}
			return n.cfg.PluginConf
		}
		if dir == filepath.Dir(dir) {
			return ""
		}
	}
}
