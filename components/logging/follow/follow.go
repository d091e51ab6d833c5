// Package follow reads the log files of containers and of the node as they grow: through rotation, compression, truncation, restarts of
// containers, and deletion. inotify reports changes; nothing is polled.
//
// A file is identified by a hash of its beginning, which contains the time of its first record. The identity stays when the file is renamed
// or compressed, and differs if another file reuses the inode.
package follow

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"hyperkube/components/logging/record"
	"hyperkube/internal/base/lifecycle"
)

// Config configures a Follower.
type Config struct {
	// PodLogs is the directory of the logs of pods, in the layout of the kubelet: NAMESPACE_POD_UID/CONTAINER/RESTARTS.log.
	PodLogs string
	// NodeLogs are directories with log files of the node: NAME.log. Those that do not exist when the Follower starts are ignored.
	NodeLogs []string
	// Positions are the positions from which on files are read, by the key of their source. Files of sources without a position are read
	// from the beginning.
	Positions map[string]record.Position
	// Settle is how long the Follower waits after a change before it reads the files, so that it reads many changes together. Zero means 50 ms.
	Settle time.Duration
	// Log receives warnings. Nil means slog's default.
	Log *slog.Logger
}

// Source identifies the log files of a container or of a process of the node.
type Source struct {
	// Key identifies the source on this node. It is the key of its position.
	Key string
	// Namespace, Pod, UID and Container are the container. They are empty for logs of the node.
	Namespace, Pod, UID, Container string
	// File is the base name of a log file of the node.
	File string

	dir   string
	state state
}

// state is how far the Follower has read a source.
type state struct {
	start    record.Position // where to begin; zero after the first file was opened
	file     *openFile       // nil before the first file was opened
	queued   bool            // in the queue of the Follower
	relist   bool            // files may have been created, renamed or removed
	dirGone  bool            // the directory was removed
	complain bool            // an error was logged
}

// Chunk has complete lines of a log file.
type Chunk struct {
	Source *Source
	// Data are the lines, each with its newline. A very long line, or the last line of a file that will not grow, may have none. It is valid until
	// the next call of Next.
	Data []byte
	// Position is the position of Data.
	Position record.Position
	// Deleted means that the log files of the source were deleted, after everything in them was read. There is no data.
	Deleted bool
}

// readSize is the size of the buffer in which lines are read.
const readSize = 256 << 10

// Follower reads log files. It is not safe for concurrent use.
type Follower struct {
	cfg     Config
	watch   *watcher
	sources map[string]*Source   // by key
	dirs    map[string][]*Source // by directory
	queue   []*Source            // with unread data
	buf     []byte
}

// New validates cfg and returns a Follower, which watches the directories from now on. The caller must call Close.
func New(cfg Config) (*Follower, error) {
	if cfg.PodLogs == "" {
		return nil, errors.New("following logs: the directory of pod logs is required")
	}
	if cfg.Settle == 0 {
		cfg.Settle = 50 * time.Millisecond
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	w, err := newWatcher()
	if err != nil {
		return nil, err
	}
	f := &Follower{cfg: cfg, watch: w, sources: map[string]*Source{}, dirs: map[string][]*Source{}, buf: make([]byte, readSize)}
	if err := f.scan(); err != nil {
		w.close()
		return nil, err
	}
	return f, nil
}

// Close closes all files.
func (f *Follower) Close() {
	f.watch.close()
	for _, s := range f.sources {
		if s.state.file != nil {
			s.state.file.close()
		}
	}
}

// Sources returns the number of sources.
func (f *Follower) Sources() int { return len(f.sources) }

// Next returns the next lines of any source. It waits until there are lines or ctx is done. It continues with another source after each chunk, so
// that a busy container does not delay the others.
func (f *Follower) Next(ctx context.Context) (Chunk, error) {
	for {
		for len(f.queue) > 0 {
			s := f.queue[0]
			f.queue = f.queue[1:]
			c, more := f.step(s)
			if more {
				f.queue = append(f.queue, s)
			} else {
				s.state.queued = false
			}
			if len(c.Data) > 0 || c.Deleted {
				return c, nil
			}
			if err := ctx.Err(); err != nil {
				return Chunk{}, context.Cause(ctx)
			}
		}
		select {
		case <-f.watch.signal:
		case <-ctx.Done():
			return Chunk{}, context.Cause(ctx)
		}
		// Collect more changes. The context may be done: then the changes are handled by the next call.
		if !lifecycle.Pause(ctx, f.cfg.Settle) {
			select {
			case f.watch.signal <- struct{}{}:
			default:
			}
			return Chunk{}, context.Cause(ctx)
		}
		f.apply()
	}
}

// apply queues the sources whose directories have changed.
func (f *Follower) apply() {
	changed, overflow := f.watch.take()
	rescan := overflow
	for dir, structural := range changed {
		sources, ok := f.dirs[dir]
		for _, s := range sources {
			s.state.relist = s.state.relist || structural
			f.enqueue(s)
		}
		if structural && (!ok || slices.Contains(f.cfg.NodeLogs, dir)) {
			rescan = true
		}
	}
	if overflow {
		for _, s := range f.sources {
			s.state.relist = true
			f.enqueue(s)
		}
	}
	if rescan {
		if err := f.scan(); err != nil {
			f.cfg.Log.Warn("scanning log directories failed; logs of new pods are not collected, retrying at the next change in the directories", "err", err)
		}
	}
}

func (f *Follower) enqueue(s *Source) {
	if !s.state.queued {
		s.state.queued = true
		f.queue = append(f.queue, s)
	}
}

// scan finds new sources and queues them. It watches directories before it reads them, so that it misses no file.
func (f *Follower) scan() error {
	if err := f.scanPods(); err != nil {
		return err
	}
	for _, dir := range f.cfg.NodeLogs {
		if err := f.watch.add(dir, true); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			return err
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("reading log directory: %w", err)
		}
		for _, e := range entries {
			if name, ok := strings.CutSuffix(e.Name(), ".log"); ok && !e.IsDir() {
				f.add(&Source{Key: "node/" + name, File: name, dir: dir})
			}
		}
	}
	return nil
}

// scanPods finds the containers below the directory of pod logs.
func (f *Follower) scanPods() error {
	if err := f.watch.add(f.cfg.PodLogs, false); err != nil {
		return err
	}
	pods, err := os.ReadDir(f.cfg.PodLogs)
	if err != nil {
		return fmt.Errorf("reading log directory: %w", err)
	}
	for _, pod := range pods {
		parts := strings.Split(pod.Name(), "_")
		if !pod.IsDir() || len(parts) != 3 {
			continue
		}
		dir := filepath.Join(f.cfg.PodLogs, pod.Name())
		if err := f.watch.add(dir, false); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				continue // deleted in the meantime
			}
			return err
		}
		containers, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("reading log directory: %w", err)
		}
		for _, c := range containers {
			if !c.IsDir() {
				continue
			}
			s := &Source{Key: pod.Name() + "/" + c.Name(), Namespace: parts[0], Pod: parts[1], UID: parts[2], Container: c.Name(), dir: filepath.Join(dir, c.Name())}
			if f.sources[s.Key] != nil {
				continue
			}
			if err := f.watch.add(s.dir, true); err != nil {
				if errors.Is(err, fs.ErrNotExist) {
					continue
				}
				return err
			}
			f.add(s)
		}
	}
	return nil
}

// add adds a source unless it exists, and queues it.
func (f *Follower) add(s *Source) {
	if f.sources[s.Key] != nil {
		return
	}
	s.state.start, s.state.relist = f.cfg.Positions[s.Key], true
	f.sources[s.Key] = s
	f.dirs[s.dir] = append(f.dirs[s.dir], s)
	f.enqueue(s)
}

// remove removes a source whose files were deleted.
func (f *Follower) remove(s *Source) {
	if s.state.file != nil {
		s.state.file.close()
	}
	delete(f.sources, s.Key)
	delete(f.cfg.Positions, s.Key)
	f.dirs[s.dir] = slices.DeleteFunc(f.dirs[s.dir], func(other *Source) bool { return other == s })
	if len(f.dirs[s.dir]) == 0 {
		delete(f.dirs, s.dir)
		if s.File == "" {
			f.watch.remove(s.dir)
		}
	}
}

// files returns the log files of a source, oldest first.
func (s *Source) files() ([]logFile, error) {
	if s.File != "" {
		return nodeFiles(s.dir, s.File)
	}
	return containerFiles(s.dir)
}

// step reads the next lines of a source. It reports whether there may be more.
func (f *Follower) step(s *Source) (Chunk, bool) {
	c, more, err := f.read(s)
	if err != nil {
		if !s.state.complain {
			f.cfg.Log.Warn("reading a log failed; records of this log are delayed, retrying when the log changes", "file", s.dir, "container", s.Key, "err", err)
		}
		s.state.complain, s.state.relist = true, true
		return Chunk{}, false
	}
	if len(c.Data) > 0 {
		s.state.complain = false
	}
	return c, more
}

// read does what step describes.
func (f *Follower) read(s *Source) (Chunk, bool, error) {
	st := &s.state
	if st.file == nil {
		opened, err := f.openFirst(s)
		if err != nil || !opened {
			return Chunk{Source: s, Deleted: st.dirGone}, false, err
		}
	}
	// What follows the current file is determined before it is read: once there is a newer file with content, the current one does not grow.
	var next *logFile
	if st.relist {
		var err error
		if next, err = f.following(s); err != nil {
			return Chunk{}, false, err
		}
	}
	if st.file.gz == nil {
		_, size, err := inodeOf(st.file.file)
		if err != nil {
			return Chunk{}, false, err
		}
		if size < st.file.offset {
			f.cfg.Log.Warn("log file was truncated; records that were written and removed since the last read are lost, reading from its beginning", "file", st.file.path)
			st.file.offset = 0
			if err := st.file.readHead(); err != nil {
				return Chunk{}, false, err
			}
		}
	}
	data, at, err := st.file.read(f.buf, next != nil || st.dirGone)
	if err != nil {
		return Chunk{}, false, err
	}
	c := Chunk{Source: s, Data: data, Position: record.Position{File: st.file.id, Offset: at}}
	switch {
	case len(data) > 0:
		return c, true, nil
	case next != nil:
		o, err := open(*next)
		if errors.Is(err, fs.ErrNotExist) {
			return c, true, nil // renamed or removed in the meantime: list again
		}
		if err != nil {
			return Chunk{}, false, err
		}
		st.file.close()
		st.file = o
		return c, true, nil
	case st.dirGone:
		f.remove(s)
		c.Deleted = true
		return c, false, nil
	}
	if st.relist && !s.mustRelist() {
		st.relist = false
	}
	return c, false, nil
}

// mustRelist reports whether there is a newer file without content: no event of the directory's structure announces its first line.
func (s *Source) mustRelist() bool {
	files, err := s.files()
	if err != nil || len(files) == 0 {
		return true
	}
	return files[len(files)-1].order(s.state.file.logFile) > 0
}

// openFirst opens the first file to read: the one with the start position or, if that file does not exist anymore, the oldest one that
// is not older. It reports whether there is a file.
func (f *Follower) openFirst(s *Source) (bool, error) {
	st := &s.state
	files, err := s.files()
	if errors.Is(err, fs.ErrNotExist) {
		st.dirGone = true
		f.remove(s)
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("listing logs: %w", err)
	}
	if st.start.File.HashLen > 0 {
		for _, l := range files {
			if l.generation != st.start.File.Generation {
				continue
			}
			o, err := open(l)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return false, err
			}
			if is(st.start.File, l.generation, o.head) {
				st.file = o
				return true, o.seek(st.start.Offset)
			}
			o.close()
		}
		f.cfg.Log.Warn("log file was removed before it was read to its end; the records at its end are lost, continuing with the next file", "container", s.Key)
	}
	for _, l := range files {
		if l.generation < st.start.File.Generation {
			continue
		}
		o, err := open(l)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return false, err
		}
		st.file = o
		return true, nil
	}
	return false, nil
}

// following returns the file after the current one, or nil if there is none with content. It also updates the order of the current file, which
// may have been renamed, and sets dirGone.
func (f *Follower) following(s *Source) (*logFile, error) {
	st := &s.state
	files, err := s.files()
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(files) == 0 && s.File != "" {
		st.dirGone = true
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing logs: %w", err)
	}
	st.dirGone = false
	found := -1
	for i, l := range files {
		o, err := open(l)
		if err != nil {
			continue // removed in the meantime, or still empty and compressed
		}
		// A compressed copy has another inode.
		same := o.inode == st.file.inode || st.file.id.HashLen > 0 && is(st.file.id, l.generation, o.head)
		size := int64(len(o.head))
		o.close()
		if same {
			found = i
			path := st.file.path
			st.file.logFile = l
			st.file.compressed = st.file.gz != nil
			if o.inode != st.file.inode {
				st.file.path = path
			}
			continue
		}
		if size == 0 {
			continue
		}
		if found >= 0 || l.order(st.file.logFile) > 0 {
			return &files[i], nil
		}
		if l.generation == st.file.generation && st.file.rotated == "" && !f.listed(s, files) {
			// The current file was rotated, and removed before it was found under its new name. All files that remain are newer.
			return &files[i], nil
		}
	}
	return nil, nil
}

// listed reports whether the current file of the source is one of files.
func (f *Follower) listed(s *Source, files []logFile) bool {
	return slices.ContainsFunc(files, func(l logFile) bool {
		o, err := open(l)
		if err != nil {
			return false
		}
		defer o.close()
		return o.inode == s.state.file.inode || s.state.file.id.HashLen > 0 && is(s.state.file.id, l.generation, o.head)
	})
}
