package admission

import (
	"slices"
	"time"

	"k8s.io/utils/lru"
)

// What the API says of a namespace is believed that long, as in upstream's
// server, for that many namespaces.
const (
	askedFor   = 30 * time.Second
	askedAbout = 10000
)

// asked remembers what the API has said of namespaces of which the informer knows
// nothing: who has just made the first object of a namespace wants it in force.
// It is safe for several goroutines.
type asked[T any] struct {
	said *lru.Cache // answers by namespace
}

type answer[T any] struct {
	found []T
	until time.Time
}

func newAsked[T any]() *asked[T] { return &asked[T]{lru.New(askedAbout)} }

// about returns what ask said of the namespace lately, or asks. The slice is the
// caller's, what is in it is shared.
func (k *asked[T]) about(namespace string, ask func() ([]T, error)) ([]T, error) {
	if said, ok := k.said.Get(namespace); ok {
		if said, ok := said.(answer[T]); ok && time.Now().Before(said.until) {
			return slices.Clone(said.found), nil
		}
	}
	found, err := ask()
	if err != nil {
		return nil, err
	}
	k.said.Add(namespace, answer[T]{found, time.Now().Add(askedFor)})
	return slices.Clone(found), nil
}
