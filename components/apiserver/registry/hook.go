package registry

import (
	"context"

	"hyperkube/internal/api"
	"hyperkube/internal/store"
)

// Hook takes part in the writes of one resource. It is called in each attempt
// of a write after admission and validation, with the object as it will be
// stored and the one that it replaces: old is nil on create, obj is nil on
// delete. It may allocate into obj; old is shared and must not be written to.
// The operations that it returns are of other collections and are committed in
// the write's own transaction, or not at all: on a dry run they are dropped.
// When one of them loses a race the write is tried again from the beginning
// and the hook is called again, so it keeps nothing between calls that it
// cannot take back.
//
// Both objects are of the type that is stored. Errors that are Status errors
// are told to the client as they are.
type Hook func(ctx context.Context, obj, old api.Object) ([]store.Op, error)
