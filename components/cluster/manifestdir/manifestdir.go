// Package manifestdir applies the manifests in a directory to the cluster, and follows changes of the directory.
//
// Every file and every kustomization is a unit and has an ApplySet: objects that leave a file, and the objects of a
// deleted file, are pruned. The parent of the set has the name of the file and the last error in its data, which
// `hyperkube status` prints. Changes are reported by inotify; nothing is polled.
//
// The objects are applied with the permissions of the administrator. So files and directories that users other than
// root can write are rejected, as are symbolic links that leave the directory.
package manifestdir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"hyperkube/components/cluster/applyset"
	"hyperkube/internal/base/backoff"
)

// FieldManager is the field manager of objects from the directory.
const FieldManager = "hyperkube-manifests"

// Config configures an Applier, which applies the manifests in a directory.
type Config struct {
	// Dir is the absolute path of the directory, which may not exist. Its parent directory must exist.
	Dir string
	// CreateDir creates the directory if it does not exist, unless an earlier run has applied files of it: then its
	// file system may not be mounted.
	CreateDir bool
	// Client applies objects as FieldManager, with the permissions of the administrator.
	Client *applyset.Client
	// Kube lists the sets of earlier runs.
	Kube kubernetes.Interface
	Log  *slog.Logger
}

// Applier applies the manifests in a directory.
type Applier struct {
	cfg Config
	// quiet is how long no further change of the directory must be reported before it is read, so that files are
	// rarely read while they are written. maxDelay limits the delay if changes do not stop.
	quiet, maxDelay time.Duration
	// retry is the back-off for a file or kustomization that fails.
	retry backoff.Backoff
}

// New validates cfg, whose directory must be an absolute path.
func New(cfg Config) (*Applier, error) {
	if cfg.Client == nil || cfg.Kube == nil || cfg.Log == nil {
		return nil, errors.New("applying manifests requires clients and a logger")
	}
	if !filepath.IsAbs(cfg.Dir) {
		return nil, fmt.Errorf("directory of manifests: %q is not an absolute path", cfg.Dir)
	}
	cfg.Dir = filepath.Clean(cfg.Dir) // events have clean paths
	return &Applier{
		cfg: cfg, quiet: 100 * time.Millisecond, maxDelay: 500 * time.Millisecond,
		retry: backoff.Backoff{First: 100 * time.Millisecond, Max: time.Minute, Jitter: 0.1},
	}, nil
}

// Run applies the directory and its changes until ctx is done. It always returns nil: a failure is logged and does not
// stop the cluster.
func (a *Applier) Run(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		a.cfg.Log.Error("watching the directory of manifests failed; its files are not applied, retrying at the next start of the cluster", "directory", a.cfg.Dir, "err", err)
		<-ctx.Done()
		return nil
	}
	defer watcher.Close()
	if err := watcher.Add(filepath.Dir(a.cfg.Dir)); err != nil {
		a.cfg.Log.Warn("watching the parent of the directory of manifests failed; if the directory does not exist yet, its files are not applied until the next start of the cluster, no retry before", "directory", a.cfg.Dir, "err", err)
	}
	jobs := map[string]*job{}
	defer func() {
		for _, j := range jobs {
			j.Stop()
		}
	}()
	former, err := a.formerUnits(ctx)
	if err != nil {
		return nil // ctx is done
	}
	if a.cfg.CreateDir && len(former) == 0 {
		if err := os.Mkdir(a.cfg.Dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			a.cfg.Log.Warn("creating the directory of manifests failed; no manifest is applied, no retry: create the directory, its files are then applied", "directory", a.cfg.Dir, "err", err)
		}
	}
	for {
		if a.update(ctx, watcher, jobs, former) {
			former = nil // their units have jobs now
		}
		if !a.waitForChange(ctx, watcher) {
			return nil
		}
	}
}

// formerUnits returns the names of the files and kustomizations that earlier runs have applied from the same directory.
// Those of other directories are kept as they are. It retries until it succeeds or ctx is done.
func (a *Applier) formerUnits(ctx context.Context) ([]string, error) {
	retry := a.retry
	for {
		list, err := a.cfg.Kube.CoreV1().ConfigMaps(applyset.ParentNamespace).List(ctx, metav1.ListOptions{LabelSelector: Label})
		if err == nil {
			var names []string
			for i := range list.Items {
				if data := list.Items[i].Data; data[dataDirectory] == a.cfg.Dir || data[dataFile] == wholeDirectory {
					names = append(names, data[dataFile])
				} else {
					a.keep(ctx, data)
				}
			}
			return names, nil
		}
		a.cfg.Log.Warn("listing the applied manifests failed; no manifest is applied, retrying with back-off", "err", err)
		if !retry.Pause(ctx) {
			return nil, ctx.Err()
		}
	}
}

// keep logs that the objects of a file of another directory are kept, because a user who forgets the option of the
// directory must not lose them. It removes the error of the file, which does not concern the present directory. data is
// that of the file's ConfigMap.
func (a *Applier) keep(ctx context.Context, data map[string]string) {
	a.cfg.Log.Warn("manifest of another directory is not updated; its objects are kept: to delete them, start with that directory and without the file",
		"file", data[dataFile], "directory", data[dataDirectory])
	if data[dataError] == "" {
		return
	}
	if err := a.cfg.Client.WriteData(ctx, setOf(data[dataDirectory], data[dataFile])); err != nil && ctx.Err() == nil {
		a.cfg.Log.Warn("removing the error of a manifest of another directory failed; `hyperkube status` still shows it, retrying at the next start of the cluster", "file", data[dataFile], "err", err)
	}
}

// update reads the directory, and starts a job for each unit that has changed or that does not exist anymore. If the
// directory is missing or cannot be read, nothing is pruned, because its file system may not be mounted. former are the
// names of units of earlier runs. update reports whether it has read the directory.
func (a *Applier) update(ctx context.Context, watcher *fsnotify.Watcher, jobs map[string]*job, former []string) bool {
	found, err := a.scan(func(dir string) {
		if err := watcher.Add(dir); err != nil {
			a.cfg.Log.Error("watching a directory of manifests failed; changes of its files are not applied, retrying with the next change of another directory", "directory", dir, "err", err)
		}
	})
	if errors.Is(err, errNoDirectory) {
		if len(jobs)+len(former) > 0 {
			a.cfg.Log.Warn("directory of manifests does not exist; the objects of its former files are kept until it is created", "directory", a.cfg.Dir)
		}
		return false
	}
	units := map[string]unit{}
	if err != nil {
		units[wholeDirectory] = unit{name: wholeDirectory, hash: err.Error(), err: err}
	} else {
		for _, u := range found {
			units[u.name] = u
		}
		for name := range jobs {
			former = append(former, name)
		}
		for _, name := range former {
			if _, exists := units[name]; !exists && name != "" {
				units[name] = unit{name: name, deleted: true}
			}
		}
	}
	for name, u := range units {
		if j := jobs[name]; j != nil {
			if j.hash == u.hash && !u.deleted {
				continue
			}
			j.Stop()
			delete(jobs, name)
			if u.deleted && j.deleted && j.succeeded {
				continue // the set is already deleted
			}
		}
		jobs[name] = a.start(ctx, u)
	}
	return err == nil
}

// waitForChange waits until the directory has changed and no further change is reported for a short time, or changes
// have continued for maxDelay. It returns false if ctx is done.
func (a *Applier) waitForChange(ctx context.Context, watcher *fsnotify.Watcher) bool {
	var quiet, limit <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return false
		case event, ok := <-watcher.Events:
			if !ok {
				return false
			}
			// Events of the parent directory are about its other files too.
			if filepath.Dir(event.Name) == filepath.Dir(a.cfg.Dir) && event.Name != a.cfg.Dir {
				continue
			}
		case err := <-watcher.Errors: // for example an overflow of the queue
			a.cfg.Log.Debug("receiving changes of the directory of manifests failed; changes may be lost, reading all files again", "err", err)
		case <-quiet:
			return true
		case <-limit:
			return true
		}
		quiet = time.After(a.quiet)
		if limit == nil {
			limit = time.After(a.maxDelay)
		}
	}
}
