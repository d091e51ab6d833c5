package follow

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// changes is a set of changes of directories: the value reports whether files were created, renamed or removed, and not only written.
type changes map[string]bool

// watcher collects changes of directories by inotify. Its methods are safe for concurrent use.
type watcher struct {
	file   *os.File
	signal chan struct{} // has an element if there are changes
	done   chan struct{} // closed when the goroutine has returned

	mu       sync.Mutex // guards the fields below
	dirs     map[int32]string
	ids      map[string]int32
	changed  changes
	overflow bool // the kernel has dropped changes
}

// structural are the events of files that appear or disappear.
const structural = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF

// newWatcher starts a goroutine, which close stops.
func newWatcher() (*watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watching log files, which needs inotify instances; if they are exhausted, raise fs.inotify.max_user_instances: %w", err)
	}
	w := &watcher{
		file: os.NewFile(uintptr(fd), "inotify"), signal: make(chan struct{}, 1), done: make(chan struct{}),
		dirs: map[int32]string{}, ids: map[string]int32{}, changed: changes{},
	}
	go w.run()
	return w, nil
}

func (w *watcher) close() {
	w.file.Close()
	<-w.done
}

// add watches dir, also for writes to its files if writes is set. The directory must exist. Adding it again has no effect.
func (w *watcher) add(dir string, writes bool) error {
	mask := uint32(structural | unix.IN_ONLYDIR)
	if writes {
		mask |= unix.IN_MODIFY
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	raw, err := w.file.SyscallConn()
	if err != nil {
		return err
	}
	var id int
	controlErr := raw.Control(func(fd uintptr) { id, err = unix.InotifyAddWatch(int(fd), dir, mask) })
	if err = errors.Join(controlErr, err); err != nil {
		return fmt.Errorf("watching %s; if watches are exhausted, raise fs.inotify.max_user_watches: %w", dir, err)
	}
	w.dirs[int32(id)], w.ids[dir] = dir, int32(id)
	return nil
}

// remove ends the watch of dir.
func (w *watcher) remove(dir string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	id, ok := w.ids[dir]
	if !ok {
		return
	}
	delete(w.ids, dir)
	delete(w.dirs, id)
	if raw, err := w.file.SyscallConn(); err == nil {
		// The watch does not exist anymore if the directory was removed.
		_ = raw.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(id)) })
	}
}

// take returns the changes since the last call, and whether the kernel has dropped others.
func (w *watcher) take() (changes, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	changed, overflow := w.changed, w.overflow
	w.changed, w.overflow = changes{}, false
	return changed, overflow
}

// run reads events until the file is closed.
func (w *watcher) run() {
	defer close(w.done)
	buf := make([]byte, 64<<10)
	for {
		n, err := w.file.Read(buf)
		if err != nil {
			return
		}
		w.record(buf[:n])
		select {
		case w.signal <- struct{}{}:
		default:
		}
	}
}

// record adds the events in b to the changes.
func (w *watcher) record(b []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(b) >= unix.SizeofInotifyEvent {
		id := int32(binary.NativeEndian.Uint32(b))
		mask := binary.NativeEndian.Uint32(b[4:])
		size := int(binary.NativeEndian.Uint32(b[12:]))
		b = b[unix.SizeofInotifyEvent:]
		if size > len(b) {
			return
		}
		b = b[size:] // the name of the file is not needed
		if mask&unix.IN_Q_OVERFLOW != 0 {
			w.overflow = true
		}
		dir, ok := w.dirs[id]
		switch {
		case !ok:
		case mask&unix.IN_IGNORED != 0: // the directory was removed
			delete(w.dirs, id)
			if w.ids[dir] == id {
				delete(w.ids, dir)
			}
		default:
			w.changed[dir] = w.changed[dir] || mask&structural != 0
		}
	}
}
