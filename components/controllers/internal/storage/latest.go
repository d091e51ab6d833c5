// Package storage contains what the volume controllers share.
package storage

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// Latest returns the latest versions of objects that a volume controller has written. It overlays the objects of an
// informer with the controller's own last writes until the informer contains them, so that the controller does not
// assign a volume twice. The zero value is ready to use. It is safe for concurrent use; the objects are shared and must
// not be modified.
type Latest[T metav1.Object] struct {
	mu      sync.Mutex
	written map[string]write[T] // guarded by mu; by namespace/name
}

// write is an object as the controller has last written it, which the informer may not contain yet.
type write[T metav1.Object] struct {
	object T
	// replaced is the resource version that the write replaced.
	replaced string
}

// RecordWrite records a write of an object. known is the version before the write, and written is the API server's
// response.
func (l *Latest[T]) RecordWrite(known, written T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.written == nil {
		l.written = map[string]write[T]{}
	}
	key := keyOf(written)
	over := known.GetResourceVersion()
	if before, ok := l.written[key]; ok && before.object.GetResourceVersion() == over {
		over = before.replaced
	}
	l.written[key] = write[T]{written, over}
}

// Get returns the controller's own last write of an object if it is newer than known, the version from an informer.
// Otherwise it returns known.
func (l *Latest[T]) Get(known T) T {
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
		if err == nil && order < 0 || err != nil && version == w.replaced {
			return w.object
		}
	}
	delete(l.written, key)
	return known
}

// Forget discards the recorded write of an object that was deleted according to the informer.
func (l *Latest[T]) Forget(known T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.written, keyOf(known))
}

// keyOf returns the namespace/name of an object.
func keyOf(m metav1.Object) string { return m.GetNamespace() + "/" + m.GetName() }
