package pidlock

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/host/layout"
)

// reapInterval is the poll interval of reapChildren while a child runs.
const reapInterval = 100 * time.Millisecond

// ReapChildren reaps the exited children of a main process that has stopped and released its lock:
// the runtime, and the processes of additional nodes. While `down` or `reset` stops the cluster at
// l, which also stops the children, ReapChildren waits for them. Otherwise a child that exits later
// becomes a child of process 1, and stays a zombie if process 1 does not reap it.
//
// Call it only when nothing else waits for children any more.
func ReapChildren(l layout.Node) {
	reapChildren(func() bool {
		t, err := AcquireLifecycle(context.Background(), l, false)
		if err == nil {
			t.Release()
		}
		return errors.Is(err, ErrHeld)
	})
}

// reapChildren reaps exited children until there are none, or until none has exited and down returns false. down
// reports whether another process is stopping the cluster.
func reapChildren(down func() bool) {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR) || pid > 0:
			continue
		case err != nil || !down(): // there are no children, or they keep running
			return
		}
		lifecycle.Pause(context.Background(), reapInterval)
	}
}
