package lifecycle

import "context"

// Task is a function that runs in a goroutine and can be stopped. It is for work that is replaced or given up while
// its owner runs; a Group is for components that run as long as the process. It is safe for concurrent use.
type Task struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// StartTask runs f in a goroutine. The context of f is canceled when ctx is done or Stop is called. The caller must
// call Stop, unless it knows that f has returned.
func StartTask(ctx context.Context, f func(ctx context.Context)) *Task {
	ctx, cancel := context.WithCancel(ctx)
	t := &Task{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(t.done)
		defer cancel()
		f(ctx)
	}()
	return t
}

// Stop cancels the context of the function and waits until the function has returned. What the function has written
// is then visible to the caller. Further calls return when the first does.
func (t *Task) Stop() {
	t.cancel()
	<-t.done
}
