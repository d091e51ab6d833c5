package client

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"

	"hyperkube/internal/base/backoff"
)

// AwaitAPI waits until the /readyz endpoint of an API server in another process reports success. It
// asks again with increasing delays of up to half a second. It calls failed, if that is not nil,
// with the reason of each unsuccessful attempt. It returns the cause of ctx if ctx is done first.
func AwaitAPI(ctx context.Context, kube kubernetes.Interface, failed func(error)) error {
	retry := backoff.Backoff{First: 20 * time.Millisecond, Max: 500 * time.Millisecond}
	for {
		answer, err := kube.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		if err == nil {
			return nil
		}
		if failed != nil {
			failed(notReady(answer, err))
		}
		if !retry.Pause(ctx) {
			return context.Cause(ctx)
		}
	}
}

// notReady returns the error for an API server that is not ready. It names up to three failed checks from answer, the
// response of /readyz, and the number of the others. It returns err, the error of the request, if answer contains no
// failed check.
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
		return fmt.Errorf("API server is not ready: %s and %d more", strings.Join(missing[:some], ", "), len(missing)-some)
	}
	return fmt.Errorf("API server is not ready: %s", strings.Join(missing, ", "))
}
