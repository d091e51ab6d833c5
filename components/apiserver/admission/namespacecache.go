package admission

import (
	"slices"
	"time"

	"k8s.io/utils/lru"
)

// namespaceCacheTTL is how long the results of API requests are cached, for at most namespaceCacheSize
// namespaces, as in upstream.
const (
	namespaceCacheTTL  = 30 * time.Second
	namespaceCacheSize = 10000
)

// namespaceCache caches the objects of namespaces that were read from the API because the informer
// has none. The informer may lag behind: a client that has just created the first object of a
// namespace expects it to take effect. The cache is safe for concurrent use.
type namespaceCache[T any] struct {
	entries *lru.Cache // cachedObjects by namespace
}

// cachedObjects are the objects of one namespace and the time until which they may be used.
type cachedObjects[T any] struct {
	objects []T
	expires time.Time
}

// newNamespaceCache returns an empty cache for at most namespaceCacheSize namespaces.
func newNamespaceCache[T any]() *namespaceCache[T] {
	return &namespaceCache[T]{lru.New(namespaceCacheSize)}
}

// get returns the cached objects of the namespace, or if there are none or they have expired, those that ask returns,
// which requests them from the API. It caches the result, also an empty one, but not an error. The caller owns the
// slice, but the objects are shared.
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
