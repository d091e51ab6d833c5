package admission

import (
	"slices"
	"time"

	"k8s.io/utils/lru"
)

// As in upstream's server, results from the API are cached this long, for at most this many
// namespaces.
const (
	namespaceCacheTTL  = 30 * time.Second
	namespaceCacheSize = 10000
)

// namespaceCache caches the results of API requests for namespaces of which the informer has no objects. A
// client that has just created the first object of a namespace expects it to take effect. It is
// safe for concurrent use.
type namespaceCache[T any] struct {
	entries *lru.Cache // cachedObjects by namespace
}

type cachedObjects[T any] struct {
	objects []T
	expires time.Time
}

func newNamespaceCache[T any]() *namespaceCache[T] {
	return &namespaceCache[T]{lru.New(namespaceCacheSize)}
}

// get returns the cached objects of the namespace, or calls ask and caches the result. The caller
// owns the slice, but the objects are shared.
func (k *namespaceCache[T]) get(namespace string, ask func() ([]T, error)) ([]T, error) {
	if said, ok := k.entries.Get(namespace); ok {
		if said, ok := said.(cachedObjects[T]); ok && time.Now().Before(said.expires) {
			return slices.Clone(said.objects), nil
		}
	}
	found, err := ask()
	if err != nil {
		return nil, err
	}
	k.entries.Add(namespace, cachedObjects[T]{found, time.Now().Add(namespaceCacheTTL)})
	return slices.Clone(found), nil
}
