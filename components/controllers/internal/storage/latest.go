// Package storage is what the controllers of volumes share.
package storage

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// Latest shows the objects of an informer with a controller's own last writes
// laid over them until the informer has caught up, so that what was given away
// once is not given away again. It is safe for several goroutines; the objects
// are shared and must not be written to.
type Latest[T metav1.Object] struct {
	mu      sync.Mutex
	written map[string]write[T] // guarded by mu; by namespace/name
}

type write[T metav1.Object] struct {
	object T
	// over is the version that was known before.
	over string
}

// Wrote lays an object, as the API returned it, over the one that was known.
func (l *Latest[T]) Wrote(known, written T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.written == nil {
		l.written = map[string]write[T]{}
	}
	key := keyOf(written)
	over := known.GetResourceVersion()
	if before, ok := l.written[key]; ok && before.object.GetResourceVersion() == over {
		over = before.over
	}
	l.written[key] = write[T]{written, over}
}

// Of returns the newest that is known of an object that an informer has.
func (l *Latest[T]) Of(known T) T {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := keyOf(known)
	w, ok := l.written[key]
	if !ok {
		return known
	}
	version := known.GetResourceVersion()
	if w.object.GetUID() == known.GetUID() && version != w.object.GetResourceVersion() {
		order, err := resourceversion.CompareResourceVersion(version, w.object.GetResourceVersion())
		if err == nil && order < 0 || err != nil && version == w.over {
			return w.object
		}
	}
	delete(l.written, key)
	return known
}

// Gone forgets an object that an informer saw deleted.
func (l *Latest[T]) Gone(known T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.written, keyOf(known))
}

func keyOf(m metav1.Object) string { return m.GetNamespace() + "/" + m.GetName() }
