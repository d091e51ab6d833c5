package network

import (
	"context"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// watchCNIConf triggers a sync and calls Config.OnCNIConfChange whenever the CNI configuration directory
// changes, until ctx is cancelled. The directory and its parents may be created later. Without a directory in
// the configuration it does nothing; if it cannot watch, it logs that and returns.
func (n *Network) watchCNIConf(ctx context.Context) {
	if n.cfg.CNIConfDir == "" {
		return
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		n.cfg.Log.Warn("watching CNI configurations failed; a change in the directory affects routes to other nodes only when a node or a route changes later: restart hyperkube on this node after a change", "directory", n.cfg.CNIConfDir, "err", err)
		return
	}
	defer watcher.Close()
	watched := n.addCNIWatch(watcher)
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
			if watched != n.cfg.CNIConfDir || event.Name == n.cfg.CNIConfDir {
				// A parent directory was created, or the directory itself was removed.
				now := n.addCNIWatch(watcher)
				if now == watched && now != n.cfg.CNIConfDir {
					continue
				}
				watched = now
			}
		case err, ok := <-watcher.Errors:
			if !ok {
				return
			}
			n.cfg.Log.Warn("watch of CNI configurations reported an error, so changes may have been missed; reading the directory again now", "directory", n.cfg.CNIConfDir, "err", err)
		}
		select {
		case n.changed <- struct{}{}:
		default:
		}
		if n.cfg.OnCNIConfChange != nil {
			n.cfg.OnCNIConfChange()
		}
	}
}

// addCNIWatch makes watcher watch the CNI configuration directory or, if it does not exist, its
// nearest existing parent, and returns the path of the watched directory. It returns "" if no
// directory can be watched.
func (n *Network) addCNIWatch(watcher *fsnotify.Watcher) string {
	for dir := n.cfg.CNIConfDir; ; dir = filepath.Dir(dir) {
		if err := watcher.Add(dir); err == nil {
			// The directory may have been created in the meantime.
			if dir == n.cfg.CNIConfDir || watcher.Add(n.cfg.CNIConfDir) != nil {
				return dir
			}
			return n.cfg.CNIConfDir
		}
		if dir == filepath.Dir(dir) {
			return ""
		}
	}
}
