package client

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"

	"hyperkube/internal/lifecycle"
)

// AwaitAPI asks an API server, which is another process, until it is ready or
// ctx ends, and tells failed, if that is not nil, why it is not.
func AwaitAPI(ctx context.Context, kube kubernetes.Interface, failed func(error)) error {
	wait := 20 * time.Millisecond
	for {
		answer, err := kube.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		if err == nil {
			return nil
		}
		if failed != nil {
			failed(notReady(answer, err))
		}
		if !lifecycle.Pause(ctx, wait) {
			return context.Cause(ctx)
		}
		wait = min(2*wait, 500*time.Millisecond)
	}
}

// notReady names the first checks that have not passed by an answer of /readyz, which
// tells of some thirty; err where it tells of none.
func notReady(answer []byte, err error) error {
	var missing []string
	for line := range strings.Lines(string(answer)) {
		if check, ok := strings.CutPrefix(line, "[-]"); ok {
			missing = append(missing, strings.TrimSpace(strings.SplitN(check, " ", 2)[0]))
		}
	}
	const some = 3
	switch {
	case len(missing) == 0:
		return err
	case len(missing) > some:
		return fmt.Errorf("it answers, but is not ready: %s and %d more", strings.Join(missing[:some], ", "), len(missing)-some)
	}
	return fmt.Errorf("it answers, but is not ready: %s", strings.Join(missing, ", "))
}
