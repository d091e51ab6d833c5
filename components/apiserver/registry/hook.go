package registry

import (
	"context"

	"hyperkube/internal/api"
	"hyperkube/internal/store"
)

// Hook participates in the writes of a resource. It is called in each attempt of a write after
// admission and validation. obj is the object that will be stored, old the one that it replaces.
// old is nil on create, obj is nil on delete. The hook may allocate values in obj. old is shared
// and must not be modified. The returned operations belong to other collections and are committed
// in the transaction of the write. On a dry run they are dropped. If one of them conflicts, the
// whole write is retried and the hook is called again. Therefore a hook must not keep state between
// calls that it cannot revert.
//
// Both objects have the stored type. Status errors are returned to the client unchanged.
type Hook func(ctx context.Context, obj, old api.Object) ([]store.Op, error)
