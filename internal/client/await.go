package client

import (
	"context"
	"time"

	"k8s.io/client-go/kubernetes"
)

// AwaitAPI asks an API server, which is another process, until it is ready or
// ctx ends, and tells failed, if that is not nil, why it is not.
func AwaitAPI(ctx context.Context, kube kubernetes.Interface, failed func(error)) error {
	wait := 20 * time.Millisecond
	for {
		_, err := kube.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		if err == nil {
			return nil
		}
		if failed != nil {
			failed(err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
		wait = min(2*wait, 500*time.Millisecond)
	}
}
