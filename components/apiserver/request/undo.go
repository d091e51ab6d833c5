package request

import (
	"context"
	"slices"
	"time"
)

// undoTimeout is the timeout for reverting the side effects of a request.
const undoTimeout = 5 * time.Second

type undoKey struct{}

// Undoable returns a context with which callees can register, by OnFailure, functions that revert
// their side effects. undo calls these functions in reverse order, even if ctx is done. It must
// only be called for a request that has certainly changed nothing, at most once, and by the
// goroutine that made the calls.
func Undoable(ctx context.Context) (_ context.Context, undo func()) {
	steps := &[]func(context.Context){}
	return context.WithValue(ctx, undoKey{}, steps), func() {
		if len(*steps) == 0 {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		for _, step := range slices.Backward(*steps) {
			step(ctx)
		}
	}
}

// OnFailure registers f to be called if the request fails after admission. Without Undoable, f is
// dropped. OnFailure must not be called concurrently for one request.
func OnFailure(ctx context.Context, f func(context.Context)) {
	if steps, ok := ctx.Value(undoKey{}).(*[]func(context.Context)); ok {
		*steps = append(*steps, f)
	}
}
