package request

import (
	"context"
	"slices"
	"time"
)

// undoTime is for taking back what was done for one request.
const undoTime = 5 * time.Second

type undoKey struct{}

// Undoable lets those who are asked with the returned context say by OnFailure
// how to take back what they did for the request. Undo does that, last things
// first, though ctx may have ended; it is for a request that has certainly
// changed nothing, and is called at most once, by the one goroutine that
// asked.
func Undoable(ctx context.Context) (_ context.Context, undo func()) {
	steps := &[]func(context.Context){}
	return context.WithValue(ctx, undoKey{}, steps), func() {
		if len(*steps) == 0 {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		for _, step := range slices.Backward(*steps) {
			step(ctx)
		}
	}
}

// OnFailure has f called when the request fails after it was allowed. Where
// nobody undoes, f is dropped. Callers are called one after the other.
func OnFailure(ctx context.Context, f func(context.Context)) {
	if steps, ok := ctx.Value(undoKey{}).(*[]func(context.Context)); ok {
		*steps = append(*steps, f)
	}
}
