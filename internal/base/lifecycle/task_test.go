package lifecycle

import (
	"context"
	"testing"
)

func TestTask(t *testing.T) {
	for name, stop := range map[string]func(parent context.CancelFunc, task *Task){
		"stopped":         func(_ context.CancelFunc, task *Task) { task.Stop() },
		"parent canceled": func(parent context.CancelFunc, _ *Task) { parent() },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		var got error
		task := StartTask(ctx, func(ctx context.Context) {
			<-ctx.Done()
			got = ctx.Err()
		})
		stop(cancel, task)
		task.Stop()
		if got == nil {
			t.Errorf("%s: the function has not returned", name)
		}
		cancel()
	}
	returned := StartTask(t.Context(), func(context.Context) {})
	returned.Stop()
	returned.Stop()
}
