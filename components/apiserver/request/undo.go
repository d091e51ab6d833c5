package request

import (
	"context"
	"slices"
	"time"
)

// undoTimeout is the total timeout for the functions that revert the side effects of a failed
// request.
const undoTimeout = 5 * time.Second

// undoKey is the key of the context value in which Undoable collects the functions of OnFailure.
type undoKey struct{}

// Undoable returns a context in which admission plugins can register, with OnFailure, functions that revert their
// side effects, such as quota usage. undo calls these functions in reverse order, with undoTimeout in total, even if
// ctx is done. The caller may call undo only if the request has certainly changed nothing, at most once, and in the
// goroutine that passed on the context.
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

// OnFailure registers f, which reverts a side effect of the caller, to be called if the request
// fails afterwards. If ctx is not from Undoable, f is never called. OnFailure must not be called
// concurrently for one request.
func OnFailure(ctx context.Context, f func(context.Context)) {
	if steps, ok := ctx.Value(undoKey{}).(*[]func(context.Context)); ok {
		*steps = append(*steps, f)
	}
}
